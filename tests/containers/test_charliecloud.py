"""The real ch-run with a real image: what the plan says is what the command finds inside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from containers.harness import HOSTILE, NOT_UTF8, Seen, run_wrapped, show
from containers.rootfs import python_inside
from requirements import missing_programs, require, require_containers
from unit.containers.sites import choose_from
from windlass.backends.containers.base import WrapSpec
from windlass.backends.containers.choose import ContainerRequest, ContainerSite
from windlass.errors import UsageError
from windlass.model.condition import Facts
from windlass.model.origin import Argument, Origin
from windlass.model.plan import ContainerPlan, Mount, Setting

pytestmark = pytest.mark.containers
FACTS = Facts(nodes=1, ranks_per_node=1, scheduler="none", launcher="local")


@pytest.fixture(autouse=True)
def _needs_charliecloud() -> None:
    require_containers()


@pytest.fixture
def outside_tmp() -> Iterator[Path]:
    """A folder that the container does not see by itself."""
    path = Path(f"/var/tmp/windlass-test-{os.getpid()}")
    path.mkdir()
    yield path
    shutil.rmtree(path)


def _spec(image: Path, tmp_path: Path, **fields: Any) -> WrapSpec:
    plan = {k: fields.pop(k) for k in ("mounts", "settings_inside", "activate", "arguments") if k in fields}
    if "settings_inside" in plan:
        plan["settings"] = plan.pop("settings_inside")
    container = ContainerPlan(runtime="charliecloud", image=str(image), executable="ch-run", **plan)
    base: dict[str, Any] = {"cwd": str(tmp_path), "run_dir": str(tmp_path), "vendor": None}
    return WrapSpec(**{**base, "settings": (), "rank_variables": (), "container": container, **fields})


def _ok(seen: Seen) -> Seen:
    assert seen.code == 0, seen.stderr
    return seen


def test_hostile_arguments_and_values_arrive_byte_for_byte(rootfs: Path, tmp_path: Path) -> None:
    words = (*HOSTILE, NOT_UTF8)
    values = {f"V{at}": word for at, word in enumerate(words)}
    settings = tuple(Setting(name=key, value=value, because="test") for key, value in values.items())
    seen = _ok(run_wrapped(_spec(rootfs, tmp_path, settings=settings), show(*words), work=tmp_path))
    assert seen.arguments == tuple(os.fsencode(word) for word in words)
    assert {key: seen.environ.get(key) for key in values} == {k: os.fsencode(v) for k, v in values.items()}
    assert "CH_RUNNING" in seen.environ
    assert seen.cwd == str(tmp_path)


def test_a_hostile_working_folder_and_run_folder_are_seen_inside(rootfs: Path, hostile_dir: Path) -> None:
    (hostile_dir / "data.txt").write_text("here\n")
    spec = _spec(rootfs, hostile_dir)
    seen = _ok(
        run_wrapped(
            spec, ("sh", "-c", 'read -r x < data.txt; [ "$x" = here ] && exec "$@"', "sh", *show()), work=hostile_dir
        )
    )
    assert seen.cwd == str(hostile_dir)


def test_binds_show_host_folders_at_their_places(rootfs: Path, tmp_path: Path, outside_tmp: Path) -> None:
    source = outside_tmp / "with space, comma"
    source.mkdir()
    (source / "file").write_text("from the host")
    mount = Mount(source=str(source), target="/mnt/0", because="test", origin=Origin(scope="flag"))
    seen = _ok(
        run_wrapped(
            _spec(rootfs, tmp_path, mounts=(mount,)),
            ("sh", "-c", 'exec "$@" "$(cat /mnt/0/file)"', "sh", *show()),
            work=tmp_path,
        )
    )
    assert seen.arguments == (b"from the host",)


def test_library_paths_are_put_in_front_inside(rootfs: Path, tmp_path: Path) -> None:
    inside = (Setting(name="LD_LIBRARY_PATH", value="/host/lib", because="test", prepend=True),)
    spec = _spec(rootfs, tmp_path, settings_inside=inside)
    seen = _ok(run_wrapped(spec, show(), work=tmp_path, host={"LD_LIBRARY_PATH": "/usr/local/lib"}))
    assert seen.environ["LD_LIBRARY_PATH"] == b"/host/lib:/usr/local/lib"


def test_an_activation_runs_first_and_leaves_the_arguments_alone(rootfs: Path, tmp_path: Path) -> None:
    spec = _spec(rootfs, tmp_path, activate="source /dev/null; export ACTIVATED=yes")
    seen = _ok(run_wrapped(spec, show(*HOSTILE), work=tmp_path))
    assert seen.environ["ACTIVATED"] == b"yes"
    assert seen.arguments == tuple(os.fsencode(word) for word in HOSTILE)


def test_the_hosts_tmpdir_does_not_hide_tmp(rootfs: Path, tmp_path: Path) -> None:
    seen = _ok(run_wrapped(_spec(rootfs, tmp_path), show(), work=tmp_path, host={"TMPDIR": "/var/tmp"}))
    assert seen.cwd == str(tmp_path)
    assert "TMPDIR" not in seen.environ


def test_a_python_script_runs_inside_and_its_exit_code_comes_out(rootfs: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import math, os, sys\nassert os.environ['CH_RUNNING']\nsys.exit(int(math.sqrt(int(sys.argv[1]))))\n"
    )
    seen = run_wrapped(_spec(rootfs, tmp_path), (python_inside(), str(script), "49"), work=tmp_path)
    assert seen.code == 7, seen.stderr


def test_a_squashfs_image_runs_like_a_folder(rootfs: Path, tmp_path: Path) -> None:
    require("squashfs", not missing_programs("mksquashfs"), missing_programs("mksquashfs"))
    image = tmp_path / "image.sqfs"
    uncompressed = ("-noI", "-noD", "-noF", "-noX", "-quiet", "-noappend", "-no-progress")
    subprocess.run(["mksquashfs", str(rootfs), str(image), *uncompressed], check=True, timeout=60)
    (tmp_path / "mnt").mkdir()
    own = (Argument(words=("--mount", str(tmp_path / "mnt")), because="leave nothing in /var/tmp"),)
    seen = _ok(run_wrapped(_spec(image, tmp_path, arguments=own), show("a b"), work=tmp_path))
    assert seen.arguments == (b"a b",)


def test_the_chosen_plan_runs(rootfs: Path, tmp_path: Path, outside_tmp: Path) -> None:
    asked = ContainerRequest(image=str(rootfs), binds=(f"{outside_tmp}:/mnt/1",), cwd=str(tmp_path))
    choice = choose_from(asked, ContainerSite(), environ={})
    assert choice.plan.runtime == "charliecloud"
    (outside_tmp / "seen").touch()
    user = {s.name: s.value or "" for s in choice.settings}
    spec = _spec(rootfs, tmp_path, container=choice.plan)
    seen = _ok(run_wrapped(spec, ("sh", "-c", 'exec "$@" /mnt/1/*', "sh", *show()), work=tmp_path, host=user))
    assert seen.arguments == (b"/mnt/1/seen",)


def test_a_mount_point_that_the_image_lacks_is_an_error_before_the_start(
    rootfs: Path, tmp_path: Path, outside_tmp: Path
) -> None:
    asked = ContainerRequest(image=str(rootfs), binds=(f"{outside_tmp}:/data/set",), cwd=str(tmp_path))
    with pytest.raises(UsageError, match="the image has no /data/set to bind to") as caught:
        choose_from(asked, ContainerSite(), runtime="charliecloud", environ={})
    assert "mkdir -p" in (caught.value.hint or "")


def test_the_interpreter_of_the_tests_is_in_the_image(rootfs: Path) -> None:
    assert (rootfs / python_inside().lstrip("/")).exists(), sys.base_prefix
