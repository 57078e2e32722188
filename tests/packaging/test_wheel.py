"""The wheel, the sdist and the zip application, used from a folder outside the checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import msgspec
import pytest
from interpreters import LOGIN, interpreters

from requirements import require
from windlass.cli.main import command_names

ROOT = Path(__file__).parents[2]
_BUILD = """\
import os, sys
from setuptools import build_meta
os.chdir(sys.argv[1])
print(getattr(build_meta, "build_" + sys.argv[2])(sys.argv[3]))
"""
# Each runs without a cluster, with the exit code that it must give. Every command of windlass has a row.
INVOCATIONS: tuple[tuple[int, str], ...] = (
    (0, "run --ranks-per-node 2 hello.py"),
    (0, "plan --site lumi --nodes 2 hello.py"),
    (0, "submit --dry-run --site frontier --account x --nodes 2 hello.py"),
    (2, "alloc --nodes 2"),
    (0, "explain --site lumi NCCL_SOCKET_IFNAME"),
    (2, "diff none.json none.json"),
    (0, "sites list"),
    (0, "sites show aurora"),
    (0, "logs"),
    (0, "watch --demo --once"),
    (2, "exec -- true"),
    (0, "runs list"),
    (0, "runs show"),
    (0, "report --format text"),
    (0, "nodes list"),
    (0, "doctor --quick"),
    (0, "explain-log hello.log"),
    (0, "bench reference collectives"),
    (2, "tune"),
    (0, "cache trace list"),
    (2, "stage"),
    (0, "init"),
    (0, "completion bash"),
    (0, "image plan pytorch-ngc"),
    (0, "bugreport --without doctor -o report.tar.gz"),
    (0, "env plan --site frontier"),
    (0, "env plan --site aurora"),
    (0, "selftest --help"),
)
_DRIVER = """\
import contextlib, io, json, shlex, sys, traceback
from windlass.cli.main import main
for code, line in json.loads(sys.argv[1]):
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            seen = main(shlex.split(line))
    except SystemExit as end:
        seen = end.code or 0
    except BaseException:
        seen = traceback.format_exc()
    if seen != code:
        print(f"windlass {line}: {seen}, expected {code}: {out.getvalue()[-2000:]}")
