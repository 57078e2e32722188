"""The real apptainer, where the machine has it: the image's own variables, evaluation of values, the missing bind."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from containers.harness import HOSTILE, Seen, run_wrapped, show
from requirements import missing_programs, require
from windlass.backends.containers.base import WrapSpec
from windlass.model.origin import Origin
from windlass.model.plan import ContainerPlan, Mount, Setting

pytestmark = pytest.mark.containers
SITE = Origin(scope="site", where="test")


@pytest.fixture(autouse=True)
def _needs_apptainer() -> None:
    require("apptainer", not missing_programs("apptainer"), missing_programs("apptainer"))


@pytest.fixture(scope="module")
def sandbox(rootfs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image as apptainer unpacks one from a registry: with an environment and a run script of its own."""
    root = tmp_path_factory.mktemp("sandbox") / "root"
    shutil.copytree(rootfs, root, symlinks=True)
    scripts = root / ".singularity.d/env"
    scripts.mkdir(parents=True)
    (scripts / "10-docker2singularity.sh").write_text(
        '#!/bin/sh\nexport NCCL_NET="${NCCL_NET:-"Socket"}"\nexport MASTER_ADDR="${MASTER_ADDR:-"localhost"}"\n'
        'export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-"/image/lib"}"\nexport GONE="${GONE:-"image"}"\n'
    )
    (scripts / "90-environment.sh").write_text("#!/bin/sh\nexport FROM_RECIPE=image\n")
    (scripts / "99-base.sh").write_text("#!/bin/sh\nexport PATH LD_LIBRARY_PATH\n")
    run = root / ".singularity.d/runscript"
    run.write_text('#!/bin/sh\nexport RUN_SCRIPT=yes\nexec "$@"\n')
    run.chmod(0o755)
    return root


def _run(sandbox: Path, tmp_path: Path, command: tuple[str, ...], **fields: Any) -> Seen:
    plan = {k: fields.pop(k) for k in ("mounts", "activate", "verb") if k in fields}
    inside = fields.pop("inside", ())
    run = {k: fields.pop(k) for k in ("host", "exports") if k in fields}
    container = ContainerPlan(runtime="apptainer", image=str(sandbox), executable="apptainer", settings=inside, **plan)
    base: dict[str, Any] = {"cwd": str(tmp_path), "run_dir": str(tmp_path), "vendor": None, "rank_variables": ()}
    spec = WrapSpec(container=container, **{**base, "settings": (), **fields})
    seen = run_wrapped(spec, command, work=tmp_path, **run)
    assert seen.code == 0, seen.stderr
    return seen


@pytest.mark.parametrize("verb", ["exec", "run"])
def test_hostile_arguments_arrive_byte_for_byte(sandbox: Path, tmp_path: Path, verb: str) -> None:
    seen = _run(sandbox, tmp_path, show(*HOSTILE), verb=verb)
    assert seen.arguments == tuple(os.fsencode(word) for word in HOSTILE)
    assert seen.cwd == str(tmp_path)
    assert ("RUN_SCRIPT" in seen.environ) == (verb == "run")


def test_values_of_the_plan_win_over_the_image(sandbox: Path, tmp_path: Path) -> None:
    settings = (
        Setting(name="NCCL_NET", value="AWS Libfabric", because="test"),
        Setting(name="FROM_RECIPE", value="plan", because="test"),
        Setting(name="GONE", value=None, because="test"),
    )
    exports = {"MASTER_ADDR": "nid000001", "RANK": "3"}
    seen = _run(sandbox, tmp_path, show(), settings=settings, rank_variables=tuple(exports), exports=exports)
    found = {name: seen.environ.get(name) for name in ("NCCL_NET", "FROM_RECIPE", "GONE", "MASTER_ADDR", "RANK")}
    assert found == {
        "NCCL_NET": b"AWS Libfabric",
        "FROM_RECIPE": b"plan",
        "GONE": None,
        "MASTER_ADDR": b"nid000001",
        "RANK": b"3",
    }


def test_hostile_values_are_not_evaluated(sandbox: Path, tmp_path: Path) -> None:
    values = {f"V{at}": word for at, word in enumerate(HOSTILE) if word}
    settings = tuple(Setting(name=key, value=value, because="test") for key, value in values.items())
    seen = _run(sandbox, tmp_path, show(), settings=settings)
    assert {key: seen.environ.get(key) for key in values} == {k: os.fsencode(v) for k, v in values.items()}


def test_library_and_program_paths_go_in_front(sandbox: Path, tmp_path: Path) -> None:
    inside = (
        Setting(name="LD_LIBRARY_PATH", value="/host/lib", because="test", prepend=True),
        Setting(name="PATH", value="/opt/tools/bin", because="test", prepend=True),
    )
    seen = _run(sandbox, tmp_path, show(), inside=inside, host={"LD_LIBRARY_PATH": "/of/the/host"})
    assert seen.environ["LD_LIBRARY_PATH"].startswith(b"/host/lib:/image/lib")
    assert b"/of/the/host" not in seen.environ["LD_LIBRARY_PATH"]
    assert seen.environ["PATH"].startswith(b"/opt/tools/bin:")


def test_an_activation_runs_inside(sandbox: Path, tmp_path: Path) -> None:
    seen = _run(sandbox, tmp_path, show("a b"), activate="export ACTIVATED=${FROM_RECIPE}")
    assert (seen.environ["ACTIVATED"], seen.arguments) == (b"image", (b"a b",))


def test_binds_are_seen_and_a_missing_optional_one_does_not_stop_the_start(sandbox: Path, tmp_path: Path) -> None:
    data = tmp_path / "da ta's $HOME"
    data.mkdir()
    (data / "file").write_text("here")
    mounts = (
        Mount(source=str(data), target="/data", because="test", origin=SITE, read_only=True),
        Mount(source="/nowhere/at/all", target="/nowhere", because="test", origin=SITE, optional=True),
    )
    command = ("sh", "-c", 'exec "$@" "$(cat /data/file)"', "sh", *show())
    assert _run(sandbox, tmp_path, command, mounts=mounts).arguments == (b"here",)


def test_a_missing_bind_is_fatal_which_is_why_paths_are_checked_before(sandbox: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        ["apptainer", "exec", "--bind", "/nowhere/at/all", str(sandbox), "sh", "-c", ":"],
        capture_output=True,
        timeout=60,
    )
    assert done.returncode != 0
