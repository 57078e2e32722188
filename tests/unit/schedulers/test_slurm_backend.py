"""Slurm: allocations from variables, states from scontrol and sacct, refusals in words."""

from __future__ import annotations

import pytest

import captured
from looping import each
from windlass.backends.schedulers.base import JobSpec, JobState
from windlass.backends.schedulers.slurm import Slurm
from windlass.base.notation.counts import parse_counts
from windlass.errors import UsageError
from windlass.model.origin import ArgumentSpec, argv_of
from windlass.model.site import SchedulerSpec

MESSAGES = captured.captures("slurm/messages.json")


def no_file(path: str) -> str:
    raise AssertionError(f"Slurm needs no file, but {path} was read")


def variables(name: str) -> dict[str, str]:
    pairs = (line.split("=", 1) for line in MESSAGES[name].stdout.splitlines() if line.startswith("SLURM"))
    return dict(pairs)


def test_an_allocation_of_the_real_slurm_is_read_from_its_variables() -> None:
    allocation = Slurm().parse_allocation(variables("batch-variables"), no_file)
    assert allocation.hosts == ("nid0001", "nid0002", "nid0003")
    assert (allocation.cpus_per_node, allocation.tasks_per_node) == (2, 2)
    assert (allocation.partition, allocation.job_id) == ("batch", variables("batch-variables")["SLURM_JOB_ID"])


def test_tasks_that_nobody_asked_for_are_not_an_opinion() -> None:
    """Slurm fills SLURM_TASKS_PER_NODE with the CPUs of exclusive nodes."""
    found = variables("batch-variables-exclusive")
    assert found["SLURM_TASKS_PER_NODE"] == "2(x3)"
    assert Slurm().parse_allocation(found, no_file).tasks_per_node is None


def test_partial_and_uneven_nodes_give_what_every_node_has() -> None:
    environ = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "nid[0001-0003,0010]",
        "SLURM_JOB_NUM_NODES": "4",
        "SLURM_JOB_CPUS_PER_NODE": "16(x3),4",
        "SLURM_NTASKS": "7",
        "SLURM_TASKS_PER_NODE": "2(x3),1",
        "SLURM_JOB_END_TIME": "1794714508",
        "SLURM_GPUS_PER_NODE": "a100:3,h100:1",
    }
    allocation = Slurm().parse_allocation(environ, no_file)
    assert (allocation.cpus_per_node, allocation.tasks_per_node, allocation.gpus_per_node) == (4, 1, 4)
    assert allocation.end_time_s == 1794714508
    assert allocation.hosts[-1] == "nid0010"


