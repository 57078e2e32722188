"""windlass on a PBS machine with PALS and on a Flux machine, both pretended: submitted, run, failed, cancelled."""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.launcher_cases import HOSTILE
from conformance.machines import OVER, Machine, machine, machine_of
from standins.sites import real
from waiting import wait_until
from windlass.backends.schedulers import get_scheduler
from windlass.backends.schedulers.base import JobState
from windlass.run.failure.rank_logs import rank_logs
from windlass.run.folder import read_plan

__all__ = ["machine"]

pytestmark = pytest.mark.apart

WORDS = [word for word in HOSTILE if "{" not in word]


def test_a_job_starts_every_rank_at_its_place(machine: Machine) -> None:
    script = 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $(uname -n) $MASTER_ADDR"'
    job_id = machine.submit("sh", "-c", script)
    assert machine.wait(job_id, OVER) == (JobState.DONE, 0), machine.log()
    said = [machine.lines(rank)[-1].split() for rank in range(4)]
    assert [line[:4] for line in said] == [[str(r), str(r % 2), "4", f"node{1 + r // 2}"] for r in range(4)]
    assert len({line[4] for line in said}) == 1


def test_hostile_arguments_arrive_byte_for_byte(machine: Machine) -> None:
    job_id = machine.submit(sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))", *WORDS)
    assert machine.wait(job_id, OVER) == (JobState.DONE, 0), machine.log()
    assert [json.loads(machine.lines(rank)[-1]) for rank in range(4)] == [WORDS] * 4


def test_a_standalone_script_needs_no_windlass_in_the_job(machine: Machine) -> None:
    (machine.site.home / ".bash_profile").write_text(
        "".join(f"PATH={shlex.quote(path)}:$PATH\n" for path in machine.site.env["PATH"].split(":")[:2])
    )
    job_id = machine.submit("sh", "-c", 'echo "$RANK {rank}"', options=("--standalone",))
    assert machine.wait(job_id, OVER)[0] is JobState.DONE, machine.log()


@pytest.mark.parametrize(("how", "code"), [("exit 3", 3), ("kill -9 $$", 137)])
def test_a_failing_rank_ends_the_job_with_its_own_code(machine: Machine, how: str, code: int) -> None:
    job_id = machine.submit("sh", "-c", f"if [ $RANK = 2 ]; then echo last words; {how}; fi; exec sleep 60")
    assert machine.wait(job_id, OVER) == (JobState.FAILED, code), machine.log()
    assert "rank 2 on node2" in machine.log()
    assert "last words" in machine.log()


SSH = """#!/bin/sh
[ "$1 $2 $3 $4 $5" = "-o BatchMode=yes -o ConnectTimeout=10 --" ] || exit 255
echo "$6" >> "$HOME/ssh.hosts"; shift 6; exec sh -c "$*"
"""


def test_a_cancelled_job_leaves_nothing_and_a_running_one_is_entered(machine: Machine) -> None:
    ssh = machine.site.home / "ssh" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    machine.site.env["PATH"] = f"{ssh.parent}:{machine.site.env['PATH']}"
    job_id = machine.submit("sh", "-c", "touch started.$RANK; exec sleep 60")
    wait_until(
        lambda: len(list(machine.site.home.glob("started.*"))) == 4, timeout_s=40, what="all run", state=machine.log
    )
    said = machine.windlass(
        "exec", "run", "--rank", "2", "--", "sh", "-c", 'cat "/proc/$WINDLASS_RANK_PID/comm"; exit 4'
    )
    assert (said.returncode, said.stdout) == (4, "sleep\n"), said.stderr
    if machine.scheduler == "pbs":  # a Flux instance around the job reaches its nodes itself
        assert (machine.site.home / "ssh.hosts").read_text() == "node2.cluster.test\n"
    assert machine.windlass("exec", "run", "--timeout", "1", "--", "sleep", "77").returncode == 124
    argv = get_scheduler(machine.scheduler).cancel_argv(job_id)
    assert subprocess.run(argv, env=machine.site.env, timeout=30).returncode == 0
    assert machine.wait(job_id, OVER)[0] is not JobState.DONE


def test_a_bad_queue_is_refused_with_a_hint(machine: Machine) -> None:
    done = machine.windlass(
        "submit",
        *machine.words,
        "--nodes",
        "1",
        "--ranks-per-node",
        "1",
        "--queue",
        "nosuch",
        "--run-dir",
        "r",
        "--",
        "true",
    )
    assert done.returncode == 2
    assert "queue" in done.stderr
    assert "hint" in done.stderr


