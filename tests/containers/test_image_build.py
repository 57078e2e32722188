"""Real builds with buildah and podman from a small local base; the entry script of the images in a real container."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from containers.rootfs import copy_program
from containers.toys import add_old_fabric, copy_root, libfabric, library, new_host, require_compiler
from requirements import missing_programs, require, require_containers
from windlass.build.images.build import entry_script

pytestmark = pytest.mark.containers
SPEC = """
name = "own"
base = "localhost/windlass-base:1"

[[steps]]
name = "greeting"
because = "shows that steps run"
run = ["echo built > /root/greeting"{more}]
"""


@pytest.fixture(scope="module")
def image(rootfs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_compiler()
    root = copy_root(rootfs, tmp_path_factory.mktemp("fabric") / "root")
    add_old_fabric(root)
    (root / "host/usr").mkdir(exist_ok=True)
    for name in ("id", "ln", "mkdir", "rm"):
        copy_program(Path("/bin") / name, root / "usr/bin" / name, root)
    return root


@pytest.fixture(scope="module")
def storage(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """An environment in which builders have a storage of their own with the base in it."""
    why = missing_programs("buildah", "podman")
    require("podman", not why, why)
    folder = tmp_path_factory.mktemp("storage")
    short = tempfile.mkdtemp(prefix="wlbld.")  # podman takes no long path for it
    conf = folder / "storage.conf"
    conf.write_text(f'[storage]\ndriver = "vfs"\nrunroot = "{short}"\ngraphroot = "{folder}/graph"\n')
    env = {**os.environ, "CONTAINERS_STORAGE_CONF": str(conf), "BUILDAH_ISOLATION": "chroot"}
    made = subprocess.run(
        ["sh", "-c", f"tar -C {image} -c . | podman import - localhost/windlass-base:1"],
        capture_output=True,
        timeout=120,
        env=env,
    )
    require("podman", made.returncode == 0, made.stderr.decode(errors="replace"))
    try:
        yield env
    finally:
        subprocess.run(["podman", "rmi", "--all", "--force"], capture_output=True, timeout=120, env=env)
        shutil.rmtree(short, ignore_errors=True)


def _windlass(*words: str, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    env = {**env, "PYTHONPATH": str(Path(__file__).parents[2] / "src"), "WINDLASS_CONFIG": str(cwd / "none")}
    argv = [sys.executable, "-m", "windlass", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=240, cwd=cwd, env=env)


def _names(env: dict[str, str]) -> set[str]:
    argv = ["podman", "images", "--format", "{{.Repository}}:{{.Tag}}"]
    return set(subprocess.run(argv, capture_output=True, text=True, timeout=60, env=env).stdout.split())


def test_an_image_and_its_variant_are_built_and_the_variant_uses_the_hosts_libraries(
    storage: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "own.toml").write_text(SPEC.format(more=""))
    front, deps = new_host(tmp_path / "host")
    libs = tmp_path / "libs"
    libs.mkdir()
    for file in (*front.iterdir(), *deps.iterdir()):
        shutil.copy(file, libs)
    options = ("--builder", "buildah", "--tag", "localhost/own:1", "--host-libs", str(libs), "--json")
    done = _windlass("image", "build", "own.toml", *options, cwd=tmp_path, env=storage)
    assert done.returncode == 0, done.stdout + done.stderr
    built = json.loads(done.stdout)
    assert (built["image"], built["variant"]) == ("localhost/own:1", "localhost/own-ss:1")
    assert Path(built["log"]).read_text()
    assert {"localhost/own:1", "localhost/own-ss:1"} <= _names(storage)
    assert not any("windlass-build" in name for name in _names(storage)), "no name of a build on its way is left"
    archive = tmp_path / "own.tar"
    argv = ["podman", "save", "-q", "--format", "oci-archive", "-o", str(archive), "localhost/own-ss:1"]
    subprocess.run(argv, check=True, timeout=120, env=storage, capture_output=True)
    checked = _windlass("image", "check", str(archive), "--site", "frontier", "--json", cwd=tmp_path, env=storage)
    report = json.loads(checked.stdout)["report"]
    assert report["libfabric"][0] == "/container/host-libs/libfabric.so.1"
    assert "cxi" in report["providers"]
    made = subprocess.run(
        ["buildah", "from", "localhost/own-ss:1"], capture_output=True, text=True, env=storage, timeout=60
    )
    inner = 'read -r word < /root/greeting; echo "$word"; exec fi_toy cxi'
    argv = ["buildah", "run", "--isolation", "chroot", made.stdout.strip(), "--", "sh", "-c", inner]
    ran = subprocess.run(argv, capture_output=True, text=True, env=storage, timeout=60)
    subprocess.run(["buildah", "rm", made.stdout.strip()], capture_output=True, env=storage, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("built\nlibfabric 2: tcp cxi")
    assert "loaded /container/host-libs/libfabric.so.1" in ran.stdout


def test_a_variant_whose_libraries_do_not_fit_the_image_is_not_made(storage: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(SPEC.format(more=""))
    future = library(tmp_path / "x/libm.so.6", "int toy(void) { return 1; }", versions="GLIBC_9.9 { global: toy; };")
    libfabric(tmp_path / "libs", 3, ("cxi",), needs=(future,), call="toy")
    options = ("--builder", "buildah", "--tag", "localhost/unfit:1", "--host-libs", "libs")
    done = _windlass("image", "build", "own.toml", *options, cwd=tmp_path, env=storage)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "the host's libfabric does not fit the image" in done.stderr
    assert "GLIBC_9.9" in done.stderr
    assert not any("unfit" in name or "windlass-build" in name for name in _names(storage))


def test_a_failed_build_keeps_its_log_and_leaves_no_image(storage: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(SPEC.format(more=', "echo now it breaks; exit 9"'))
    options = ("--builder", "podman", "--tag", "localhost/broken:1", "--log", "build.log")
    done = _windlass("image", "build", "own.toml", *options, cwd=tmp_path, env=storage)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "the build failed: now it breaks" in done.stderr
    assert f"all of its output: {tmp_path}/build.log" in done.stderr
    assert "now it breaks" in (tmp_path / "build.log").read_text()
    assert not any("broken" in name or "windlass-build" in name for name in _names(storage))


def _require_apptainer() -> None:
    require("apptainer", not missing_programs("apptainer"), missing_programs("apptainer"))


def _in_sif(sif: Path, *words: str, verb: str = "exec") -> str:
    argv = ["apptainer", verb, "--no-home", str(sif), *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_apptainer_makes_a_sif_of_what_buildah_has_built(storage: dict[str, str], tmp_path: Path) -> None:
    _require_apptainer()
    (tmp_path / "own.toml").write_text(SPEC.format(more=""))
    options = ("--builder", "buildah", "--tag", "localhost/forsif:1", "--sif", "own.sif", "--json")
    done = _windlass("image", "build", "own.toml", *options, cwd=tmp_path, env=storage)
    assert done.returncode == 0, done.stdout + done.stderr
    sif = Path(json.loads(done.stdout)["sif"])
    assert json.loads(_in_sif(sif, "cat", "/usr/share/windlass/sbom.json"))["spec"] == "own"
    assert _in_sif(sif, "cat", "/root/greeting") == "built\n"
    assert "libfabric 1: tcp" in _in_sif(sif, "fi_toy", verb="run"), "by the entry point"
    checked = _windlass("image", "check", str(sif), "--json", cwd=tmp_path, env=storage)
    assert json.loads(checked.stdout)["report"]["kind"] == "sif"
    assert sorted(path.name for path in tmp_path.iterdir() if ".sif" in path.name) == ["own.sif"]


def test_apptainer_builds_a_definition_by_itself(storage: dict[str, str], tmp_path: Path) -> None:
    _require_apptainer()
    base = tmp_path / "base.tar"
    argv = ["podman", "save", "-q", "--format", "oci-archive", "-o", str(base), "localhost/windlass-base:1"]
    subprocess.run(argv, check=True, timeout=120, env=storage, capture_output=True)
    text = SPEC.format(more="").replace("localhost/windlass-base:1", f"oci-archive:{base}")
    (tmp_path / "own.toml").write_text(text)
    options = ("--builder", "apptainer", "--sif", "own.sif", "--json")
    done = _windlass("image", "build", "own.toml", *options, cwd=tmp_path, env=storage)
    assert done.returncode == 0, done.stdout + done.stderr
    assert _in_sif(tmp_path / "own.sif", "cat", "/root/greeting") == "built\n"
    assert (
        "windlass.spec"
        in subprocess.run(
            ["apptainer", "inspect", "--labels", str(tmp_path / "own.sif")], capture_output=True, text=True, timeout=60
        ).stdout
    )
    (tmp_path / "bad.toml").write_text(text.replace("echo built > /root/greeting", "echo it breaks; exit 9"))
    options = ("--builder", "apptainer", "--sif", "bad.sif", "--log", "bad.log")
    done = _windlass("image", "build", "bad.toml", *options, cwd=tmp_path, env=storage)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "it breaks" in (tmp_path / "bad.log").read_text()
    assert not list(tmp_path.glob("*bad.sif*"))


def test_what_cannot_be_built_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(SPEC.format(more=""))
    (tmp_path / "libs").mkdir()
    nothing = {**os.environ, "PATH": str(tmp_path)}
    done = _windlass("image", "build", "own.toml", cwd=tmp_path, env=nothing)
    assert done.returncode == 3
    assert "none of podman, buildah, docker, apptainer on this machine" in done.stderr
    if shutil.which("podman") is None:
        pytest.skip("no podman")
    done = _windlass("image", "build", "own.toml", "--host-libs", "libs", cwd=tmp_path, env=dict(os.environ))
    assert done.returncode == 2
    assert "no libfabric.so.1 in it" in done.stderr


def _entry(image: Path, tmp_path: Path, host: tuple[Path, Path]) -> subprocess.CompletedProcess[str]:
    """The entry script by hand, with the host's folders bound where it looks for them; no windlass."""
    (tmp_path / "usr/lib64").mkdir(parents=True, exist_ok=True)
    for file in host[1].iterdir():
        shutil.copy(file, tmp_path / "usr/lib64")
    script = tmp_path / "entry"
    script.write_text(entry_script())
    binds = ("-b", f"{host[0]}:/host/lib", "-b", f"{tmp_path}/usr:/host/usr")
    argv = ["ch-run", *binds, str(image), "--", "sh", str(script), "fi_toy", "cxi"]
    env = {"PATH": os.environ["PATH"], "USER": "root", "HOME": str(tmp_path), "TMPDIR": ""}
    del env["TMPDIR"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, env=env)


def test_the_entry_script_swaps_the_libraries_without_windlass(image: Path, tmp_path: Path) -> None:
    require_containers()
    done = _entry(image, tmp_path, new_host(tmp_path / "host"))
    assert done.returncode == 0, done.stderr
    assert "libfabric 2: tcp cxi" in done.stdout
    assert "loaded /host/lib/libfabric.so.1" in done.stdout
    assert "loaded /lib/x86_64-linux-gnu/libc.so.6" in done.stdout, "the C library stays the image's"


def test_the_entry_script_goes_on_with_the_images_own_where_the_hosts_does_not_fit(image: Path, tmp_path: Path) -> None:
    require_containers()
    front, deps = new_host(tmp_path / "host")
    (deps / "libtoyjson.so.5").unlink()
    library(deps / "libother.so.1")
    done = _entry(image, tmp_path, (front, deps))
    assert done.returncode == 61, done.stdout
    assert "the host's libfabric does not fit this image" in done.stderr
    assert "libtoyjson.so.5" in done.stderr, "it names what is missing"
    assert "provider cxi is missing" in done.stderr
