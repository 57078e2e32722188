"""One Debian of debootstrap in every form of an image: `image check` gives the same verdict for each.

libfabric of Debian needs a library behind `/etc/alternatives`, so a form whose links are not followed is noticed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from containers.podman import LIMITS
from requirements import missing_programs, require

pytestmark = [pytest.mark.slow, pytest.mark.containers, pytest.mark.timeout(1800)]
IMAGE = "localhost/forms:1"


class Debian(NamedTuple):
    """A folder with the image, a podman that has it too, and a place for its other forms."""

    root: Path
    podman: tuple[str, ...]
    folder: Path


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Debian]:
    why = missing_programs("debootstrap", "podman", "runc")
    require("podman", not why and os.geteuid() == 0, why or "debootstrap needs root")
    folder = tmp_path_factory.mktemp("forms")
    root = folder / "root"
    include = "--include=libfabric1,libopenmpi3"
    _run("debootstrap", "--variant=minbase", include, "bookworm", str(root), timeout=1200)
    short = tempfile.mkdtemp(prefix="wlfrm.")  # podman takes no longer path than 50 characters here
    podman = f"podman --storage-driver vfs --root {folder}/storage --runroot {short} --runtime runc"
    try:
        _run("sh", "-c", f"tar -C {root} --exclude=./dev/* -c . | {podman} import - {IMAGE}")
        yield Debian(root, tuple(podman.split()), folder)
    finally:
        subprocess.run([*podman.split(), "rmi", "--all", "--force"], capture_output=True, timeout=300)
        shutil.rmtree(short, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def _run(*argv: str, timeout: float = 600) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, (argv, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout.strip()


def _saved(debian: Debian, form: str) -> Iterator[str]:
    image = debian.folder / form
    _run(*debian.podman, "save", "--format", form, "--output", str(image), IMAGE)
    yield str(image)


def _squashfs(debian: Debian) -> Iterator[str]:
    require("squashfs", not missing_programs("mksquashfs"), missing_programs("mksquashfs"))
    image = str(debian.folder / "image.sqfs")
    _run("mksquashfs", str(debian.root), image, "-quiet", "-noappend", "-no-progress", "-comp", "lz4")
    yield image


def _sif(debian: Debian) -> Iterator[str]:
    require("apptainer", not missing_programs("apptainer"), missing_programs("apptainer"))
    image = str(debian.folder / "image.sif")
    _run("apptainer", "build", image, str(debian.root))
    yield image


def _running(debian: Debian) -> Iterator[str]:
    """The root of a process in a container, as the host sees it."""
    box = _run(*debian.podman, "run", "-d", *LIMITS.split(), "--network=host", IMAGE, "sleep", "600")
    try:
        pid = _run(*debian.podman, "inspect", "--format", "{{.State.Pid}}", box)
        require("podman", Path(f"/proc/{pid}/root/etc/debian_version").exists(), "no container can be started")
        yield f"/proc/{pid}/root"
    finally:
        _run(*debian.podman, "rm", "--force", "--time", "0", box)


def _check(image: str) -> dict[str, Any]:
    argv = (sys.executable, "-m", "windlass", "image", "check", image, "--site", "frontier", "--json")
    return dict(json.loads(_run(*argv)))


FORMS: dict[str, Callable[[Debian], Iterator[str]]] = {
    "docker-archive": lambda debian: _saved(debian, "docker-archive"),
    "oci-archive": lambda debian: _saved(debian, "oci-archive"),
    "oci-dir": lambda debian: _saved(debian, "oci-dir"),
    "squashfs": _squashfs,
    "sif of apptainer": _sif,
    "running container": _running,
}


@pytest.mark.parametrize("form", FORMS)
def test_the_verdict_is_that_of_the_unpacked_folder(form: str, debian: Debian) -> None:
    folder = _check(str(debian.root))
    assert folder["report"]["system"].startswith("Debian GNU/Linux 12")
    assert "libpsm_infinipath.so.1" not in folder["report"]["missing"]
    making = FORMS[form](debian)
    try:
        said = _check(next(making))
    finally:
        making.close()  # type: ignore[attr-defined]
    for check in (said, folder):
        for part, name in (("report", "image"), ("report", "kind"), ("report", "environment"), ("injection", "image")):
            del check[part][name]
    assert said == folder
