"""The swap, end to end: an image with an older libfabric, a host with a newer one that has another provider and needs
more libraries. The program inside says which it has loaded, by its own /proc/self/maps."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.command import allocated, only_run
from cluster.slurm import SlurmCluster
from containers.podman import podman_with
from containers.toys import (
    add_old_fabric,
    add_plugins,
    add_providers,
    copy_root,
    libfabric,
    library,
    new_host,
    require_compiler,
)
from requirements import missing_programs, require, require_containers

pytestmark = pytest.mark.containers
NAME = "localhost/windlass-fabric:1"


@pytest.fixture(scope="module")
def image(rootfs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_compiler()
    root = copy_root(rootfs, tmp_path_factory.mktemp("fabric") / "root")
    add_old_fabric(root)
    add_plugins(root)
    return root


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    require_compiler()
    made = new_host(tmp_path_factory.mktemp("host"))
    add_providers(made)
    return made


@pytest.fixture(scope="module")
def podman(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    changes = "--change ENV=NCCL_NET_PLUGIN=spcx --change ENV=FI_PROVIDER_PATH=/image/providers"
    with podman_with(NAME, image, tmp_path_factory.mktemp("podman"), changes) as script:
        yield script


def _windlass(*words: str, cwd: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src"), "WINDLASS_CONFIG": str(cwd / "none")}
    env["PATH"] = f"{path}:{env['PATH']}" if path else env["PATH"]
    argv = [sys.executable, "-m", "windlass", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=180, cwd=cwd, env=env)


def _run(image: str, *options: str, cwd: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    fixed = ("run", "--site", "workstation", "--ranks-per-node", "1", "--container", image)
    return _windlass(*fixed, *options, "--", "fi_toy", "cxi", cwd=cwd, path=path)


def _assert_swapped(done: subprocess.CompletedProcess[str], cwd: Path) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert "libfabric 2: tcp cxi" in done.stdout
    loaded = re.findall(r"loaded (\S+)", done.stdout)
    folder = r"/windlass-\d+-[0-9a-f]+/host-libs"
    for pattern in (
        rf"{folder}/front/libfabric\.so\.1",
        rf"{folder}/front/libcxi\.so\.1",
        rf"{folder}/behind/libtoyjson",
        rf"{folder}/providers/libopx-fi\.so",
        rf"{folder}/behind/libtoyverbs",
        r"^/opt/amazon/ofi-nccl/lib/libnccl-net-ofi\.so$",
    ):
        assert any(re.search(pattern, path) for path in loaded), (pattern, loaded)
    assert not any("host-libs" in path and "libc.so" in path for path in loaded)
    assert not any("libnccl-net.so" in path for path in loaded), "the other plugin is hidden"
    record = json.loads(next(cwd.glob("runs/*/host-libs.json")).read_text())
    assert [entry["name"] for entry in record[0]["placed"] if entry["where"] == "behind"] == [
        "libtoyjson.so.5",
        "libtoyverbs.so.2",
    ]
    assert record[0]["hidden"] == ["/usr/lib/x86_64-linux-gnu/libnccl-net.so"]
    assert "libgone-fi.so is left out: " in record[0]["warnings"][0]
    left = re.search(r"(/\S+/windlass-\d+-[0-9a-f]+)/host-libs", done.stdout)
    assert left is not None
    assert not Path(left[1]).exists(), "the job's folder on the node is gone after the run"


@pytest.fixture(scope="module")
def sif(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image as a SIF file of a real apptainer, with a variable of its own."""
    require("apptainer", not missing_programs("apptainer"), missing_programs("apptainer"))
    folder = tmp_path_factory.mktemp("sif")
    root = copy_root(image, folder / "root")
    (root / "opt/providers").mkdir()
    definition = folder / "image.def"
    definition.write_text(
        f"Bootstrap: localimage\nFrom: {root}\n\n%environment\n"
        "    export NCCL_NET_PLUGIN=spcx FI_PROVIDER_PATH=/opt/providers\n"
    )
    argv = ["apptainer", "build", str(folder / "image.sif"), str(definition)]
    made = subprocess.run(argv, capture_output=True, text=True, timeout=240)
    assert made.returncode == 0, made.stderr
    return folder / "image.sif"


