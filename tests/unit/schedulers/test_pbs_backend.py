"""PBS: node files with repeated lines, JSON that retypes values, exit statuses that cannot be trusted alone."""

from __future__ import annotations

import json
import time

import pytest

import captured
from looping import each
from windlass.backends.schedulers.base import JobSpec, JobState
from windlass.backends.schedulers.pbs import Pbs
from windlass.errors import UsageError
from windlass.model.origin import ArgumentSpec, argv_of
from windlass.model.site import SchedulerSpec

REFUSALS = captured.captures("openpbs/refusals.json")
NODEFILES = json.loads(captured.text("openpbs/nodefiles.json"))
ENVIRON = {"PBS_JOBID": "7.head", "PBS_NODEFILE": "/aux/7.head", "PBS_QUEUE": "workq"}


@each("name", sorted(NODEFILES))
def test_every_captured_node_file_gives_each_host_once_in_order(name: str) -> None:
    lines = NODEFILES[name]["lines"]
    allocation = Pbs().parse_allocation(ENVIRON, lambda path: "".join(f"{line}\n" for line in lines))
    assert allocation.hosts == tuple(dict.fromkeys(lines))
    counts = [lines.count(host) for host in allocation.hosts]
    assert allocation.tasks_per_node == (min(counts) if max(counts) > 1 else None)
    assert (allocation.job_id, allocation.partition) == ("7.head", "workq")


@each("content", ["", "\n\n", "node1 slots=2\n", "node1\n$(reboot)\n", "-node\n", "a;b\n"])
def test_an_empty_or_malformed_node_file_is_an_error_that_names_it(content: str) -> None:
    with pytest.raises(UsageError, match=r"/aux/7\.head"):
        Pbs().parse_allocation(ENVIRON, lambda path: content)


def test_a_missing_node_file_is_an_error_that_names_it() -> None:
    def read(path: str) -> str:
        raise FileNotFoundError(2, "No such file or directory", path)

    with pytest.raises(UsageError, match=r"/aux/7\.head: No such file"):
        Pbs().parse_allocation(ENVIRON, read)
    with pytest.raises(UsageError, match="PBS_NODEFILE is not set"):
        Pbs().parse_allocation({"PBS_JOBID": "7"}, read)


def test_the_end_of_the_job_is_its_start_and_its_walltime() -> None:
    environ = {**ENVIRON, "PBS_JOBID": "0.head"}
    said = captured.text("openpbs/qstat_f_json_running.out")
    began = time.mktime((2026, 11, 15, 2, 2, 44, 0, 0, -1))
    assert Pbs().parse_allocation(environ, lambda path: "node1\n", said).end_time_s == began + 120
    for unknown in (None, "", said.replace("00:02:00", "never"), said.replace("stime", "ctime2")):
        assert Pbs().parse_allocation(environ, lambda path: "node1\n", unknown).end_time_s is None


@each(
    ("name", "job_id", "state", "code", "reason"),
    [
        ("qstat_f_json_running", "0.head", JobState.RUNNING, None, "Job run at"),
        ("qstat_x_f_json_finished", "0", JobState.DONE, 0, ""),
        ("qstat_x_f_json_fail3", "35.head", JobState.FAILED, 3, "and failed"),
        ("qstat_x_f_json_killself", "36.head", JobState.FAILED, 137, "and failed"),
        ("qstat_x_f_json_sig_walltime", "33.head", JobState.TIMEOUT, None, "exceeded resource walltime"),
        ("qstat_x_f_json_sig_qdel", "32.head", JobState.CANCELLED, 143, "terminated by"),
        ("qstat_x_f_json_deleted_quickly", "79.head", JobState.FAILED, 143, ""),
        ("qstat_x_f_json_deleted_before_it_ran", "77.head", JobState.CANCELLED, None, ""),
        ("qstat_x_f_json_lost_node", "1010.head", JobState.FAILED, None, ""),
        ("qstat_f_json_hold", "39.head", JobState.HELD, None, ""),
        ("qstat_f_json_too_many", "51.head", JobState.QUEUED, None, "Can Never Run"),
        ("qstat_unknown_job_x", "9999", JobState.UNKNOWN, None, "does not answer"),
        ("qstat_x_f_json_odd_types", "73.head", JobState.DONE, 0, ""),
        ("qstat_x_f_json_odd_bytes", "75.head", JobState.DONE, 0, ""),
    ],
)
def test_states_of_the_real_qstat(name: str, job_id: str, state: JobState, code: int | None, reason: str) -> None:
    status = Pbs().parse_status(captured.text(f"openpbs/{name}.out"), 0, job_id)
    assert (status.state, status.exit_code) == (state, code)
    assert reason in status.reason
    assert status.never == (name == "qstat_f_json_too_many")


