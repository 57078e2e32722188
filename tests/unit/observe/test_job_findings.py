"""What is worst in a job: one synthetic job per rule, and healthy ones in which nothing stands out."""

from __future__ import annotations

from typing import Any

import msgspec

from looping import each
from windlass.diagnose.watch.demo import demo_job
from windlass.diagnose.watch.findings import find
from windlass.diagnose.watch.job import DeviceRow, Job, NodeRow, Note, RankRow
from windlass.diagnose.watch.past import Past
from windlass.diagnose.watch.prometheus import exposition_text
from windlass.diagnose.watch.screen import screen_text

AT = 1_700_000_000.0


def healthy(**changes: Any) -> Job:
    nodes = tuple(NodeRow(f"nid{n}", AT - 1, 0.5, 50, 100) for n in range(4))
    devices = tuple(DeviceRow(n // 4, n % 4, 0.98, 60, 80, 500.0, 60.0, 1700.0, False, 0.98, 0.0) for n in range(16))
    ranks = tuple(RankRow(n, n // 4, "steps", 1000, AT - 0.1, 100.0 + n % 3, 0.02, 0.05, 4.0, 10) for n in range(16))
    job = Job(at=AT, name="train", interval_s=2.0, nodes=nodes, devices=devices, ranks=ranks)
    return msgspec.structs.replace(job, **changes)


def compared(job: Job) -> Job:
    """The job after a minute in which it looked like this."""
    past = Past()
    for number in range(30):
        ranks = [msgspec.structs.replace(rank, steps=100 + number) for rank in job.ranks]
        past.add(msgspec.structs.replace(job, ranks=tuple(ranks)))
    return past.added_to(job)


def with_rank(number: int, **changes: Any) -> Job:
    job = healthy()
    ranks = [msgspec.structs.replace(r, **changes) if r.rank == number else r for r in job.ranks]
    return msgspec.structs.replace(job, ranks=tuple(ranks))


def all_ranks(**changes: Any) -> Job:
    return healthy(ranks=tuple(msgspec.structs.replace(rank, **changes) for rank in healthy().ranks))


def test_a_healthy_job_says_so_with_its_pace() -> None:
    (finding,) = find(healthy())
    assert (finding.severity, finding.kind, finding.evidence) == (
        "ok",
        "steady",
        "no performance problem found: steps of 101 ms",
    )


def _nodes(**changes: Any) -> Job:
    nodes = healthy().nodes
    return healthy(nodes=(msgspec.structs.replace(nodes[0], **changes), *nodes[1:]))


def _devices(**changes: Any) -> Job:
    devices = healthy().devices
    return healthy(devices=(msgspec.structs.replace(devices[0], **changes), *devices[1:]))


def _one_waits_for_nobody() -> Job:
    job = all_ranks(comm_share=0.4)
    return msgspec.structs.replace(
        job, ranks=(*job.ranks[:5], msgspec.structs.replace(job.ranks[5], comm_share=0.01), *job.ranks[6:])
    )


@each(
    ("job", "severity", "kind", "said"),
    [
        (
            with_rank(5, last_at=AT - 200, steps=990),
            "error",
            "stalled",
            "rank 5: no step for 200 s, since step 990",
        ),
        (_nodes(at=AT - 100), "error", "lost", "nid0: sent no sample for more than 30 s"),
        (_nodes(memory_bytes=95), "error", "memory-pressure", "nid0: more than 92% of the memory limit"),
        (with_rank(3, alloc_retries=2), "warning", "device-memory", "rank 3"),
        (all_ranks(wait_share=0.43), "error", "input-bound", "ranks wait for data 43% of the time"),
        (all_ranks(wait_share=0.12), "warning", "input-bound", "12%"),
        (with_rank(7, wait_share=0.6), "error", "input-straggler", "rank 7: waits 60%"),
        (
            with_rank(7, step_ms=190.0),
            "error",
            "straggler",
            "rank 7 on nid1: slower than the other ranks, which wait for it (177 ms",
        ),
        (_one_waits_for_nobody(), "error", "straggler", "rank 5 on nid1: slower than the other ranks"),
        (all_ranks(comm_share=0.35), "warning", "network-bound", "takes 35% of a step"),
        (_devices(throttled=True), "error", "throttled-devices", "nid0 0: 1 of 16 devices lowered the clock"),
        (_devices(busy=0.01), "error", "idle-devices", "nid0 0: 1 of 16 devices was idle"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_each_fault_is_the_first_thing_said(job: Job, severity: str, kind: str, said: str) -> None:
    first = find(compared(job))[0]
    assert (first.severity, first.kind) == (severity, kind)
    assert said in first.text()
    assert first.advice


def test_what_is_not_known_is_no_fault() -> None:
    job = all_ranks(wait_share=None, comm_share=None, cpu=None)
    job = msgspec.structs.replace(job, devices=(), nodes=tuple(NodeRow(n.host, AT) for n in job.nodes))
    assert [finding.kind for finding in find(job)] == ["steady"]


def test_ranks_that_the_hook_does_not_see_are_a_note_with_the_way_out() -> None:
    job = with_rank(2, activity="command", step_ms=None)
    note = next(finding for finding in find(job) if finding.kind == "unseen")
    assert "rank 2" in note.text()
    assert "windlass.step()" in note.advice


def test_before_the_first_step_the_job_is_starting() -> None:
    ranks = tuple(RankRow(n, 0, "python") for n in range(4))
    assert find(healthy(ranks=ranks, devices=()))[0].kind == "starting"
    nothing = tuple(NodeRow(node.host, 0.0) for node in healthy().nodes)
    assert "no sample" in find(healthy(ranks=(), devices=(), nodes=nothing))[0].evidence


def test_an_ended_job_is_judged_by_all_of_its_steps() -> None:
    job = all_ranks(activity="ended", wait_share=0.01, all_wait_share=0.5, last_at=AT - 5000)
    first = find(msgspec.structs.replace(job, ended=True))[0]
    assert (first.kind, "50%" in first.evidence) == ("input-bound", True)


def test_the_screen_fits_its_columns_and_lines_and_has_the_answer_first() -> None:
    job = demo_job(500, AT)
    for width in (40, 60, 80, 200):
        for height in (8, 24, 50):
            lines = screen_text(job, find(job), width=width, height=height).splitlines()
            assert len(lines) <= height
            assert max(len(line) for line in lines) <= width
            assert lines[1].startswith("error ")


def test_the_screen_shows_all_ranks_of_a_small_job_and_unknown_where_nothing_is_known() -> None:
    job = all_ranks(comm_share=None)
    text = screen_text(job, find(job))
    assert "collectives %      unknown" in text
    assert sum(line.split()[0].isdigit() for line in text.splitlines() if line.strip()) == 16
    assert "\x1b" not in text
    assert "\x1b[" in screen_text(job, find(job), colour=True)


def test_an_empty_job_has_a_screen_too() -> None:
    job = Job(at=AT, name="x", interval_s=2.0, nodes=(), notes=(Note(text="why", nodes=""),))
    assert "why" in screen_text(job, find(job))


def test_prometheus_gets_figures_and_names_and_nothing_else() -> None:
    job = compared(with_rank(7, step_ms=190.0))
    text = exposition_text(msgspec.structs.replace(job, name='odd"name\n'), find(job))
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert 'windlass_rank_step_seconds{job="odd\\"name\\n",rank="7",node="nid1"} 0.19' in lines
    assert any('kind="straggler",severity="error"' in line for line in lines)
    assert len(lines) == len(set(lines))
    assert all(" " not in line.rpartition("}")[2].strip() for line in lines)
    assert "windlass_node_power_watts" not in text


def test_rows_of_a_demo_are_the_same_for_the_same_time() -> None:
    assert demo_job(3, AT) == demo_job(3, AT)
