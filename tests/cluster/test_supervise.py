"""Runs that are kept alive on a real Slurm: ranks, nodes, agents and windlass itself are lost, and each time the losses
are those of an undisturbed run."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bar import BAR, HANG_AFTER_S
from cluster.command import allocated, only_run, windlass_argv
from cluster.faults import tell_fault
from cluster.slurm import Shape, SlurmCluster
from cluster.supervised import EVERY, Training, ended, reference, same, steps_done, verdict
from requirements import hydra_mpiexec, require_mpi, require_slurm, require_torch
from waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.torch, pytest.mark.timeout(600)]


@pytest.fixture
def own_slurm() -> Iterator[SlurmCluster]:
    """A cluster that may lose nodes: Slurm takes minutes to believe that one is whole again."""
    require_slurm()
    with SlurmCluster(Shape(flavour="wide")) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _torch() -> None:
    require_torch()


def test_a_killed_rank_is_named_and_the_run_goes_on_to_the_same_losses(slurm: SlurmCluster, tmp_path: Path) -> None:
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        training = Training(job=job, folder=tmp_path)
        done = job.run_python("-r", "1", "--restarts", "2", *training.words("kill:18:1"), timeout_s=240)
    assert done.code == 0, done.text
    assert "rank 1 on nid0002 was killed by SIGKILL" in done.stderr
    assert training.losses() == reference(2, tmp_path)
    assert training.repeated() <= EVERY
    found = verdict(only_run(tmp_path))
    assert (found["cause"]["rank"], found["cause"]["host"], found["cause"]["kind"]) == (1, "nid0002", "transient")
    assert found["decision"]["action"] == "restart"
    same("a rank killed with SIGKILL", training)


@pytest.mark.slow
def test_forked_ranks_go_on_in_the_same_step_of_srun_to_the_same_losses(slurm: SlurmCluster, tmp_path: Path) -> None:
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        training = Training(job=job, folder=tmp_path)
        faults = ("warm:8:1", "warm:14:0", "bare:20:1")
        done = job.run_python("-r", "2", "--restarts", "3", *training.words(*faults), timeout_s=400)
    assert done.code == 0, done.text
    assert training.losses() == reference(4, tmp_path)
    run = only_run(tmp_path)
    assert len(list(run.path.glob("attempt-*/verdict.json"))) == len(faults)
    assert not list(run.path.glob("attempt-*/launcher.log"))  # one step of srun
    logs = "".join(path.read_text() for path in (run.path / "out").iterdir())
    assert logs.count("starts with a fresh interpreter") == 2  # on the node whose standby was killed
    assert len((run.path / "where" / "0").read_text().splitlines()) == 2


def test_a_stopped_rank_is_a_hang_that_is_seen_named_and_survived(slurm: SlurmCluster, tmp_path: Path) -> None:
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        training = Training(job=job, folder=tmp_path)
        words = ("-r", "1", "--restarts", "1", "--hang-after", "8", "--grace", "1", *training.words("stop:13:1"))
        done = job.run_python(*words, timeout_s=240)
    assert done.code == 0, done.text
    assert "rank 1 on nid0002 blocks the others: no output and no step for" in done.stderr
    assert "stopped (SIGSTOP)" in done.stderr
    assert training.losses() == reference(2, tmp_path)
    assert training.repeated() <= EVERY
    run = only_run(tmp_path)
    assert verdict(run)["cause"]["kind"] == "hang"
    where = (run.path / "attempt-1" / "evidence" / "standing.txt").read_text()
    same("a rank stopped with SIGSTOP", training)
    assert "rank 1 stopped" in where and "rank 0 in all_reduce" in where.replace("wrapper", "all_reduce"), where


@pytest.mark.parametrize("launcher", ["srun", pytest.param("hydra", marks=pytest.mark.slow)])
def test_a_progress_bar_is_output_and_no_hang(slurm: SlurmCluster, tmp_path: Path, launcher: str) -> None:
    if launcher == "hydra":
        require_mpi()
    path = {"PATH": f"{hydra_mpiexec().parent}:{os.environ['PATH']}"} if launcher == "hydra" else {}
    (tmp_path / "bar.py").write_text(BAR)
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        words = ("--launcher", launcher, "-r", "1", "--restarts", "0", "--hang-after", str(HANG_AFTER_S), "bar.py")
        done = job.run_python(*words, timeout_s=120, env=path)
    assert done.code == 0, done.text
    assert "no output" not in done.stderr, done.text


@pytest.mark.slow
def test_two_failures_in_a_row_are_survived(slurm: SlurmCluster, tmp_path: Path) -> None:
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        training = Training(job=job, folder=tmp_path)
        words = ("-r", "1", "--restarts", "1", *training.words("kill:8:0", "kill:18:1"))
        done = job.run_python(*words, timeout_s=240)
    assert done.code == 0, done.text
    assert training.losses() == reference(2, tmp_path)
    run = only_run(tmp_path)
    assert [verdict(run, at)["cause"]["rank"] for at in (1, 2)] == [0, 1]
    assert training.repeated() <= 2 * EVERY
    same("two failures in a row", training, allowed=2 * EVERY)


def test_a_lost_node_is_replaced_by_a_spare_and_remembered(own_slurm: SlurmCluster, tmp_path: Path) -> None:
    slurm = own_slurm
    state = {"WINDLASS_STATE": str(tmp_path / "state")}
    with allocated(slurm, tmp_path, "-N3", "--exclusive", "--no-kill") as job:
        training = Training(job=job, folder=tmp_path)
        words = ("-r", "1", "--spares", "1", "--grace", "1", *training.words("wait:13:1"))
        argv = windlass_argv("run", "--python", sys.executable, *words)
        child = slurm.popen(argv, env={**job.env, **state}, cwd=tmp_path)
        with ended(child):
            wait_until((tmp_path / "a.marks" / "0.wait").exists, timeout_s=240, what="rank 1 is at step 13")
            lose_node(slurm, "nid0002")
            _, said = child.communicate(timeout=240)
            assert child.returncode == 0, said
            assert "node nid0002 no longer responds" in said, said
            known = job.windlass("nodes", "list", env=state)
    assert training.losses() == reference(2, tmp_path)
    assert training.repeated() <= EVERY
    assert only_run(tmp_path).result["hosts"] == "nid[0001,0003]"
    assert "nid0002" in known.stdout
    same("a node lost: slurmd, its step daemons and ranks killed together", training)


def lose_node(slurm: SlurmCluster, node: str) -> None:
    """Kill slurmd, its step daemons and everything that they run, as when the power goes."""
    mark = f"SLURMD_NODENAME={node}".encode()
    ranks = [pid for pid in slurm.step_processes() if mark in _environ(pid)]
    daemons = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in ranks}
    stepds = [pid for pid in daemons if Path(f"/proc/{pid}/comm").read_text().startswith("slurmstepd")]
    for pid in (slurm.daemon_pid(node), *stepds, *ranks):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


@pytest.mark.slow
def test_windlass_killed_outright_can_be_resumed(slurm: SlurmCluster, tmp_path: Path) -> None:
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        training = Training(job=job, folder=tmp_path)
        child = job.popen("-r", "1", "--restarts", "1", *training.words("wait:18:1"))
        with ended(child):
            wait_until((tmp_path / "a.marks" / "0.wait").exists, timeout_s=240, what="rank 1 is at step 18")
            child.kill()
            child.communicate(timeout=20)
        wait_until(lambda: not _ranks(slurm), timeout_s=30, what="all ranks are gone", state=slurm.state)
        listed = job.windlass("runs", "list")
        assert "killed" in listed.stdout, listed.text
        done = job.windlass("runs", "resume", str(only_run(tmp_path).path), timeout_s=240)
    assert done.code == 0, done.text
    assert training.losses() == reference(2, tmp_path)
    assert training.repeated() <= EVERY
    seen = "`windlass runs list`: killed, windlass died without a record"
    same("windlass itself killed with SIGKILL, then `windlass runs resume`", training, seen=seen)


def _ranks(slurm: SlurmCluster) -> list[str]:
    return [words for words in slurm.step_processes().values() if "training.py" in words]


@pytest.mark.slow
def test_a_mistake_in_the_script_ends_after_the_second_time_with_its_traceback(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        training = Training(job=job, folder=tmp_path)
        words = ("-r", "1", "--restarts", "5", "--show", "none", *training.words("raise:13:1", "raise:13:1"))
        done = job.run_python(*words, timeout_s=240)
    assert done.code == 1, done.text
    assert "the same error at the same step twice" in done.stderr
    lines = [line for line in done.stderr.splitlines() if "Traceback" in line or "rank 1 on nid0002" in line]
    assert "ValueError: a mistake in the user's code" in lines[-2] and "Traceback" in lines[-1], done.text
    path = only_run(tmp_path).path
    tell_fault("a mistake in the script", path, repeated=training.repeated(), losses="ends, with its traceback")


@pytest.mark.slow
def test_a_killed_agent_is_missed_but_the_run_goes_on(slurm: SlurmCluster, tmp_path: Path) -> None:
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        training = Training(job=job, folder=tmp_path)
        child = job.popen("-r", "1", "--restarts", "1", *training.words(pause=0.2))
        with ended(child):
            wait_until(lambda: steps_done(training) >= 3, timeout_s=240, what="step 3")
            agents = [pid for pid in _on_node(slurm, "nid0002") if "windlass.node.agent" in _words(pid)]
            assert agents, slurm.step_processes()
            for pid in agents:
                os.kill(pid, signal.SIGKILL)
            _, said = child.communicate(timeout=240)
        assert child.returncode == 0, said
    assert "the agent on nid0002 ended" in said
    assert training.losses() == reference(2, tmp_path)
    same("an agent killed with SIGKILL", training, allowed=0, seen="the agent on nid0002 ended")


def _on_node(slurm: SlurmCluster, node: str) -> list[int]:
    return [pid for pid in slurm.step_processes() if f"SLURMD_NODENAME={node}".encode() in _environ(pid)]


def _words(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


@pytest.mark.slow
@pytest.mark.mpi
def test_a_node_whose_ranks_die_twice_is_replaced_through_a_host_file_too(slurm: SlurmCluster, tmp_path: Path) -> None:
    require_mpi()
    path = {"PATH": f"{hydra_mpiexec().parent}:{os.environ['PATH']}", "WINDLASS_STATE": str(tmp_path / "state")}
    with allocated(slurm, tmp_path, "-N3", "--exclusive") as job:
        training = Training(job=job, folder=tmp_path)
        words = ("--launcher", "hydra", "-r", "1", "--spares", "1", *training.words("kill:8:1", "kill:18:1"))
        done = job.run_python(*words, timeout_s=240, env=path)
    assert done.code == 0, done.text
    assert "a spare node replaces nid0002" in done.stderr, done.text
    assert training.losses() == reference(2, tmp_path)
    run = only_run(tmp_path)
    assert [verdict(run, at)["cause"]["host"] for at in (1, 2)] == ["nid0002", "nid0002"]
    assert run.result["hosts"] == "nid[0001,0003]"
    same("a rank killed twice on one node, under hydra", training, allowed=2 * EVERY)