def test_a_sif_of_apptainer_says_the_same_as_the_folder(sif: Path, image: Path, tmp_path: Path) -> None:
    said = []
    for form in (sif, image):
        done = _windlass("image", "check", str(form), "--site", "frontier", "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        report = json.loads(done.stdout)["report"]
        said.append({key: report[key] for key in ("machine", "glibc", "libfabric", "providers", "plugins")})
    assert said[0] == said[1]
    assert said[0]["plugins"][0] == "/usr/lib/x86_64-linux-gnu/libnccl-net.so"


@pytest.mark.parametrize("kind", ["charliecloud", "podman-hpc", "apptainer"])
def test_the_hosts_libfabric_takes_the_place_of_the_images(
    kind: str, image: Path, host: tuple[Path, Path], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    require_containers()
    podman = request.getfixturevalue("podman") if kind == "podman-hpc" else ""
    path = str(Path(podman).parent) if podman else ""
    file = request.getfixturevalue("sif") if kind == "apptainer" else image
    name = NAME if podman else str(file)
    plain = _run(name, "--runtime", kind, cwd=tmp_path, path=path)
    assert plain.returncode == 61, plain.stdout + plain.stderr
    assert "provider cxi is missing" in plain.stdout + plain.stderr
    front, deps = host
    done = _run(name, "--runtime", kind, "--host-libs", f"{front}:{deps}", cwd=tmp_path, path=path)
    _assert_swapped(done, tmp_path)


def test_a_dependency_that_is_nowhere_is_named_before_any_rank_starts(
    image: Path, host: tuple[Path, Path], tmp_path: Path
) -> None:
    require_containers()
    done = _run(str(image), "--host-libs", str(host[0]), cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "libfabric.so.1 needs libcxi.so.1, which neither the host nor the image has" in done.stderr
    assert "libfabric 1" not in done.stdout, "no rank has started"


def test_a_library_for_a_newer_glibc_is_refused_with_a_remedy(image: Path, tmp_path: Path) -> None:
    require_containers()
    host = tmp_path / "host"
    # A toy C library of the future: what is linked with it needs a version that no image has.
    future = library(
        tmp_path / "future/libm.so.6", "int toy(void) { return 1; }", versions="GLIBC_9.9 { global: toy; };"
    )
    libfabric(host, 3, ("cxi",), needs=(future,), call="toy")
    done = _run(str(image), "--host-libs", str(host), cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "needs glibc 9.9, the image has 2." in done.stderr
    assert "--host-libs none" in done.stderr


def test_an_image_file_is_looked_into_as_well(image: Path, host: tuple[Path, Path], tmp_path: Path) -> None:
    require_containers()
    if shutil.which("mksquashfs") is None:
        pytest.skip("no mksquashfs")
    file = tmp_path / "image.sqfs"
    flags = ("-noI", "-noD", "-noF", "-noX", "-quiet", "-noappend", "-no-progress")
    subprocess.run(["mksquashfs", str(image), str(file), *flags], check=True, timeout=60)
    done = _windlass(
        *("image", "inject", str(file), "--site", "frontier", "--host-libs", f"{host[0]}:{host[1]}", "--json"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["strategy"] == "host-inject"
    where = {library["name"]: library["where"] for library in found["libraries"]}
    assert where["libfabric.so.1"] == where["libcxi.so.1"] == "front"
    assert where["libtoyjson.so.5"] == "behind"
    assert where["libc.so.6"] == "image"


def test_two_plugins_and_a_missing_library_are_found_by_the_check(image: Path, tmp_path: Path) -> None:
    root = copy_root(image, tmp_path / "root")
    gone = library(tmp_path / "libgone.so.7")
    library(root / "opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so", needs=(gone,))
    done = _windlass("image", "check", str(root), "--site", "elcapitan", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 network plugins of NCCL or RCCL compete" in done.stdout
    assert "libnccl-net-ofi.so needs libgone.so.7, which the image lacks" in done.stdout
    assert "its libfabric has no cxi provider" in done.stdout
    assert "verdict on elcapitan: will not work as it is: " in done.stdout


@pytest.mark.slurm
@pytest.mark.timeout(180)
def test_every_node_of_a_job_finds_the_libraries_for_itself(
    slurm: SlurmCluster, image: Path, host: tuple[Path, Path], tmp_path: Path
) -> None:
    require_containers()
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        options = ("--ranks-per-node", "1", "--show", "all", "--container", str(image))
        options = (*options, "--host-libs", f"{host[0]}:{host[1]}")
        done = job.windlass("run", *options, "--", "fi_toy", "cxi", env={"USER": "root"})
    assert done.code == 0, done.text
    assert done.stdout.count("libfabric 2: tcp cxi") == 2, done.text
    record = json.loads((only_run(tmp_path).path / "host-libs.json").read_text())
    assert sorted(answer["node"] for answer in record) == ["nid0001", "nid0002"]
    left = re.search(r"(/\S+/windlass-\d+-[0-9a-f]+)/host-libs", done.stdout)
    assert left is not None
    assert not Path(left[1]).exists()
