"""Requests to save and to stop, handed on through the real hydra and Open MPI: they arrive, and the ranks get time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from requirements import hydra_mpiexec, require, require_mpi
from waiting import wait_until

pytestmark = pytest.mark.timeout(240)

# Rank 0 leaves at once, rank 1 takes longer than a launcher waits by itself. A helper listens to nothing.
SCRIPT = """
import os, signal, subprocess, sys, time
helper = subprocess.Popen(["sleep", "100"])
rank = int(os.environ["RANK"])
def asked(number, frame):
    time.sleep(4 * rank)
    lives = helper.poll() is None
    helper.kill()
    open(f"saved.{rank}", "w").write(f"{signal.Signals(number).name} {lives}")
    os._exit(85)
signal.signal(getattr(signal, sys.argv[1]), asked)
open(f"up.{rank}", "w").close()
time.sleep(100)
"""


def _environ(launcher: str, folder: Path) -> dict[str, str]:
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    if launcher == "hydra":
        require_mpi()
        (bin_folder / "mpiexec").write_text(
            f'#!/bin/sh\nexec {hydra_mpiexec()} "$@"\n'
        )  # it looks for its proxy beside it
        (bin_folder / "mpiexec").chmod(0o755)
    else:
        program = shutil.which("mpirun.openmpi")
        require("openmpi", program is not None, "no mpirun.openmpi in PATH (Debian's openmpi-bin)")
        (bin_folder / "mpirun").symlink_to(str(program))
    mine = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "PMI", "OMPI", "HYDRA"))}
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**mine, **root, "PATH": f"{bin_folder}:{mine['PATH']}"}


@pytest.mark.parametrize("launcher", ["hydra", "openmpi"])
@pytest.mark.parametrize(("sent", "arrives", "code"), [("SIGUSR2", "SIGUSR2", 85), ("SIGTERM", "SIGTERM", 143)])
def test_every_rank_is_asked_and_saves_in_its_own_time(
    tmp_path: Path, launcher: str, sent: str, arrives: str, code: int
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ("run", "--site", "workstation", "--launcher", launcher, "-r", "2", "--grace", "60", "--run-dir", "run")
    argv = (sys.executable, "-m", "windlass", *words, "train.py", arrives)
    with subprocess.Popen(
        argv,
        env=_environ(launcher, tmp_path),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as child:
        try:
            wait_until(lambda: len(list(tmp_path.glob("up.*"))) == 2, timeout_s=90, what="both ranks are up")
            child.send_signal(getattr(signal, sent))
            said, _ = child.communicate(timeout=90)
        finally:
            child.kill()
    saved = {path.name: path.read_text().split() for path in tmp_path.glob("saved.*")}
    assert set(saved) == {"saved.0", "saved.1"}, said
    assert {name for name, _ in saved.values()} == {arrives}
    assert arrives == "SIGTERM" or {lives for _, lives in saved.values()} == {"True"}, "a helper was hit"
    assert child.returncode == code, said


# Rank 1 fails when rank 0 is up, which then takes longer than a launcher waits by itself.
FAILS = """
import os, pathlib, signal, sys, time
up = pathlib.Path("up")
def asked(number, frame):
    time.sleep(3)
    pathlib.Path("saved").touch()
    sys.exit(0)
if os.environ["RANK"] == "1":
    while not up.exists():
        time.sleep(0.05)
    sys.exit(7)
signal.signal(signal.SIGTERM, asked)
up.touch()
time.sleep(100)
"""


def test_the_others_have_their_time_when_a_rank_fails_under_open_mpi(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FAILS)
    words = ("run", "--site", "workstation", "--launcher", "openmpi", "-r", "2", "--grace", "60", "--run-dir", "run")
    argv = (sys.executable, "-m", "windlass", *words, "train.py")
    env = _environ("openmpi", tmp_path)
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=150)
    assert (tmp_path / "saved").exists(), done.stderr
    assert done.returncode == 7, done.stderr
    assert "rank 1" in done.stderr and "exited with code 7" in done.stderr
