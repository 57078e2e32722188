"""Flux: job ids with ƒ, JSON in two shapes, hosts from `flux hostlist`."""

from __future__ import annotations

import json

import pytest

import captured
from looping import each
from windlass.backends.schedulers.base import JobSpec, JobState
from windlass.backends.schedulers.flux import Flux
from windlass.errors import UsageError
from windlass.model.origin import argv_of
from windlass.model.site import SchedulerSpec

MESSAGES = captured.captures("flux/messages.json")
ENVIRON = {"FLUX_URI": "local:///tmp/x/local-0", "FLUX_ENCLOSING_ID": "ƒ2E1Wbrw"}


def no_file(path: str) -> str:
    raise AssertionError(path)


def test_hosts_and_devices_come_from_the_instance() -> None:
    output = captured.text("flux/hostlist-local.stdout") + captured.text("flux/resource-list-n-o.stdout")
    allocation = Flux().parse_allocation(ENVIRON, no_file, output)
    assert allocation.hosts == ("node1", "node2", "node3", "node4")
    assert (allocation.job_id, allocation.gpus_per_node) == ("ƒ2E1Wbrw", None)
    busy = Flux().parse_allocation(ENVIRON, no_file, "n[1-4]\nfree 1 96 4\nallocated 3 288 12\ndown 0 0 0\n")
    assert busy.gpus_per_node == 4


@each(
    ("line", "end_s"),
    [("now 1000 left 90", 1090.0), ("now 1000 left 4294967295", None), ("now 1000 left ", None), ("", None)],
)
def test_the_end_of_the_allocation_is_what_timeleft_says(line: str, end_s: float | None) -> None:
    output = f"node[1-2]\nfree 2 8 0\nallocated 0 0 0\n{line}\n"
    assert Flux().parse_allocation(ENVIRON, no_file, output).end_time_s == end_s


def test_a_batch_job_asks_its_parent_and_everybody_else_the_own_instance() -> None:
    argv = Flux().submit_argv("b.sh")
    assert Flux().outside_argv(argv, ENVIRON) == ("flux", "--parent", "batch", "b.sh")
    assert Flux().outside_argv(argv, {"FLUX_URI": "local:///run/flux/local"}) == argv
    assert Flux().outside_argv(argv, {**ENVIRON, "FLUX_JOB_ID": "ƒ7"}) == argv  # a step of the instance


@each("output", ["", None, "\n", "node[1-\n"])
def test_no_or_malformed_hosts_are_an_error(output: str | None) -> None:
    with pytest.raises(UsageError, match="flux hostlist"):
        Flux().parse_allocation(ENVIRON, no_file, output)


@each(
    ("name", "state", "code", "reason"),
    [
        ("jobs-one-json-completed", JobState.DONE, 0, ""),
        ("jobs-one-json-failed3", JobState.FAILED, 3, ""),
        ("jobs-one-json-pending", JobState.QUEUED, None, ""),
        ("jobs-one-json-running", JobState.RUNNING, None, ""),
        ("jobs-one-json-timedout", JobState.TIMEOUT, 142, "resource allocation expired"),
        ("jobs-one-json-canceled-running", JobState.CANCELLED, 143, "user asked"),
        ("jobs-one-json-canceled-pending", JobState.CANCELLED, None, ""),
        ("jobs-two-json", JobState.DONE, 0, ""),
    ],
)
def test_states_of_the_real_flux_jobs(name: str, state: JobState, code: int | None, reason: str) -> None:
    status = Flux().parse_status(captured.text(f"flux/{name}.stdout"), 0, "ƒEwt99o5")
    assert (status.state, status.exit_code, status.reason) == (state, code, reason)


@each("output", ["", "JobID ƒzzzz unknown", "{", '{"jobs": []}', '{"state": "SOMETHING"}', "[]"])
def test_other_answers_are_unknown(output: str) -> None:
    assert Flux().parse_status(output, 1, "ƒzzzz").state is JobState.UNKNOWN


def test_a_job_of_urgency_zero_is_held() -> None:
    assert Flux().parse_status('{"state": "PRIORITY", "urgency": 0}', 0, "f1").state is JobState.HELD


def test_job_ids_in_all_forms() -> None:
    for text in ("ƒDni1hCs", "fE6uasrP", "494961426432"):
        assert Flux().parse_submit(f"{text}\n") == text


@pytest.mark.parametrize(
    ("name", "word", "transient"),
    [
        ("gq-batch-unknown-queue", "queue", False),
        ("gq-run-queue-time-limit", "size or length", False),
        ("gq-run-queue-nnodes-limit", "size or length", False),
        ("run-bad-time", "value", False),
        ("run-bad-option", "directive", False),
        ("batch-directives-bad-option", "directive", False),
        ("batch-directives-mixed-sentinel", "directive", False),
        ("batch-directives-after-command", "directive", False),
        ("batch-no-shebang", "script", False),
        ("batch-missing-script", "script", False),
        ("run-bad-requires", "nodes", False),
        ("run-too-many-nodes", "nodes", False),
        ("no-instance-run", "does not answer", True),
    ],
)
def test_refusals_of_the_real_flux_are_explained(name: str, word: str, transient: bool) -> None:
    error = Flux().explain_refusal(MESSAGES[name].code, MESSAGES[name].stderr)
    assert word in error.message.split("(it said")[0]
    assert error.transient is transient


def test_directives_ask_for_whole_nodes_in_flux_words() -> None:
    spec = JobSpec(
        name="t", nodes=4, ranks_per_node=4, partition="pbatch", account="bank1", time="90", exclude_hosts=("n1", "n2")
    )
    assert argv_of(Flux().directives(spec, SchedulerSpec(kind="flux"))) == (
        "--job-name=t", "--nodes=4", "--exclusive", "--time-limit=90m", "--queue=pbatch", "--bank=bank1",
        "--requires=-host:n[1-2]",
    )  # fmt: skip


def test_a_path_with_double_braces_is_refused() -> None:
    with pytest.raises(UsageError, match="braces"):
        Flux().path_word("/x/{{id}}")


def test_a_request_that_no_node_satisfies_never_starts() -> None:
    """As flux-core 0.88 answered (`jobs-all-json`, shortened); a job that ran and then lost a node is no such case."""
    job = {"id": 1, "state": "INACTIVE", "result": "FAILED", "returncode": 1, "t_submit": 1.0, "t_inactive": 2.0}
    job["exception"] = {
        "occurred": True,
        "severity": 0,
        "type": "alloc",
        "note": 'alloc denied due to type="unsatisfiable"',
    }
    status = Flux().parse_status(json.dumps(job), 0, "1")
    assert (status.state, status.never) == (JobState.FAILED, True) and "unsatisfiable" in status.reason
    assert not Flux().parse_status(json.dumps({**job, "t_run": 1.5}), 0, "1").never


def test_nodes_that_another_run_holds_are_told_apart_from_its_own() -> None:
    said = "ƒwNNfQT node1\nƒ3HP6sUs node[3-4]\nƒ3HP7 \n"
    assert Flux().parse_busy(said, {}) == ("node1", "node3", "node4")
    assert Flux().parse_busy(said, {"FLUX_JOB_ID": "f3HP6sUs"}) == ("node1",)
