"""What a scheduler does with our words: the real Slurm, and stand-ins of PBS and Flux that refuse what the real refuse.

A batch script is made of the directives as windlass writes them, submitted, watched and cancelled by the backend's own
commands, and the answers are read by the backend's own parsers.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import leftovers
from cluster.slurm import SlurmCluster
from standins.sites import flux_site, pbs_site, real
from waiting import wait_until
from windlass.backends.schedulers import get_scheduler
from windlass.backends.schedulers.base import JobSpec, JobState, JobStatus
from windlass.base.notation.shell import quote_words
from windlass.base.procs.command import Done, run_command
from windlass.errors import UsageError
from windlass.model.origin import ArgumentSpec
from windlass.model.site import SchedulerSpec

OVER = {JobState.DONE, JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT}
CASES = [pytest.param("slurm", marks=pytest.mark.slurm), "pbs", "flux"]
HOSTILE = 'it\'s "a" $(touch owned) `touch owned` #c é'


@dataclass(frozen=True)
class Queue:
    """A scheduler that answers."""

    name: str
    folder: Path
    env: Mapping[str, str]
    partition: str

    def script(self, spec: JobSpec, body: str, *own: ArgumentSpec) -> Path:
        scheduler = get_scheduler(self.name)
        made = scheduler.directives(spec, SchedulerSpec(kind=self.name, directives=own))  # type: ignore[arg-type]
        path = self.folder / "job.sh"
        lines = [scheduler.shebang, *map(scheduler.directive_line, made), "", body]
        path.write_text("\n".join(lines) + "\n")
        return path

    def command(self, argv: tuple[str, ...]) -> Done:
        return run_command(argv, timeout_s=30, env=self.env, check=False, cwd=str(self.folder))

    def submit(self, spec: JobSpec, body: str) -> str:
        scheduler = get_scheduler(self.name)
        done = self.command(scheduler.submit_argv(str(self.script(spec, body))))
        assert done.code == 0, done
        return scheduler.parse_submit(done.stdout)

    def status(self, job_id: str) -> JobStatus:
        scheduler = get_scheduler(self.name)
        done = self.command(scheduler.status_argv(job_id))
        return scheduler.parse_status(done.stdout + done.stderr, done.code, job_id)

    def wait(self, job_id: str, states: set[JobState]) -> JobStatus:
        wait_until(
            lambda: self.status(job_id).state in states,
            timeout_s=40,
            what=f"job {job_id} is {states}",
            every_s=0.2,
            state=lambda: str(self.status(job_id)),
        )
        return self.status(job_id)


@contextlib.contextmanager
def _queue(name: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[Queue]:
    if name == "slurm":
        cluster: SlurmCluster = request.getfixturevalue("slurm")
        yield Queue("slurm", folder, cluster.env(), "batch")
    elif name == "pbs":
        with pbs_site(folder / "site") as site:
            yield Queue("pbs", folder, site.env, "workq")
    else:
        with flux_site(folder / "site") as site:
            yield Queue("flux", folder, site.env, "batch")


@pytest.fixture(params=CASES)
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Queue]:
    with _queue(request.param, tmp_path, request) as found:
        yield found
    if real() == "pbs":  # its qsub leaves a process that answers the next one for a minute
        return
    left = leftovers.look_until_clean(os.environ[leftovers.MARK_VARIABLE], tmp_path, patience_s=20)
    if left:
        text = left.text()
        leftovers.remove(left)
        pytest.fail(f"the scheduler left behind:\n{text}", pytrace=False)


def small(queue: Queue, **values: object) -> JobSpec:
    fields = {"name": "small", "nodes": 2, "ranks_per_node": 1, "time": "5", "partition": queue.partition, **values}
    return JobSpec(**fields, output=str(queue.folder / "job.log"))  # type: ignore[arg-type]


def test_a_job_runs_on_its_nodes_and_its_code_comes_back(queue: Queue) -> None:
    scheduler = get_scheduler(queue.name)
    job_id = queue.submit(small(queue), f"{scheduler.host_lines}\nexit 3")
    status = queue.wait(job_id, OVER)
    assert (status.state, status.exit_code) == (JobState.FAILED, 3)
    log = queue.folder / "job.log"
    wait_until(lambda: log.exists() and len(log.read_text().split()) >= 2, timeout_s=30, what="the job's log is there")
    hosts = log.read_text().split()[:2]
    assert len(set(hosts)) == 2


def test_a_good_job_is_done_with_code_0(queue: Queue) -> None:
    status = queue.wait(queue.submit(small(queue, nodes=1), "true"), OVER)
    assert (status.state, status.exit_code) == (JobState.DONE, 0)


def test_the_allocation_is_read_inside_the_job(queue: Queue) -> None:
    """The variables, files and commands that parse_allocation needs are really there."""
    scheduler = get_scheduler(queue.name)
    seen = queue.folder / "seen"
    argv = scheduler.allocation_argv({"FLUX_URI": "x"}) or ("true",)
    body = "\n".join(scheduler.first_lines) + f"\nenv -0 > '{seen}.env'\n" + quote_words(argv) + f" > '{seen}.out'\n"
    body += f"cp \"${{PBS_NODEFILE:-/dev/null}}\" '{seen}.nodes'\n"
    queue.wait(queue.submit(small(queue), body), {JobState.DONE})
    pairs = (entry.split("=", 1) for entry in Path(f"{seen}.env").read_text().split("\0") if "=" in entry)
    environ = dict(pairs)
    assert scheduler.in_allocation(environ)
    output = Path(f"{seen}.out").read_text()
    allocation = scheduler.parse_allocation(environ, lambda path: Path(f"{seen}.nodes").read_text(), output)
    assert len(allocation.hosts) == 2
    assert allocation.scheduler == queue.name
    assert allocation.job_id
    assert environ[scheduler.job_id_variable]


def test_a_hostile_name_neither_breaks_the_script_nor_runs(queue: Queue) -> None:
    status = queue.wait(queue.submit(small(queue, nodes=1, name=HOSTILE), "true"), OVER)
    assert status.state is JobState.DONE
    assert not (queue.folder / "owned").exists()


def test_a_cancelled_job_ends_and_says_so(queue: Queue) -> None:
    job_id = queue.submit(small(queue, nodes=1), "exec sleep 60")
    queue.wait(job_id, {JobState.RUNNING})
    assert queue.command(get_scheduler(queue.name).cancel_argv(job_id)).code == 0
    assert queue.wait(job_id, OVER).state is JobState.CANCELLED


def test_a_wrong_queue_is_refused_in_words(queue: Queue) -> None:
    scheduler = get_scheduler(queue.name)
    script = queue.script(small(queue, partition="nosuchqueue"), "true")
    done = queue.command(scheduler.submit_argv(str(script)))
    assert done.code != 0
    error = scheduler.explain_refusal(done.code, done.stderr + done.stdout)
    assert isinstance(error, UsageError)
    assert error.hint
    assert not error.transient


def test_a_directive_that_does_not_exist_is_refused_in_words(queue: Queue) -> None:
    scheduler = get_scheduler(queue.name)
    own = ArgumentSpec(words=("-Z", "1"), because="a mistake", source="test")
    done = queue.command(scheduler.submit_argv(str(queue.script(small(queue), "true", own))))
    assert done.code != 0
    error = scheduler.explain_refusal(done.code, done.stderr + done.stdout)
    assert isinstance(error, UsageError)
    assert "directive" in error.message


def test_an_unknown_job_is_unknown(queue: Queue) -> None:
    """An instance of Flux knows only its own jobs, so that its answer says nothing of others."""
    status = queue.status("999999")
    assert (status.state, status.gone) == (JobState.UNKNOWN, queue.name != "flux")


def test_a_scheduler_that_is_not_there_says_nothing_about_a_job(queue: Queue) -> None:
    for name in ("scontrol", "sacct", "qstat", "flux"):
        (queue.folder / name).write_text(f"#!/bin/sh\necho '{name}: cannot connect' >&2; exit 1\n")
        (queue.folder / name).chmod(0o755)
    status = replace(queue, env={**queue.env, "PATH": f"{queue.folder}:/usr/bin:/bin"}).status("0")
    assert (status.state, status.gone) == (JobState.UNKNOWN, False)


@pytest.mark.slurm
def test_sbatch_accepts_every_form_of_time_and_device_free_directive(slurm: SlurmCluster, tmp_path: Path) -> None:
    queue = Queue("slurm", tmp_path, slurm.env(), "batch")
    for text in ("30", "1:30:00", "2h", "90m", "1-12:00:00", "45s"):
        script = queue.script(small(queue, time=text, name="a b", exclude_hosts=("nid0004",)), "true")
        done = queue.command(("sbatch", "--test-only", str(script)))
        assert done.code == 0, done


@pytest.mark.slurm
def test_a_step_of_the_real_slurm_is_killed_by_its_name_and_nothing_else(slurm: SlurmCluster) -> None:
    """Two steps in one job; one of them is killed by the command that the backend makes."""
    slurm.run(["salloc", "--quiet", "--no-shell", "-N2", "--exclusive"], check=True)
    (job_id,) = slurm.jobs()
    try:
        words = ["srun", f"--jobid={job_id}", "-N2", "-n2", "--overlap"]
        victim = slurm.popen([*words, "--job-name=my victim", "sleep", "50"])
        other = slurm.popen([*words, "--job-name=other", "sleep", "50"])
        wait_until(
            lambda: slurm.run(["squeue", "-h", "-s", "-o", "%j"]).stdout.count("\n") >= 2,
            timeout_s=20,
            what="steps run",
        )
        argv = get_scheduler("slurm").kill_step_argv({"SLURM_JOB_ID": job_id}, "my victim")
        assert argv is not None
        slurm.run(argv, check=True)
        assert victim.wait(timeout=20) != 0
        assert other.poll() is None
    finally:
        slurm.run(["scancel", job_id], check=True)
    assert other.wait(timeout=20) != 0


@pytest.mark.slurm
def test_the_address_of_a_node_comes_from_the_real_scontrol(slurm: SlurmCluster) -> None:
    scheduler = get_scheduler("slurm")
    argv = scheduler.addresses_argv(("nid0002", "nid0003"))
    assert argv is not None
    found = scheduler.parse_addresses(slurm.run(argv, check=True).stdout)
    assert found == {"nid0002": "127.0.0.12", "nid0003": "127.0.0.13"}