def test_a_live_run_is_neither_started_again_nor_removed_where_pbs_keeps_no_history(tmp_path: Path) -> None:
    """Also where nobody answers at all: what may live is not dead."""
    with machine_of("pbs", tmp_path / "site") as machine:
        site = machine.site
        site.env.update(STANDIN_HISTORY="off", WINDLASS_RUNS=str(site.home))
        job_id = machine.submit("sh", "-c", "touch started.$RANK; while [ ! -e go ]; do sleep 0.1; done")
        wait_until(lambda: len(list(site.home.glob("started.*"))) == 4, timeout_s=60, what="runs", state=machine.log)
        owner = json.loads((site.home / "run" / "owner.json").read_text())
        (site.home / "run" / "owner.json").write_text(json.dumps({**owner, "host": "elsewhere", "boot": "another"}))
        for path, word in ((site.env["PATH"], "is running"), ("/usr/bin:/bin", "may still run")):
            there = replace(machine, site=replace(site, env={**site.env, "PATH": path}))
            again = there.windlass("runs", "resume", "run")
            assert (again.returncode, word in again.stderr) == (2, True), again.stderr
            assert "nothing to remove" in there.windlass("runs", "clean", "--failed", "--yes").stdout
        (site.home / "go").touch()
        scheduler = get_scheduler("pbs")

        def gone() -> bool:
            argv = scheduler.status_argv(job_id)
            done = subprocess.run(argv, env=site.env, capture_output=True, text=True, timeout=30)
            return scheduler.parse_status(done.stdout, done.returncode, job_id).gone

        wait_until(gone, timeout_s=60, what="the job is forgotten", state=machine.log)
        assert ": done" in machine.windlass("runs", "show", "run").stdout


def test_a_printed_script_runs_as_it_is(machine: Machine) -> None:
    home = machine.site.home
    asked = ("--nodes", "2", "--ranks-per-node", "2", "--time", "5")
    printed = machine.windlass("submit", "--dry-run", *machine.words, *asked, "--", "sh", "-c", "echo I am $RANK")
    assert printed.returncode == 0 and not (home / "runs").exists(), printed.stderr
    script = home / "printed.sh"
    script.write_text(printed.stdout)
    scheduler = get_scheduler(machine.scheduler)
    argv = scheduler.submit_argv(str(script))
    done = subprocess.run(argv, env=machine.site.env, cwd=home, capture_output=True, text=True, timeout=30)
    job_id = scheduler.parse_submit(done.stdout)
    assert machine.wait(job_id, OVER) == (JobState.DONE, 0), "".join(p.read_text() for p in home.glob("*.o*"))
    (home / "runs").rename(home / "made")
    (run,) = (home / "made").iterdir()
    run.rename(home / "run")
    assert [machine.lines(rank) for rank in range(4)] == [[f"I am {rank}"] for rank in range(4)]


def test_a_failed_run_is_started_again_with_agents_beside_it(machine: Machine) -> None:
    """The agents hold no node that the ranks need, and the ranks none that the agents and the diagnosis need."""
    script = 'if [ $RANK = 2 ] && [ ! -e failed ]; then touch failed; exit 3; fi; sleep 1; echo "again"'
    job_id = machine.submit("sh", "-c", script, options=("--restarts", "1"))
    assert machine.wait(job_id, OVER) == (JobState.DONE, 0), machine.log()
    assert (machine.site.home / "failed").exists()
    assert [machine.lines(rank)[-1] for rank in range(4)] == ["again"] * 4
    assert "the agents did not start" not in machine.log(), machine.log()


