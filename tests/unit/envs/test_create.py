"""Environments made for real on this machine, from wheels of the test's own: nothing is downloaded."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pip
import pytest

from looping import each
from unit.cli.typed import Ended, argv, environment, windlass
from waiting import wait_until


def wheel(folder: Path, name: str, code: str, requires: str = "", script: bool = False) -> None:
    """A wheel with one module, as pip takes it."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-1.0.dist-info"
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}.py", code)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        if script:
            archive.writestr(f"{info}/entry_points.txt", f"[console_scripts]\n{name}-tool = {name}:main\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    wheel(folder, "alpha", "def main():\n    import sys\n    print('alpha of', sys.prefix)\n", script=True)
    return folder


def pip_settings(index: Path) -> dict[str, str]:
    return {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}


@pytest.fixture(scope="session")
def quick_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python whose venvs share the pip that is here: unpacking one takes most of the time."""
    path = tmp_path_factory.mktemp("quick") / "python"
    to = f"lib/python3.{sys.version_info.minor}/site-packages/pip"
    path.write_text(
        f'#!/bin/sh\n[ "$2" = venv ] || exec {sys.executable} "$@"\n'
        f'{sys.executable} -m venv --without-pip "$3" && exec ln -sfn {pip.__path__[0]} "$3/{to}"\n'
    )
    path.chmod(0o755)
    return str(path)


def create(tmp_path: Path, index: Path, *words: str, python: str = sys.executable, **more: str) -> Ended:
    base = ("env", "create", str(tmp_path / "env"), "--torch", "none", "--python", python)
    return windlass(*base, *words, cwd=tmp_path, env={**pip_settings(index), **more}, timeout_s=240)


def left(tmp_path: Path) -> set[str]:
    return {path.name for path in tmp_path.iterdir()} - {"runs", "no-config"}


@pytest.mark.apart
def test_an_environment_is_made_and_its_programs_work_under_its_final_name(tmp_path: Path, index: Path) -> None:
    (tmp_path / ".env.partial").mkdir()  # what a killed start left
    (tmp_path / ".env.partial" / "half").touch()
    made = create(tmp_path, index, "--with", "alpha", "--site", "workstation")
    assert made.code == 0, made.text
    assert "starts from the beginning" in made.stderr and not (tmp_path / "env" / "half").exists()
    assert left(tmp_path) == {"env"}
    env = tmp_path / "env"
    said = subprocess.run([env / "bin" / "alpha-tool"], capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout.strip() == f"alpha of {env}"
    activated = subprocess.run(
        ["bash", "-c", ". env/bin/activate && alpha-tool && command -v python"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert activated.stdout.splitlines() == [f"alpha of {env}", f"{env}/bin/python"]
    assert "Successfully installed alpha" in (env / "windlass-env.log").read_text()


@pytest.mark.apart
def test_a_package_that_is_not_there_leaves_the_log_and_nothing_else(
    tmp_path: Path, index: Path, quick_python: str
) -> None:
    (tmp_path / "env.log").write_text("of the user's own")
    failed = create(tmp_path, index, "--with", "alpha,nowhere-to-be-found", python=quick_python)
    assert failed.code == 3
    assert "step 'nowhere-to-be-found' failed: ERROR" in failed.stderr and "env.windlass-env.log" in failed.stderr
    assert left(tmp_path) == {"env.windlass-env.log", "env.log"}
    assert (tmp_path / "env.log").read_text() == "of the user's own"
    assert "Successfully installed alpha" in (tmp_path / "env.windlass-env.log").read_text()


@pytest.mark.apart
def test_without_a_network_the_way_out_is_named(tmp_path: Path, index: Path, quick_python: str) -> None:
    settings = {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1"}
    settings |= {"PIP_FIND_LINKS": "", "PIP_TRUSTED_HOST": "127.0.0.1"}
    failed = create(tmp_path, index, "--with", "alpha", python=quick_python, **settings)
    assert failed.code == 3 and "cannot be reached" in failed.stderr and "https_proxy" in failed.stderr
    assert left(tmp_path) == {"env.windlass-env.log"}


def interrupted(tmp_path: Path, index: Path, python: str, sig: signal.Signals) -> None:
    """Start `create`, and interrupt it in the step that makes the venv."""
    slow = tmp_path / "slow-python"
    slow.write_text(
        f'#!/bin/sh\n[ "$2" = venv ] || exec {sys.executable} "$@"\n'
        f'{python} "$@"; [ -e {tmp_path}/go ] || {{ touch {tmp_path}/made; sleep 600; }}\n'
    )
    slow.chmod(0o755)
    words = argv("env", "create", str(tmp_path / "env"), "--torch", "none", "--python", str(slow), "--with", "alpha")
    child = subprocess.Popen(words, cwd=tmp_path, env=environment(tmp_path, **pip_settings(index)))
    try:
        wait_until((tmp_path / "made").exists, timeout_s=60, what="the venv is made")
        child.send_signal(sig)
        child.wait(timeout=60)
    finally:
        child.kill()
        child.wait(timeout=10)
    assert not (tmp_path / "env").exists() and (tmp_path / "env.windlass-env.log").exists()
    assert (tmp_path / ".env.partial" / "env" / "bin" / "python").exists()


@pytest.mark.apart
@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_same_command_continues_an_interrupted_start(
    tmp_path: Path, index: Path, quick_python: str, sig: signal.Signals
) -> None:
    interrupted(tmp_path, index, quick_python, sig)
    old = tmp_path / ".env.partial" / "env" / "bin" / "mine"
    script = (tmp_path / ".env.partial" / "paths").read_text().strip()
    old.write_text(f"#!{script}/bin/python\n")  # as pip writes the scripts of packages
    (tmp_path / "go").touch()
    made = create(tmp_path, index, "--with", "alpha", python=str(tmp_path / "slow-python"))
    assert made.code == 0 and "it continues in" in made.stderr, made.text
    assert left(tmp_path) == {"env", "slow-python", "go", "made"}
    assert (tmp_path / "env" / "bin" / "mine").read_text() == f"#!{tmp_path}/env/bin/python\n"
    said = subprocess.run([tmp_path / "env/bin/alpha-tool"], capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout.strip() == f"alpha of {tmp_path / 'env'}"


@pytest.mark.apart
def test_a_copy_of_an_interrupted_start_is_not_continued(tmp_path: Path, index: Path, quick_python: str) -> None:
    """An unpacked archive may contain one, with programs of another person."""
    interrupted(tmp_path, index, quick_python, signal.SIGKILL)
    partial, theirs = tmp_path / ".env.partial", tmp_path / "theirs"
    partial.rename(theirs)
    shutil.copytree(theirs, partial, symlinks=True)
    (partial / "env" / "stale").touch()
    (tmp_path / "go").touch()
    made = create(tmp_path, index, "--with", "alpha", python=str(tmp_path / "slow-python"))
    assert made.code == 0 and "starts from the beginning" in made.stderr, made.text
    assert not (tmp_path / "env" / "stale").exists()


@pytest.mark.apart
def test_another_command_begins_anew_after_an_interrupted_start(tmp_path: Path, index: Path, quick_python: str) -> None:
    interrupted(tmp_path, index, quick_python, signal.SIGKILL)
    (tmp_path / ".env.partial" / "env" / "stale").touch()
    made = create(tmp_path, index, "--with", "alpha", python=quick_python)
    assert made.code == 0 and "starts from the beginning" in made.stderr, made.text
    assert not (tmp_path / "env" / "stale").exists()


@pytest.mark.apart
def test_the_same_command_does_nothing_the_second_time(tmp_path: Path, index: Path, quick_python: str) -> None:
    made = create(tmp_path, index, "--with", "alpha", python=quick_python)
    assert "to download: 1 package" in made.stderr, made.text
    before = (tmp_path / "env" / "windlass-env.json").stat()  # not atime: reading may change it
    again = create(tmp_path, index, "--with", "alpha", python=quick_python)
    assert again.code == 0 and "nothing was done" in again.stdout
    after = (tmp_path / "env" / "windlass-env.json").stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )
    other = create(tmp_path, index, python=quick_python)
    assert other.code == 2 and "already exists" in other.stderr and left(tmp_path) == {"env"}


def test_two_at_once_do_not_share_a_name(tmp_path: Path, index: Path) -> None:
    import fcntl

    with (tmp_path / ".env.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = create(tmp_path, index, "--with", "alpha")
    assert refused.code == 2 and "another windlass is making" in refused.stderr


@each("site", ["frontier", "lumi"])
def test_what_cannot_be_made_here_is_refused_with_the_script_as_the_way(site: str, tmp_path: Path) -> None:
    refused = windlass("env", "create", str(tmp_path / "env"), "--site", site, cwd=tmp_path)
    assert refused.code == 2 and "cannot be made here: this is " in refused.stderr
    assert f"windlass env plan --site {site} --format script" in refused.stderr
    assert left(tmp_path) == set()


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = windlass("env", "create", str(tmp_path / "file" / "env"), cwd=tmp_path)
    assert refused.code == 2 and "cannot make" in refused.stderr