import windlass
print(windlass.__file__)
"""


def _sources(target: Path) -> Path:
    """The files that git tracks and the build reads."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, tracked.decode().split("\0")):
        if (name.startswith(("src/", "tests/")) or "/" not in name) and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def _built(source: Path, kind: str, target: Path) -> Path:
    target.mkdir(exist_ok=True)
    argv = [sys.executable, "-c", _BUILD, str(source), kind, str(target)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return target / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return _built(_sources(folder / "source"), "wheel", folder / "dist")


def _held(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    tracked = subprocess.run(["git", "ls-files", "src/windlass"], cwd=ROOT, capture_output=True, text=True, check=True)
    wanted = {name.removeprefix("src/") for name in tracked.stdout.split() if (ROOT / name).is_file()}
    held = {name for name in _held(wheel) if ".dist-info/" not in name}
    assert held == wanted
    assert any(name.endswith("/licenses/LICENSE") for name in _held(wheel))


def test_a_wheel_made_from_the_sdist_is_the_same(wheel: Path, tmp_path: Path) -> None:
    sdist = _built(_sources(tmp_path / "source"), "sdist", tmp_path / "dist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (root,) = (tmp_path / "unpacked").iterdir()
    assert not (root / "tests").exists(), "tests are not part of the sdist"
    assert _held(_built(root, "wheel", tmp_path / "again")) == _held(wheel)


def _works(folder: Path, python: str, *start: str, **env: str) -> None:
    """Run every invocation in one process of that Python, in an empty folder."""
    missing = {name for name in command_names() if not any(line.split()[0] == name for _, line in INVOCATIONS)}
    assert not missing, f"add an invocation for {', '.join(sorted(missing))}"
    cwd = folder / "elsewhere"
    cwd.mkdir()
    (cwd / "hello.py").write_text("print('hello')\n")
    (cwd / "hello.log").write_text("rank 0: hello\n")
    environ = {"PATH": os.environ["PATH"], "HOME": str(cwd), "WINDLASS_RUNS": str(cwd / "runs"), **env}
    done = subprocess.run(
        [python, *start, json.dumps(INVOCATIONS)], cwd=cwd, env=environ, capture_output=True, text=True, timeout=240
    )
    *wrong, where = [line for line in done.stdout.splitlines() if not line.startswith("windlass 0.")] or [""]
    assert done.returncode == 0, done.stderr[-3000:]
    assert not wrong, "\n".join(wrong)
    assert str(ROOT) not in where, f"ran {where}, not the package that was built"


def _unpacked(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    (folder / "msgspec").symlink_to(Path(msgspec.__file__).parent)
    return folder


def test_every_command_runs_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    site = _unpacked(wheel, tmp_path / "site")
    _works(tmp_path, sys.executable, "-S", "-c", _DRIVER, PYTHONPATH=str(site))


def test_every_command_runs_from_the_zip_application(wheel: Path, tmp_path: Path) -> None:
    _works(tmp_path, sys.executable, *_zip_application(wheel, tmp_path, f"{sys.version_info[0]}.{sys.version_info[1]}"))


def _zip_application(wheel: Path, folder: Path, version: str) -> tuple[str, ...]:
    """The arguments that run the driver with the zip application's own start."""
    target = folder / "windlass.pyz"
    make = [sys.executable, str(ROOT / "scripts" / "make_zipapp.py"), str(wheel), str(target)]
    make += ["--pythons", version, "--machines", os.uname().machine]
    done = subprocess.run(make, capture_output=True, text=True, timeout=280)
    require("registry", done.returncode == 0, "no package registry to take msgspec from")
    start = f"import sys, runpy; sys.argv[1:1] = ['--version']; sys.argv[0] = {str(target)!r}\n"
    start += f"try:\n    runpy.run_path({str(target)!r}, run_name='__main__')\nexcept SystemExit:\n    pass\n"
    return ("-S", "-c", f"{start}del sys.argv[1]\n{_DRIVER}")


@pytest.mark.slow
@pytest.mark.parametrize("version", LOGIN)
def test_every_command_runs_under_every_python_of_this_machine(version: str, wheel: Path, tmp_path: Path) -> None:
    python = interpreters(LOGIN).get(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    _works(tmp_path, python, *_zip_application(wheel, tmp_path, version))


@pytest.mark.slow
def test_a_wheelhouse_and_the_zip_application_need_no_network(wheel: Path, tmp_path: Path) -> None:
    house, script = tmp_path / "wheelhouse", tmp_path / "hello.py"
    script.write_text("print('hello')\n")
    pip = [sys.executable, "-m", "pip"]
    fetched = subprocess.run([*pip, "download", "-q", "-d", house, wheel], capture_output=True, text=True, timeout=300)
    require("registry", fetched.returncode == 0, "no package registry to fill a wheelhouse from")
    _zip_application(wheel, tmp_path, f"{sys.version_info[0]}.{sys.version_info[1]}")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True, timeout=120)
    lines = (
        "test $(wc -l </proc/net/route) -le 1",
        "env/bin/pip install -q --no-index --find-links wheelhouse windlass",
        "env/bin/windlass run --ranks-per-node 2 hello.py",
        "env/bin/windlass plan --site lumi --nodes 2 hello.py",
        f"{sys.executable} -S windlass.pyz plan --site lumi --nodes 2 hello.py",
    )
    alone = ["unshare", "--user", "--map-root-user", "--net"]
    require("namespaces", subprocess.run([*alone, "true"], capture_output=True).returncode == 0, "no user namespaces")
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    argv = [*alone, "sh", "-exc", "ip link set lo up; " + "; ".join(lines)]
    done = subprocess.run(argv, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert done.stdout.count("hello") >= 2
