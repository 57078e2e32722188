"""srun: the words for each kind of binding and device request, and who failed first by its messages."""

from __future__ import annotations

import pytest

import captured
from looping import each
from windlass.backends.launchers.base import LaunchSpec, NodeStepSpec
from windlass.backends.launchers.srun import Srun
from windlass.base.notation.counts import parse_bindings
from windlass.errors import UsageError
from windlass.model.origin import ArgumentSpec, argv_of
from windlass.model.site import LauncherSpec

SITE = LauncherSpec(kind="srun")
LUMI = "49-55:57-63:17-23:25-31:1-7:9-15:33-39:41-47"
MESSAGES = captured.captures("slurm/messages.json")


def words(spec: LaunchSpec, site: LauncherSpec = SITE) -> tuple[str, ...]:
    return argv_of(Srun().arguments(spec, site))


def test_masks_are_those_that_lumi_documents() -> None:
    spec = LaunchSpec(nodes=2, ranks_per_node=8, cpu_lists=parse_bindings(LUMI), cpus_per_rank=7)
    masks = (
        "0x00fe000000000000,0xfe00000000000000,0x0000000000fe0000,0x00000000fe000000,"
        "0x00000000000000fe,0x000000000000fe00,0x000000fe00000000,0x0000fe0000000000"
    )
    assert f"--cpu-bind=mask_cpu={masks}" in words(spec)
    assert {"--nodes=2", "--ntasks=16", "--ntasks-per-node=8", "--cpus-per-task=7"} <= set(words(spec))


def test_without_a_number_the_step_is_left_the_whole_node() -> None:
    spec = LaunchSpec(nodes=1, ranks_per_node=2, cpu_lists=((0, 1), (8, 9)))
    assert not [word for word in words(spec) if word.startswith("--cpus-per-task")]


@each(
    ("request_kind", "word"),
    [
        ("gpus-per-node", "--gpus-per-node=8"),
        ("gres", "--gres=gpu:8"),
        ("gpus", "--gpus=32"),
        ("gpus-per-task", "--gpus-per-task=1"),
    ],
)
def test_devices_are_asked_for_as_the_site_does_and_stay_visible_to_all(request_kind: str, word: str) -> None:
    spec = LaunchSpec(nodes=4, ranks_per_node=8, gpus_per_node=8, gpu_request=request_kind)  # type: ignore[arg-type]
    assert word in words(spec)
    assert "--gpu-bind=none" in words(spec)


def test_frontier_gives_each_rank_the_closest_device() -> None:
    spec = LaunchSpec(
        nodes=2, ranks_per_node=8, gpus_per_node=8, gpu_request="gpus-per-node", devices="one", device_by_launcher=True
    )
    assert {"--gpus-per-task=1", "--gpu-bind=closest"} <= set(words(spec))
    assert not [word for word in words(spec) if word.startswith("--gpus-per-node")]


def test_whole_node_sites_get_no_device_words() -> None:
    spec = LaunchSpec(nodes=1, ranks_per_node=4, gpus_per_node=4, gpu_request="none")
    assert not [word for word in words(spec) if "gpu" in word or "gres" in word]


def test_a_step_beside_the_ranks_takes_nothing_from_them() -> None:
    step = Srun().node_step(NodeStepSpec(nodes=2))
    assert {"--overlap", "--mem=0", "--gres=none", "--cpu-bind=none"} <= set(argv_of(step.arguments))


def test_the_site_replaces_a_default_instead_of_saying_it_twice() -> None:
    own = ArgumentSpec(words=("--export=NONE",), because="the site wants it", source="x")
    site = LauncherSpec(kind="srun", arguments=(own,))
    exports = [word for word in words(LaunchSpec(nodes=1, ranks_per_node=1), site) if word.startswith("--export")]
    assert exports == ["--export=NONE"]


def test_percent_in_the_run_folder_is_no_pattern() -> None:
    assert Srun().path_word("/scratch/100%/n%N") == "/scratch/100%%/n%%N"


def test_a_backslash_in_the_run_folder_is_refused() -> None:
    with pytest.raises(UsageError, match="backslash"):
        Srun().path_word("/scratch/a\\b")


@each(
    ("name", "rank", "host", "code", "signal"),
    [
        ("task-exits-3", 1, "nid0002", 3, None),
        ("task-killed", 1, "nid0002", None, 9),
        ("task-segfault", 2, "nid0003", None, 11),
        ("task-aborted", 0, "nid0001", None, 6),
        ("all-tasks-exit-2", 2, "nid0003", 2, None),
        ("mask-outside-step", None, "nid0001", None, None),
        ("too-many-nodes-in-allocation", None, None, None, None),
    ],
)
def test_the_first_complaint_names_the_culprit_not_those_that_srun_ended(
    name: str, rank: int | None, host: str | None, code: int | None, signal: int | None
) -> None:
    capture = MESSAGES[name]
    failure = Srun().parse_failure(capture.lines, capture.code)
    assert failure is not None
    assert (failure.rank, failure.host, failure.code, failure.signal) == (rank, host, code, signal)
    assert failure.said


@each(
    ("line", "rank", "signal"),
    [
        ("srun: error: nid000012: tasks 8-15: Out Of Memory", 8, 9),
        ("srun: error: nid000012: tasks 3,5-7: Segmentation fault (core dumped)", 3, 11),
        ("srun: error: Node failure on nid000007", None, None),
        ("srun: Job step aborted: Waiting up to 32 seconds for job step to finish.", None, None),
    ],
)
def test_other_complaints_are_understood(line: str, rank: int | None, signal: int | None) -> None:
    failure = Srun().parse_failure(["srun: job 7 queued and waiting for resources", line], 1)
    assert failure is not None
    assert (failure.rank, failure.signal) == (rank, signal)


@each(
    ("why", "said"),
    [("", "step 2.3 was cancelled"), (" DUE TO TIME LIMIT", "step 2.3 was cancelled due to time limit")],
)
def test_an_aborted_step_is_said_to_be_cancelled_where_its_daemon_says_so(why: str, said: str) -> None:
    aborted = "srun: Job step aborted: Waiting up to 32 seconds for job step to finish."
    daemon = f"slurmstepd-nid0001: error: *** STEP 2.3 ON nid0001 CANCELLED AT 2026-11-15T03:17:13{why} ***"
    failure = Srun().parse_failure([aborted, daemon], 1)
    assert failure is not None and (failure.rank, failure.said) == (None, said)
    task = "srun: error: nid0001: task 1: Exited with exit code 3"
    first = Srun().parse_failure([task, aborted, daemon], 1)
    assert first is not None and (first.rank, first.code) == (1, 3), "a task that failed before is the cause"


def test_a_quiet_end_names_nobody() -> None:
    assert Srun().parse_failure(["srun: Step created for job 11", ""], 0) is None


def test_the_daemons_own_words_belong_to_no_rank() -> None:
    line = "0: slurmstepd-nid0001: error: *** STEP 2.3 ON nid0001 CANCELLED AT 2026-11-15T03:17:13 ***"
    assert Srun().parse_line(line)[0] is None
    assert Srun().parse_line("007: epoch 1: loss 0.5") == (7, "epoch 1: loss 0.5")
