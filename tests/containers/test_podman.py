"""podman-hpc's command line on the real podman: a few words of shell stand for the wrapper, which adds a site's storage
options and hands the rest to podman."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from containers.harness import HOSTILE, Seen, run_wrapped, show
from containers.podman import podman_with
from windlass.backends.containers.base import WrapSpec
from windlass.model.origin import Origin
from windlass.model.plan import ContainerPlan, Mount, Setting

pytestmark = pytest.mark.containers
IMAGE = "localhost/windlass-test:1"


@pytest.fixture(scope="module")
def wrapper(rootfs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    changes = "--change 'ENTRYPOINT [\"/no/such/program\"]' --change 'ENV NCCL_NET=Socket' --change 'ENV GONE=image'"
    with podman_with(IMAGE, rootfs, tmp_path_factory.mktemp("podman"), changes) as script:
        yield script


def _run(wrapper: str, tmp_path: Path, command: tuple[str, ...], **fields: Any) -> Seen:
    plan = {k: fields.pop(k) for k in ("mounts", "activate") if k in fields}
    inside = fields.pop("inside", ())
    run = {k: fields.pop(k) for k in ("host", "exports") if k in fields}
    container = ContainerPlan(runtime="podman-hpc", image=IMAGE, executable=wrapper, settings=inside, **plan)
    base: dict[str, Any] = {"cwd": str(tmp_path), "run_dir": str(tmp_path), "vendor": None, "rank_variables": ()}
    spec = WrapSpec(container=container, **{**base, "settings": (), **fields})
    seen = run_wrapped(spec, command, work=tmp_path, **run)
    assert seen.code == 0, seen.stderr
    return seen


def test_arguments_variables_and_folder_arrive_and_the_entry_point_does_not_run(wrapper: str, tmp_path: Path) -> None:
    values = {f"V{at}": word for at, word in enumerate(HOSTILE)} | {"NCCL_NET": "AWS Libfabric"}
    settings = tuple(Setting(name=key, value=value, because="test") for key, value in values.items())
    settings += (Setting(name="GONE", value=None, because="test"),)
    exports = {"RANK": "3", "SLURM_JOB_ID": "17", "WINDLASS_RUN_DIR": "/x"}
    seen = _run(wrapper, tmp_path, show(*HOSTILE), settings=settings, rank_variables=("RANK",), exports=exports)
    assert seen.arguments == tuple(os.fsencode(word) for word in HOSTILE)
    assert {key: seen.environ.get(key) for key in values} == {k: os.fsencode(v) for k, v in values.items()}
    assert {name: seen.environ.get(name, b"").decode() for name in exports} == exports
    assert "GONE" not in seen.environ
    assert seen.cwd == str(tmp_path)


def test_volumes_and_paths_in_front_are_there(wrapper: str, tmp_path: Path) -> None:
    data = tmp_path / "da ta, 'x'"
    data.mkdir()
    (data / "file").write_text("here")
    mount = Mount(source=str(data), target="/mnt/0", because="test", origin=Origin(scope="flag"), read_only=True)
    inside = (Setting(name="LD_LIBRARY_PATH", value="/host/lib", because="test", prepend=True),)
    command = ("sh", "-c", 'exec "$@" "$(cat /mnt/0/file)"', "sh", *show())
    seen = _run(wrapper, tmp_path, command, mounts=(mount,), inside=inside)
    assert seen.arguments == (b"here",)
    assert seen.environ["LD_LIBRARY_PATH"] == b"/host/lib"