def test_files_are_staged_to_the_nodes_of_a_job(machine: Machine) -> None:
    (machine.site.home / "data").mkdir()
    (machine.site.home / "data" / "file").write_text("content\n")
    there = machine.site.home / "there"  # the nodes share their file systems, so each has its own name in the path
    place = "PALS_NODEID" if machine.scheduler == "pbs" else "WINDLASS_NODE_RANK"
    words = ("stage", *machine.words, "data", "--to", f"{there}.${{{place}}}", "--run-dir", "run")
    script = machine.site.home / "stage.sh"
    sized = "#PBS -l select=2\n#PBS -l place=scatter" if machine.scheduler == "pbs" else "# flux: --nodes=2"
    command = shlex.join((sys.executable, "-m", "windlass", *words))
    script.write_text(f"#!/bin/bash\n{sized}\ncd {shlex.quote(str(machine.site.home))}\n{command} > stage.log 2>&1\n")
    scheduler = get_scheduler(machine.scheduler)
    argv = scheduler.submit_argv(str(script))
    done = subprocess.run(argv, env=machine.site.env, cwd=machine.site.home, capture_output=True, text=True, timeout=30)
    job_id = scheduler.parse_submit(done.stdout)
    log = machine.site.home / "stage.log"
    assert machine.wait(job_id, OVER) == (JobState.DONE, 0), log.read_text()
    for node in range(2):
        assert (machine.site.home / f"there.{node}" / "data" / "file").read_text() == "content\n", log.read_text()
    assert "on 2 nodes" in log.read_text()


def test_a_hang_is_seen_diagnosed_on_the_nodes_and_survived(machine: Machine) -> None:
    script = (
        "if [ ! -e hung.$RANK ]; then touch hung.$RANK; [ $RANK = 2 ] && kill -STOP $$; exec sleep 100; fi; echo moved"
    )
    job_id = machine.submit("sh", "-c", script, options=("--restarts", "1", "--hang-after", "4"))
    assert machine.wait(job_id, OVER) == (JobState.DONE, 0), machine.log()
    assert [machine.lines(rank)[-1] for rank in range(4)] == ["moved"] * 4
    assert "rank 2" in machine.log() and "stopped" in machine.log(), machine.log()


def test_the_walltime_of_a_pbs_job_is_known_and_told_without_a_flag(tmp_path: Path) -> None:
    """By the scheduler's own words: the job was not submitted by windlass, and no --time was given."""
    with machine_of("pbs", tmp_path / "site") as machine:
        machine.site.env["STANDIN_GRACE"] = "30"  # the real one waits for 10 s and more, the stand-in for 2
        home = machine.site.home
        words = ("run", *machine.words, "--ranks-per-node", "1", "--run-dir", "run", "--", "sh", "-c")
        command = shlex.join((sys.executable, "-m", "windlass", *words, "echo ends $WINDLASS_DEADLINE; exec sleep 60"))
        script = home / "own.sh"
        script.write_text(
            f"#!/bin/bash\n#PBS -l walltime=20\ncd {shlex.quote(str(home))}\nexec {command} > own.log 2>&1\n"
        )
        scheduler = get_scheduler("pbs")
        argv = scheduler.submit_argv(str(script))
        done = subprocess.run(argv, env=machine.site.env, cwd=home, capture_output=True, text=True, timeout=30)
        job_id = scheduler.parse_submit(done.stdout)
        assert machine.wait(job_id, OVER)[0] is JobState.TIMEOUT
        assert machine.lines(0)[-1].removeprefix("ends ").isdecimal(), machine.lines(0)
        log = home / "own.log"
        wait_until(lambda: "time is up" in log.read_text(), timeout_s=60, what="the end is told", state=log.read_text)
        assert "on request" not in log.read_text()


@contextlib.contextmanager
def flux_machine(folder: Path) -> Iterator[Machine]:
    with machine_of("flux", folder) as machine:
        machine.site.env["STANDIN_GRACE"] = "30"  # the real one waits for 5 s, in which a busy machine does little
        yield machine


def test_at_the_time_limit_of_flux_the_ranks_save_and_leave(tmp_path: Path) -> None:
    """Flux sends SIGALRM and SIGHUP to windlass, and SIGALRM to every process of the ranks."""
    script = "trap 'touch saved.$RANK; exit 0' TERM; touch started.$RANK; while :; do sleep 0.1; done"
    with flux_machine(tmp_path / "site") as machine:
        home = machine.site.home
        job_id = machine.submit("sh", "-c", script, options=("--time", "30s" if real() else "4m"))
        wait_until(lambda: len(list(home.glob("started.*"))) == 4, timeout_s=60, what="all run", state=machine.log)
        if not real():
            folder = machine.site.folder
            first = min(int(path.stem) for path in (folder / "jobs").glob("*.json"))  # the second is its step
            (folder / "expired" / str(first)).touch()
        assert machine.wait(job_id, OVER)[0] is JobState.TIMEOUT, machine.log()
        assert len(list(home.glob("saved.*"))) == 4, machine.log()
        verdict = json.loads((home / "run" / "verdict.json").read_text())
        assert verdict["cause"]["kind"] == "walltime", machine.log()
        assert "the allocation's time is up" in machine.log(), "Flux before 0.73 sends SIGHUP alone"