@each("output", ["", "{", "qstat: Unknown Job Id 1017.head", '{"Jobs": 3}', '{"Jobs": {"8.head": 1}}'])
def test_an_answer_without_the_job_is_unknown(output: str) -> None:
    assert Pbs().parse_status(output, 153, "8.head").state is JobState.UNKNOWN


def test_a_letter_that_nobody_knows_is_unknown() -> None:
    assert Pbs().parse_status('{"Jobs": {"8.head": {"job_state": "Z"}}}', 0, "8.head").state is JobState.UNKNOWN


@each(
    ("name", "word", "transient"),
    [
        ("err_bad_resource", "resource", False),
        ("err_bad_resource_select", "resource", False),
        ("err_bad_directive", "resource", False),
        ("err_select_and_nodes", "resource", False),
        ("err_select_and_ncpus", "resource", False),
        ("err_unknown_queue", "queue", False),
        ("err_queue_limit", "size or length", False),
        ("err_queue_walltime", "size or length", False),
        ("err_bad_walltime", "value", False),
        ("err_bad_place", "value", False),
        ("err_missing_script", "script", False),
        ("err_directory_script", "script", False),
        ("err_crlf", "script", False),
        ("err_bad_option", "directive", False),
        ("err_bad_name", "directive", False),
        ("err_server_down", "does not answer", True),
        ("err_unknown_server", "does not answer", True),
    ],
)
def test_refusals_of_the_real_qsub_are_explained(name: str, word: str, transient: bool) -> None:
    error = Pbs().explain_refusal(REFUSALS[name].code, REFUSALS[name].stderr)
    assert word in error.message.split("(it said")[0]
    assert error.transient is transient


def test_directives_are_those_that_aurora_documents() -> None:
    spec = JobSpec(
        name="my run", nodes=2, ranks_per_node=12, partition="debug", account="proj", time="30", output="/l/j.log"
    )
    own = ArgumentSpec(words=("-l", "filesystems=flare:home"), because="mandatory", source="x")
    place = ArgumentSpec(words=("-l", "place=scatter:group=tier0"), because="one rack", source="x")
    made = argv_of(Pbs().directives(spec, SchedulerSpec(kind="pbs", directives=(own, place))))
    assert made == (
        "-N", "my_run", "-l", "select=2", "-l", "walltime=00:30:00", "-q", "debug", "-A", "proj", "-j", "oe",
        "-k", "doe", "-o", "/l/j.log", "-l", "filesystems=flare:home", "-l", "place=scatter:group=tier0",
    )  # fmt: skip


def test_a_chunk_says_its_cpus_and_devices_where_they_are_counted() -> None:
    spec = JobSpec(name="x", nodes=3, ranks_per_node=4, cpus_per_rank=8, gpus_per_node=4)
    made = argv_of(Pbs().directives(spec, SchedulerSpec(kind="pbs", gpu_request="gpus-per-node")))
    assert "select=3:ncpus=32:mpiprocs=4:ngpus=4" in made
    assert "place=scatter" in made


def test_a_path_that_pbs_would_misread_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot write"):
        Pbs().path_word("/scratch/a b:c")


def test_job_ids_in_all_forms() -> None:
    assert Pbs().parse_submit("0.head\n") == "0.head"
    assert Pbs().parse_submit("46[].head.cluster.test") == "46[].head.cluster.test"