@each("names", ["", "nid[0001-", "nid[3-1]", "ni d1;x", "nid[1-2"])
def test_a_malformed_host_list_is_an_error_that_names_the_variable(names: str) -> None:
    with pytest.raises(UsageError, match="SLURM_JOB_NODELIST"):
        Slurm().parse_allocation({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": names}, no_file)


def test_a_host_list_that_contradicts_the_number_of_nodes_is_an_error() -> None:
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a,b", "SLURM_JOB_NUM_NODES": "3"}
    with pytest.raises(UsageError, match="names 2 hosts but the job has 3 nodes"):
        Slurm().parse_allocation(environ, no_file)


def test_counts_are_expanded_and_others_refused() -> None:
    assert parse_counts("2(x3),1", "X") == (2, 2, 2, 1)
    with pytest.raises(UsageError, match="X"):
        parse_counts("2(x3", "X")


@each(
    ("name", "line", "state", "code", "reason"),
    [
        ("scontrol-completed", 0, JobState.DONE, 0, ""),
        ("scontrol-failed", 0, JobState.FAILED, 3, "NonZeroExitCode"),
        ("scontrol-signalled", 0, JobState.FAILED, 137, "JobLaunchFailure"),
        ("scontrol-running", 0, JobState.RUNNING, None, ""),
        ("scontrol-running", 1, JobState.CANCELLED, 143, ""),
        ("scontrol-held", 0, JobState.HELD, None, "JobHeldUser"),
        ("scontrol-pending", 0, JobState.QUEUED, None, "PartitionConfig"),
    ],
)
def test_states_of_the_real_scontrol(name: str, line: int, state: JobState, code: int | None, reason: str) -> None:
    output = [text for text in MESSAGES[name].stdout.splitlines() if "JobState" in text][line]
    status = Slurm().parse_status(output, 0, "12")
    assert (status.state, status.exit_code) == (state, code)
    assert status.reason == reason


@each(
    ("output", "state", "code"),
    [
        ("123|COMPLETED|0:0", JobState.DONE, 0),
        ("123|CANCELLED by 1000|0:15", JobState.CANCELLED, 143),
        ("123|OUT_OF_MEMORY|0:125", JobState.FAILED, 253),
        ("123|NODE_FAIL|1:0", JobState.FAILED, 1),
        ("123|TIMEOUT|0:0", JobState.TIMEOUT, None),
        ("123|SOME_NEW_STATE|0:0", JobState.UNKNOWN, None),
        ("", JobState.UNKNOWN, None),
        ("Slurm accounting storage is disabled", JobState.UNKNOWN, None),
    ],
)
def test_states_of_sacct_and_of_no_answer(output: str, state: JobState, code: int | None) -> None:
    status = Slurm().parse_status(output, 1, "123")
    assert (status.state, status.exit_code) == (state, code)


@each(
    ("name", "word", "transient"),
    [
        ("sbatch-unknown-partition", "partition", False),
        ("sbatch-bad-time", "time limit", False),
        ("sbatch-gres", "devices", False),
        ("sbatch-gpus", "devices", False),
        ("sbatch-unknown-option", "directive", False),
        ("sbatch-memory", "nodes", False),
        ("sbatch-no-nodes", "nodes", False),
        ("sbatch-constraint", "nodes", False),
        ("sbatch-missing-script", "script", False),
        ("sbatch-crlf", "script", False),
        ("sbatch-no-shebang", "script", False),
        ("sbatch-no-controller", "does not answer", True),
    ],
)
def test_refusals_of_the_real_sbatch_are_explained(name: str, word: str, transient: bool) -> None:
    error = Slurm().explain_refusal(MESSAGES[name].code, MESSAGES[name].stderr)
    assert word in error.message.split("(it said")[0]
    assert error.transient is transient


@each(
    ("said", "option"),
    [
        ("sbatch: error: Batch job submission failed: No partition specified or system default partition", "partition"),
        ("sbatch: error: invalid partition specified: gpu", "partition"),
        ("sbatch: error: You must specify an account", "account"),
        ("sbatch: error: Batch job submission failed: Invalid account or account/partition combination", "account"),
    ],
)
def test_a_job_without_account_or_partition_is_told_where_to_keep_them(said: str, option: str) -> None:
    error = Slurm().explain_refusal(1, said)
    assert f"windlass init --{option} NAME" in (error.hint or "")


def test_job_ids_in_all_forms() -> None:
    assert Slurm().parse_submit("123\n") == "123"
    assert Slurm().parse_submit("123;cluster\n") == "123"
    assert Slurm().parse_submit("some warning\nSubmitted batch job 7\n") == "7"


def test_directives_say_the_request_in_slurms_words() -> None:
    spec = JobSpec(
        name="train", nodes=4, ranks_per_node=8, cpus_per_rank=7, gpus_per_node=8, partition="standard-g", qos="normal",
        account="project_1", time="1-12:00:00", output="/run/job.log", exclude_hosts=("nid0001", "nid0002", "nid0009"),
    )  # fmt: skip
    own = ArgumentSpec(words=("--exclusive",), because="masks need whole nodes", source="x")
    made = argv_of(
        Slurm().directives(spec, SchedulerSpec(kind="slurm", gpu_request="gpus-per-node", directives=(own,)))
    )
    assert made == (
        "--job-name=train", "--nodes=4", "--ntasks-per-node=8", "--cpus-per-task=7", "--gpus-per-node=8",
        "--partition=standard-g", "--qos=normal", "--account=project_1", "--time=1-12:00:00", "--output=/run/job.log",
        "--exclude=nid[0001-0002,0009]", "--exclusive",
    )  # fmt: skip


def test_the_address_of_a_node_is_found() -> None:
    assert Slurm().parse_addresses(MESSAGES["scontrol-node"].stdout) == {"nid0001": "host1"}
    assert Slurm().parse_addresses("Node nid9 not found") == {}


@each(
    ("reason", "never"),
    [
        ("PartitionNodeLimit", True),
        ("PartitionTimeLimit", True),
        ("BadConstraints", True),
        ("AssocMaxNodePerJobLimit", True),
        ("QOSMaxWallDurationPerJobLimit", True),
        ("QOSMaxGRESPerNode", True),
        ("DependencyNeverSatisfied", True),
        ("Priority", False),
        ("Resources", False),
        ("QOSMaxJobsPerUserLimit", False),
        ("AssocGrpCpuLimit", False),
        ("QOSMaxGRESPerUser", False),
        ("None", False),
    ],
)
def test_a_reason_that_never_passes_is_told_from_one_that_does(reason: str, never: bool) -> None:
    line = f"JobId=7 JobName=x JobState=PENDING Reason={reason} Dependency=(null)"
    assert Slurm().parse_status(line, 0, "7").never is never
    assert not Slurm().parse_status(line.replace("PENDING", "RUNNING"), 0, "7").never