def test_until_done_goes_on_in_another_job_of_the_same_flux(tmp_path: Path) -> None:
    """The end is known from `flux job timeleft`; the next job is not submitted to the instance that ends."""
    script = (
        "[ -e again ] && exit 0; trap 'touch again; exit 85' USR2; "
        "touch started.$RANK; while [ ! -e again ]; do sleep 0.1; done; exit 85"
    )
    with flux_machine(tmp_path / "site") as machine:
        home = machine.site.home
        first = machine.submit("sh", "-c", script, options=("--time", "40s", "--until-done"))
        assert machine.wait(first, OVER)[0] is not JobState.DONE, machine.log()
        second = (home / "run" / "job_id").read_text().strip()
        assert second != first, machine.log()
        machine.wait(second, OVER)
        assert ": done" in machine.windlass("runs", "show", "run").stdout, machine.log()
        earlier = next((home / "run").glob("job-*.log")).read_text()
        assert "asking the ranks to save and exit" in earlier
        assert "the allocation's time is up" in earlier


def test_a_step_of_flux_is_killed_without_another_run_of_the_same_name(tmp_path: Path) -> None:
    """Two runs in one instance; the second finds the node that is free. The ranks of the first do not listen to
    SIGTERM."""
    script = "trap '' TERM; touch started.$1; while [ ! -e go ]; do sleep 0.1; done"
    with flux_machine(tmp_path / "site") as machine:
        home = machine.site.home

        def run(name: str) -> subprocess.Popen[bytes]:
            size = ("--nodes", "1", "--ranks-per-node", "1", "--name", "same", "--grace", "1", "--run-dir", name)
            argv = (
                sys.executable,
                "-m",
                "windlass",
                "run",
                *machine.words,
                *size,
                "--",
                "sh",
                "-c",
                script,
                "sh",
                name,
            )
            return subprocess.Popen(argv, env=machine.site.env, cwd=home, stdin=subprocess.DEVNULL)

        with run("one") as one:
            wait_until((home / "started.one").exists, timeout_s=100, what="the first runs")
            with run("two") as two:
                wait_until((home / "started.two").exists, timeout_s=100, what="the second runs")
                one.send_signal(signal.SIGTERM)
                assert one.wait(timeout=100) == 128 + signal.SIGTERM
                (home / "go").touch()
                assert two.wait(timeout=100) == 0


def test_last_lines_without_their_end_stay_apart_under_flux(tmp_path: Path) -> None:
    script = "echo whole; printf 'out %s' $RANK; printf 'err %s' $RANK >&2; exit 0"
    with flux_machine(tmp_path / "site") as machine:
        job_id = machine.submit("sh", "-c", script)
        machine.wait(job_id, OVER)
        for rank in range(4):
            assert sorted(machine.lines(rank)) == [f"err {rank}", f"out {rank}", "whole"], machine.log()


@pytest.mark.slow
def test_components_of_a_job_file_share_a_node_or_have_their_own(machine: Machine) -> None:
    (machine.site.home / "job.toml").write_text("""
[components.server]
command = ["sh", "-c", "echo server on $(uname -n); touch up; exec sleep 100"]
cores_per_node = 1
ready = { file = "up", within_s = 60 }
end = "service"

[components.client]
command = ["sh", "-c", "echo client on $(uname -n) of {server.hosts}"]
cores_per_node = 1
needs = ["server"]

[components.wide]
command = ["sh", "-c", "echo wide $RANK on $(uname -n)"]
nodes = 2
ranks_per_node = 1
""")
    done = machine.windlass("submit", *machine.words, "--time", "5", "--run-dir", "run", "job.toml")
    assert done.returncode == 0, done.stderr
    assert machine.wait(done.stdout.split()[-1], OVER) == (JobState.DONE, 0), machine.log()
    parts = machine.site.home / "run" / "components"
    said = {
        path.name: [text for _, text in rank_logs(read_plan(path), path).lines()] for path in sorted(parts.iterdir())
    }
    assert said["server"][0] == "server on node1"
    assert said["client"][0].startswith("client on node1 of ")
    assert sorted(said["wide"]) == ["wide 0 on node2", "wide 1 on node3"]
