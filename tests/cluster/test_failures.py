"""When a launch fails: the first failing rank is named, the others end within seconds, and nothing survives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cluster.command import SHOW, Allocation, allocated, only_run, windlass_argv, windlass_env
from cluster.slurm import SlurmCluster
from requirements import hydra_mpiexec, require_mpi
from waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(180)]

# Rank 2 does something; the others would work for ten minutes. `grandchild` makes the work look like a data loader's.
_SCRIPT = """
import os, signal, subprocess, sys, time
rank, how = int(os.environ["RANK"]), sys.argv[1]
if "grandchild" in sys.argv:
    subprocess.Popen(["sleep", "600"])
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(f"rank {rank} began", flush=True)
open(os.path.join(sys.argv[2], f"began.{rank}"), "w").close()
if rank == 2:
    while len([n for n in os.listdir(sys.argv[2]) if n.startswith("began.")]) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.02)
    print("about to fail: the reason", flush=True)
    if how == "exit":
        sys.exit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "raise":
        raise RuntimeError("loss is nan")
time.sleep(600)
"""


@pytest.fixture
def script(hostile_dir: Path) -> Path:
    path = hostile_dir / "rank work.py"
    path.write_text(_SCRIPT)
    (hostile_dir / "began").mkdir()
    return path


def _words(script: Path, how: str, *more: str) -> tuple[str, ...]:
    return ("-r", "2", str(script), how, str(script.parent / "began"), *more)


def _all_began(script: Path, count: int) -> bool:
    return len(list((script.parent / "began").iterdir())) == count


def _check_named(stderr: str, how: str) -> None:
    first = next(line for line in stderr.splitlines() if "rank 2" in line)
    assert "nid0002" in first
    assert how in first
    assert "about to fail: the reason" in stderr


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [("exit", 3, "exited with code 3"), ("raise", 1, "exited with code 1"), ("kill", 137, "killed by SIGKILL")],
)
def test_the_failing_rank_is_named_and_all_others_end(
    slurm: SlurmCluster, hostile_dir: Path, script: Path, how: str, code: int, said: str
) -> None:
    with allocated(slurm, hostile_dir, "-N3", "--exclusive") as job:
        began = time.monotonic()
        done = job.run_python(*_words(script, how, "grandchild"), timeout_s=60)
        seconds = time.monotonic() - began
        wait_until(lambda: not _rank_processes(slurm), timeout_s=15, what="all ranks are gone", state=slurm.state)
    assert done.code == code, done.text
    _check_named(done.stderr, said)
    assert seconds < 45, "the others were not ended"
    failure = only_run(hostile_dir).result["failure"]
    assert (failure["rank"], failure["host"]) == (2, "nid0002")


def _rank_processes(slurm: SlurmCluster) -> list[str]:
    """Ranks and what they started; step daemons go a little later."""
    return [words for words in slurm.step_processes().values() if "rank work.py" in words or "sleep 600" in words]


def test_ranks_that_ignore_sigterm_are_killed_after_the_grace(
    slurm: SlurmCluster, hostile_dir: Path, script: Path
) -> None:
    with allocated(slurm, hostile_dir, "-N2", "--exclusive") as job:
        done = job.run_python("--grace", "1", *_words(script, "exit", "stubborn", "grandchild"), timeout_s=60)
        wait_until(lambda: not _rank_processes(slurm), timeout_s=15, what="all ranks are gone", state=slurm.state)
    assert done.code == 3, done.text


def _interrupted(job: Allocation, script: Path, sig: signal.Signals, *more: str) -> tuple[int, str]:
    """Exit code and stderr of a run that got a signal while all four ranks worked."""
    child = job.popen(*_words(script, "wait", "grandchild", *more))
    try:
        wait_until(lambda: _all_began(script, 4) or child.poll() is not None, timeout_s=60, what="all ranks work")
        assert child.poll() is None, child.communicate()
        child.send_signal(sig)
        _, stderr = child.communicate(timeout=45)
    except BaseException:
        child.kill()
        child.communicate(timeout=30)
        raise
    wait_until(lambda: not _rank_processes(job.cluster), timeout_s=15, what="no rank", state=job.cluster.state)
    return child.returncode, stderr


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_windlass_stops_everything_everywhere(
    slurm: SlurmCluster, hostile_dir: Path, script: Path, sig: signal.Signals
) -> None:
    with allocated(slurm, hostile_dir, "-N2", "--exclusive") as job:
        code, stderr = _interrupted(job, script, sig)
        assert code == 128 + sig, stderr
        assert sig.name in stderr
        assert only_run(hostile_dir).result["outcome"] == "stopped"
        again = job.run_python("-r", "1", str(SHOW))
        assert again.code == 0, "the allocation is usable afterwards"


def test_windlass_killed_outright_takes_its_ranks_along(slurm: SlurmCluster, hostile_dir: Path, script: Path) -> None:
    with allocated(slurm, hostile_dir, "-N2", "--exclusive") as job:
        code, _ = _interrupted(job, script, signal.SIGKILL)
    assert code == -signal.SIGKILL


@pytest.mark.mpi
@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_ranks_of_hydra_too(
    slurm: SlurmCluster, hostile_dir: Path, script: Path, sig: signal.Signals
) -> None:
    require_mpi()
    with allocated(slurm, hostile_dir, "-N2", "--exclusive") as job:
        path = {"PATH": f"{hydra_mpiexec().parent}:{os.environ['PATH']}"}
        hydra = Allocation(cluster=slurm, folder=hostile_dir, job_env={**job.job_env, **path})
        argv = windlass_argv("run", "--python", sys.executable, "--launcher", "hydra", *_words(script, "wait"))
        child = slurm.popen(argv, env=hydra.env, cwd=hostile_dir)
        try:
            wait_until(lambda: _all_began(script, 4) or child.poll() is not None, timeout_s=60, what="all ranks work")
            child.send_signal(sig)
            _, stderr = child.communicate(timeout=45)
        except BaseException:
            child.kill()
            child.communicate(timeout=30)
            raise
        assert child.returncode == 128 + sig, stderr
        wait_until(lambda: not _rank_processes(slurm), timeout_s=15, what="no rank", state=slurm.state)


def test_a_cancelled_job_leaves_nothing(slurm: SlurmCluster, hostile_dir: Path, script: Path) -> None:
    words = ("--python", sys.executable, "-N", "2", *_words(script, "wait", "grandchild"))
    said = slurm.run(windlass_argv("submit", *words), env=windlass_env(hostile_dir), cwd=hostile_dir)
    assert said.code == 0, said.text
    wait_until(lambda: _all_began(script, 4), timeout_s=60, what="all ranks work", state=slurm.state)
    slurm.run(["scancel", said.stdout.strip()], check=True)
    slurm.wait_quiet(timeout_s=30)


def test_on_one_machine_the_same_holds(slurm: SlurmCluster, hostile_dir: Path, script: Path) -> None:
    words = ("--scheduler", "none", "-r", "3", "--python", sys.executable, str(script), "exit")
    argv = windlass_argv("run", *words, str(hostile_dir / "began"), "grandchild")
    done = slurm.run(argv, env=windlass_env(hostile_dir), cwd=hostile_dir, timeout_s=60)
    assert done.code == 3, done.text
    assert "rank 2" in done.stderr
    assert "about to fail: the reason" in done.stderr
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, timeout=30, check=True).stdout
    assert str(script) not in left


# Rank 1 dies of an error of its own, slowly; rank 0 notices that its peer is gone and is gone first.
_SLOW_END = """
import atexit, os, pathlib, sys, time
mark = pathlib.Path(sys.argv[1])
def linger():
    mark.touch()
    time.sleep(120)
