"""The network stack of an image, built from source by `windlass image build`: opt-in, because it takes an hour.

`make test-images` makes a Debian with CUDA's headers and runtime library from PyPI as the base, builds libcxi,
libfabric, Open MPI and NCCL's plugin on it, and asks each of them in the image. Where the sources' hosts cannot be
reached, `IMAGE_SOURCES=DIR` names a folder with copies of their repositories (`OWNER+NAME/repo`, or `NAME`).
`IMAGE_STORAGE=FILE` names a storage.conf whose storage stays: a second run takes the steps that are built already.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from requirements import missing_programs, require
from windlass.build.images.spec import load_versions

pytestmark = [
    pytest.mark.containers,
    pytest.mark.timeout(4 * 3600),
    pytest.mark.skipif(os.environ.get("WINDLASS_TEST_REAL") != "images", reason="opt-in: make test-images"),
]
BASE = "localhost/debian:12-cuda12.8"
WHEELS = ("nvidia-cuda-runtime-cu12==12.8.90", "nvidia-cuda-nvcc-cu12==12.8.93", "nvidia-nvml-dev-cu12==12.8.90")
SPEC = f"""
name = "stack"
base = "{BASE}"
gpu = "nvidia"
gpu_home = "/opt/cuda"
fabric = "slingshot"
with = ["mpi", "ofi"]

[versions]
openmpi = "5.0.7"
pmix = "bundled"
"""


def _run(*argv: str, env: dict[str, str], timeout: float = 600) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, env=env)
    assert done.returncode == 0, (argv, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


def _add_cuda(root: Path, folder: Path) -> None:
    """CUDA as wheels have it, laid out as a toolkit."""
    pip = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), *WHEELS)
    _run(*pip, env=dict(os.environ))
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    for part in ("cuda_nvcc", "cuda_runtime", "nvml_dev"):
        shutil.copytree(folder / "nvidia" / part, root / "opt/cuda", dirs_exist_ok=True)
    (root / "opt/cuda/lib64").symlink_to("lib")
    (root / "opt/cuda/lib/libcudart.so").symlink_to("libcudart.so.12")


def _point_git_at(sources: Path, root: Path) -> None:
    """Lets git in the image take repositories from copies below /sources."""
    lines = ["[safe]", "directory = *"]
    for component in load_versions().components.values():
        owner, name = component.url.split("/")[-2:]
        for place in (f"{owner}+{name}/repo", name):
            if (sources / place).is_dir():
                lines += [f'[url "file:///sources/{place}"]', f"insteadOf = {component.url}"]
                break
    (root / "etc/gitconfig").write_text("\n".join(lines) + "\n")


def _make_base(folder: Path, env: dict[str, str]) -> None:
    root = folder / "root"
    subprocess.run(["debootstrap", "--variant=minbase", "bookworm", str(root)], check=True, timeout=1800)
    (folder / "wheels").mkdir()
    _add_cuda(root, folder / "wheels")
    certificates = root / "etc/ssl/certs/ca-certificates.crt"
    certificates.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy("/etc/ssl/certs/ca-certificates.crt", certificates)
    if os.environ.get("IMAGE_SOURCES"):
        _point_git_at(Path(os.environ["IMAGE_SOURCES"]), root)
    _run("sh", "-c", f"tar -C {root} -c . | podman import - {BASE}", env=env)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Where images are kept, with the base in it: that of IMAGE_STORAGE, which stays, or one of this run."""
    why = missing_programs("buildah", "podman", "debootstrap")
    require("podman", not why and os.geteuid() == 0, why or "debootstrap needs root")
    folder = tmp_path_factory.mktemp("stack")
    kept = os.environ.get("IMAGE_STORAGE", "")
    short = "" if kept else tempfile.mkdtemp(prefix="wlstk.")
    conf = Path(kept) if kept else folder / "storage.conf"
    if not kept:
        conf.write_text(f'[storage]\ndriver = "vfs"\nrunroot = "{short}"\ngraphroot = "{folder}/graph"\n')
    env = {**os.environ, "CONTAINERS_STORAGE_CONF": str(conf), "BUILDAH_ISOLATION": "chroot"}
    try:
        if subprocess.run(["podman", "image", "exists", BASE], timeout=60, env=env).returncode != 0:
            _make_base(folder, env)
        yield env
    finally:
        subprocess.run(["buildah", "rm", "--all"], capture_output=True, timeout=300, env=env)
        if short:
            subprocess.run(["podman", "rmi", "--all", "--force"], capture_output=True, timeout=600, env=env)
            shutil.rmtree(short, ignore_errors=True)


def test_the_whole_stack_is_built_and_answers(storage: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "stack.toml").write_text(SPEC)
    sources = os.environ.get("IMAGE_SOURCES")
    volume = [f"--builder-arg=--volume={sources}:/sources:ro"] if sources else []
    argv = [sys.executable, "-m", "windlass", "image", "build", "stack.toml", "--builder", "buildah", *volume]
    argv += ["--builder-arg=--layers", "--tag", "localhost/stack:1", "--log", "build.log", "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=4 * 3600, env=storage, cwd=tmp_path)
    assert done.returncode == 0, done.stderr + (tmp_path / "build.log").read_text(errors="replace")[-4000:]
    box = _run("buildah", "from", "localhost/stack:1", env=storage).strip()

    def inside(command: str) -> str:
        return _run("buildah", "run", "--isolation", "chroot", box, "--", "sh", "-c", command, env=storage)

    assert re.search(r"^cxi:", inside("fi_info -l"), re.MULTILINE)
    assert "libfabric: 2.2.0" in inside("fi_info --version")
    assert "MCA mtl: ofi" in inside("ompi_info")
    ran = inside("mpirun --allow-run-as-root --oversubscribe -n 2 sh -c 'echo rank $PMIX_RANK'")
    assert sorted(ran.split("\n")[:2]) == ["rank 0", "rank 1"]
    plugin = "/container/hpc/lib/libnccl-net-ofi.so"
    loaded = "cat /proc/self/maps"
    assert plugin in inside(f"LD_BIND_NOW=1 LD_LIBRARY_PATH=/opt/cuda/lib LD_PRELOAD={plugin} {loaded}")
    root = _run("buildah", "mount", box, env=storage).strip()
    symbols = _run("nm", "-D", "--defined-only", root + plugin, env=storage)
    assert "ncclNetPlugin_v10" in symbols
    check = [sys.executable, "-m", "windlass", "image", "check", root, "--json"]
    said = json.loads(subprocess.run(check, capture_output=True, text=True, timeout=600, env=storage).stdout)
    assert set(said["report"]["missing"]) <= {"libcudart.so.12"}, "the base keeps CUDA out of the loader's folders"
    assert "cxi" in said["report"]["providers"]
    assert said["report"]["plugins"] == [plugin]
    assert [entry["name"] for entry in json.loads(inside("cat /usr/share/windlass/sbom.json"))["components"]] == [
        *("cassini-headers", "cxi-driver", "libcxi", "libfabric", "pmix", "openmpi", "aws-ofi-nccl"),
    ]