if os.environ["RANK"] == "1":
    atexit.register(linger)
    raise ValueError("a mistake")
while not mark.exists():
    time.sleep(0.02)
raise RuntimeError("Connection reset by peer")
"""


def test_a_rank_that_its_peers_outran_while_it_failed_gives_the_run_its_own_code(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    script = tmp_path / "slow_end.py"
    script.write_text(_SLOW_END)
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        done = job.run_python("-r", "1", "--hang-after", "600", "--show", "none", str(script), str(tmp_path / "mark"))
    assert done.code == 1, done.text
    assert "rank 1 on nid0002 exited with code 1: ValueError: a mistake" in done.stderr
    assert only_run(tmp_path).result["exit_code"] == 1


def test_killing_the_ranks_of_one_run_spares_another_of_the_same_name(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Two runs in one allocation; the ranks of the first do not listen to SIGTERM."""
    waits = "trap '' TERM; touch started.$1; while [ ! -e go ]; do sleep 0.1; done"
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:

        def start(name: str, host: str) -> subprocess.Popen[str]:
            size = ("--hosts", host, "-r", "1", "--name", "same", "--grace", "1", "--show", "none")
            return job.popen(*size, "--run-dir", str(tmp_path / name), "--", "sh", "-c", waits, "sh", name)

        with start("one", "nid0001") as one, start("two", "nid0002") as two:
            wait_until(lambda: len(list(tmp_path.glob("started.*"))) == 2, timeout_s=100, what="both run")
            one.send_signal(signal.SIGTERM)
            one.communicate(timeout=60)
            (tmp_path / "go").touch()
            said = two.communicate(timeout=60)
        assert one.returncode == 128 + signal.SIGTERM
        assert two.returncode == 0, said
