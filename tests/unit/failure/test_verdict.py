"""One judgement: a run that starts once and a supervised one find the same cause, and the record agrees with it."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from conformance.launcher_cases import WORDS
from looping import each
from planning import plan_for
from windlass.backends.launchers import get_launcher
from windlass.model.plan import Plan
from windlass.model.record import RECORD_VERSION, Outcome, RankFailure, RunRecord
from windlass.model.request import Allocation
from windlass.run.execute import RanksEnd
from windlass.run.failure.decide import Decision, RestartOptions
from windlass.run.failure.ends import End
from windlass.run.failure.root_cause import Cause
from windlass.run.failure.verdict import Attempt, Times, Verdict, read_verdict, verdict_lines
from windlass.run.folder import RunFolder, make_folder
from windlass.run.planning import Run
from windlass.run.supervise.evidence import Ended, gather
from windlass.run.verdict import Judgement, good_end, judge_attempt, judge_once

_HOSTS = ("nid0001", "nid0002")
_NAN = ("Traceback (most recent call last):", '  File "train.py", line 9, in <module>', "ValueError: loss is nan")
_LOST = (
    "Traceback (most recent call last):",
    '  File "train.py", line 9, in <module>',
    "RuntimeError: [pair.cc:537] Read error [10.0.0.2]:670: Connection reset by peer",
)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return make_folder(str(tmp_path / "r"), tmp_path, "x")


def _record(outcome: Outcome = "failed", code: int = 1, failure: RankFailure | None = None) -> RunRecord:
    return RunRecord(
        version=RECORD_VERSION,
        windlass="0",
        name="x",
        site="lumi",
        nodes=2,
        ranks_per_node=2,
        hosts="nid[0001-0002]",
        outcome=outcome,
        exit_code=code,
        started="",
        seconds=1.25,
        failure=failure,
    )


def _plan(launcher: str) -> Plan:
    if launcher == "local":
        return plan_for("workstation", "true", ranks_per_node=4)[0]
    two = Allocation(scheduler="slurm", job_id="7", hosts=_HOSTS)
    return plan_for("generic-slurm", "true", allocation=two, ranks_per_node=2, launcher=launcher)[0]


def _leave(folder: RunFolder, plan: Plan, logs: dict[int, tuple[str, ...]], ends: dict[int, str]) -> None:
    """The files of a start with four ranks, as this launcher and the rank scripts write them."""
    launcher = get_launcher(plan.launcher)
    label = WORDS[plan.launcher].label if launcher.output == "files" else (lambda rank, text: f"{rank}: {text}")
    for rank in range(4):
        node = rank // plan.ranks_per_node
        seat = f"{rank}\t{_HOSTS[node]}\t{rank}\t\t{100 + rank}\n"
        with folder.part(f"where/{node}").open("a") as where:
            where.write(seat)
        with (folder.part("out") / launcher.node_log.format(node_rank=node)).open("a") as log:
            log.write("".join(label(rank, line) + "\n" for line in ("step 1", *logs.get(rank, ()))))
        if rank in ends:
            with folder.part(f"ends/{node}").open("a") as file:
                file.write(ends[rank].format(rank=rank, host=_HOSTS[node]) + "\n")


def _run(folder: RunFolder, plan: Plan) -> Run:
    return cast(Run, SimpleNamespace(folder=folder, plan=plan, view=SimpleNamespace(note=print)))


def _end(
    code: int = 1,
    launcher: RankFailure | None = None,
    *,
    stopped_by: signal.Signals | None = None,
    failing: bool = True,
) -> RanksEnd:
    now = time.time()
    return RanksEnd(
        hosts=_HOSTS,
        code=code,
        failing=failing and stopped_by is None,
        launcher=launcher,
        stopped_by=stopped_by,
        started=now - 1.25,
        ended=now,
    )


def _once(folder: RunFolder, plan: Plan, end: RanksEnd) -> Judgement:
    return judge_once(_run(folder, plan), end)


def _supervised(folder: RunFolder, plan: Plan, end: RanksEnd, hang: str | None = None) -> Judgement:
    """As the loop does it, where no agent and no node said anything more."""
    ended = Ended(
        number=0,
        plan=plan,
        end=end,
        sidecar=cast(Any, SimpleNamespace(oom=set(), last_step=lambda: None)),
        watch=cast(Any, SimpleNamespace(hang=hang, time_up=False, noticed=None, lost=())),
        stacks=None,
    )
    seen, states = gather(ended, folder, {"PATH": "/nowhere"})
    attempt = Attempt(folder=folder.path, number=0, session="7/1", hosts="", started=end.started, ended=end.started + 1)
    return judge_attempt(_run(folder, plan), attempt, end, seen, (), lambda _: RestartOptions(), states)


def _verdict_of(judged: Judgement) -> Verdict:
    """The verdict, which must agree with the record that is written with it."""
    verdict, failure = judged.verdict, judged.record.failure
    assert verdict is not None
    cause = verdict.cause
    assert judged.record.outcome != "ok"
    if failure is not None:
        assert (failure.rank, failure.host, failure.code, failure.signal) == (
            cause.rank,
            cause.host,
            cause.code,
            cause.signal,
        )
    else:
        assert (cause.rank, cause.host) == (None, None)
    return verdict


def _judged(
    tmp_path: Path, launcher: str, said: RankFailure | None, logs: dict[int, tuple[str, ...]], ends: dict[int, str]
) -> Verdict:
    """The verdict on these files, which must be the same on both paths; a run that starts once may have no ends."""
    found = []
    kept = []
    records = []
    paths: tuple[tuple[str, Callable[..., Judgement]], ...] = (("once", _once), ("supervised", _supervised))
    for name, path in paths:
        folder = make_folder(str(tmp_path / name), tmp_path, "x")
        plan = _plan(launcher)
        _leave(folder, plan, logs, ends if path is _supervised or plan.parent else {})
        judged = path(folder, plan, _end(launcher=said))
        found.append(_verdict_of(judged))
        records.append((judged.record.outcome, judged.record.exit_code, judged.record.failure))
        kept.append({file.name: file.read_text() for file in folder.part("evidence").iterdir()})
    assert found[0].cause == found[1].cause
    assert found[0].decision == found[1].decision
    assert records[0] == records[1]
    mine = f"rank-{found[0].cause.rank}.txt"
    of_cause = [{name: text for name, text in files.items() if name.endswith(mine)} for files in kept]
    assert of_cause[0] == of_cause[1]
    assert kept[0].keys() <= kept[1].keys(), "where ranks report their ends, more of them are known"
    assert found[0] == read_verdict(tmp_path / "once")
    return found[0]


def _said(launcher: str, how: str, code: int, rank: int = 2) -> RankFailure | None:
    """The launcher's own complaint about rank 2, as it really writes it, or what windlass sees itself."""
    if launcher == "local":
        host = _HOSTS[0]
        if how == "killed":
            return RankFailure(rank=rank, host=host, signal=9)
        return RankFailure(rank=rank, host=host, code=code)
    lines = getattr(WORDS[launcher], how)
    return get_launcher(launcher).parse_failure(lines, code)


_LAUNCHERS = ["local", "srun", "pals", "openmpi", "flux", "hydra"]


@each("launcher", _LAUNCHERS)
@each("date", ["1700000000.123456789", "1700000000.%N"])
def test_an_exception_is_told_in_the_same_words_by_both_kinds_of_runs(tmp_path: Path, launcher: str, date: str) -> None:
    ends = {2: f"{date}\t{{rank}}\t{{host}}\t3", 0: f"{date}\t{{rank}}\t{{host}}\t143"}
    found = _judged(tmp_path, launcher, _said(launcher, "exited", 3), {2: _NAN, 0: ("Terminated",)}, ends)
    assert found.cause.line().endswith(" exited with code 3: ValueError: loss is nan")
    assert (found.cause.rank, found.cause.kind, found.cause.traceback) == (2, "user", _NAN)
    assert found.decision == Decision(action="stop", why="no restart left")


@each("launcher", _LAUNCHERS)
def test_a_killed_rank_is_told_in_the_same_words_by_both_kinds_of_runs(tmp_path: Path, launcher: str) -> None:
    ends = {
        2: "1700000000.5\t{rank}\t{host}\t137",
        3: "1700000000.6\t{rank}\t{host}\t1",
        0: "1700000000.9\t{rank}\t{host}\t143",
    }
    found = _judged(tmp_path, launcher, _said(launcher, "killed", 137), {3: _LOST}, ends)
    assert (found.cause.rank, found.cause.signal) == (2, 9)
    assert found.cause.line().endswith(" was killed by SIGKILL")


@each("launcher", ["local", "srun"])
def test_the_rank_that_failed_is_found_although_the_launcher_names_one_that_lost_it(
    tmp_path: Path, launcher: str
) -> None:
    ends = {2: "1700000000.1\t{rank}\t{host}\t1", 1: "1700000000.7\t{rank}\t{host}\t1"}
    found = _judged(tmp_path, launcher, _said(launcher, "exited", 1), {2: _LOST, 1: _NAN}, ends)
    assert found.cause.line() == "rank 1 on nid0001 exited with code 1: ValueError: loss is nan"


@each("launcher", ["local", "srun", "pals", "openmpi"])
def test_a_killed_rank_script_is_not_told_as_ranks_that_left_on_request(tmp_path: Path, launcher: str) -> None:
    ends = dict.fromkeys((0, 1, 3), "1700000000.1\t{rank}\t{host}\t85")
    found = _judged(tmp_path, launcher, _said(launcher, "killed", 137), {}, ends)
    assert (found.cause.kind, found.cause.rank) == ("transient", 2)
    assert found.cause.line().endswith(" was killed by SIGKILL")


def test_a_launcher_that_names_nobody_is_quoted_by_both_kinds_of_runs(tmp_path: Path) -> None:
    said = RankFailure(rank=None, said="Unable to create step for job 7: Invalid generic resource (gres)")
    assert _judged(tmp_path, "srun", said, {}, {}).cause.line() == f"the launcher says: {said.said}"
    assert "rank None" not in _judged(tmp_path / "again", "srun", None, {}, {}).cause.line()


def test_a_run_that_was_stopped_says_so(folder: RunFolder) -> None:
    plan = _plan("srun")
    verdict = _verdict_of(judge_once(_run(folder, plan), _end(stopped_by=signal.SIGTERM)))
    assert (verdict.cause.kind, verdict.decision.action) == ("stopped", "stop")
    assert (
        _words(verdict, _record("stopped", 143), folder) == f"windlass: stopped after 1.2 s; run folder {folder.path}"
    )


_ABORTED = RankFailure(rank=None, said="Job step aborted: Waiting up to 32 seconds for job step to finish.")


@each(
    ("end", "late", "kind"),
    [
        (_end(launcher=_ABORTED), True, "walltime"),  # as in `salloc`: Slurm ends the step, windlass hears nothing
        (_end(launcher=_ABORTED), False, "transient"),
        (_end(stopped_by=signal.SIGHUP), True, "walltime"),
        (_end(stopped_by=signal.SIGTERM), True, "walltime"),
        (_end(stopped_by=signal.SIGINT), True, "stopped"),
        (_end(stopped_by=signal.SIGTERM), False, "stopped"),
        (_end(launcher=RankFailure(rank=1, code=3)), True, "user"),
    ],
)
def test_the_end_of_the_allocation_is_told_from_other_ends(
    folder: RunFolder, end: RanksEnd, late: bool, kind: str
) -> None:
    judged = judge_once(_run(folder, _plan("srun")), end, time.time() + (0 if late else 600))
    assert _verdict_of(judged).cause.kind == kind


def test_the_record_of_a_hang_names_the_rank_that_the_verdict_names(folder: RunFolder) -> None:
    """Ranks that were ended because of a hang leave ends of their own: neither file may blame the first of them."""
    plan = _plan("srun")
    _leave(folder, plan, {}, {1: "1700000000.1\t{rank}\t{host}\t143"})
    judged = _supervised(folder, plan, _end(143, RankFailure(rank=1, signal=15)), hang="no output for 9 s")
    assert _verdict_of(judged).cause.kind == "hang"
    assert (judged.record.outcome, judged.record.exit_code) == ("killed", 143)


def test_a_hang_whose_ranks_leave_with_code_0_when_asked_is_no_success(folder: RunFolder) -> None:
    judged = _supervised(folder, _plan("srun"), _end(0), hang="no output for 9 s")
    assert (_verdict_of(judged).cause.kind, judged.record.exit_code) == ("hang", 1)


def test_a_launcher_that_fails_after_all_ranks_have_finished_is_a_remark(folder: RunFolder) -> None:
    plan = _plan("srun")
    _leave(folder, plan, {}, dict.fromkeys(range(4), "1700000000.1\t{rank}\t{host}\t0"))
    judged = judge_once(_run(folder, plan), _end(143, _ABORTED))
    assert (judged.verdict, judged.record.outcome, judged.record.exit_code) == (None, "ok", 0)
    assert len(judged.record.remarks) == 1


def test_a_kill_for_memory_is_named_without_supervision(folder: RunFolder) -> None:
    plan = _plan("local")
    _leave(folder, plan, {}, {})
    killed = End(at=5.0, rank=2, host="n1", code=137)
    end = dataclasses.replace(
        _end(137, RankFailure(rank=2, host="n1", signal=9)), ends=(killed,), oom=frozenset({"n1"})
    )
    assert _verdict_of(judge_once(_run(folder, plan), end)).cause.kind == "memory"


def test_a_run_that_finished_has_no_verdict(folder: RunFolder) -> None:
    judged = judge_once(_run(folder, _plan("srun")), _end(0, failing=False))
    assert (judged.verdict, judged.record.outcome, judged.record.exit_code) == (None, "ok", 0)
    assert folder.result() == judged.record


def test_progress_is_counted_from_the_ledger_of_snapshots(folder: RunFolder) -> None:
    now = time.time()
    lines = [(now - 90, "saved", 5), (now - 1, "loaded", 5), (now - 0.5, "saved", 10)]
    text = "".join(f"{at}\t{what}\t{step}\t/scratch/x\n" for at, what, step in lines)
    folder.write("snapshots.tsv", text)
    verdict = _verdict_of(judge_once(_run(folder, _plan("srun")), _end(launcher=RankFailure(rank=1, code=1))))
    assert (verdict.from_step, verdict.to_step, verdict.cause.step) == (5, 10, 10)


# What a person reads


def _words(verdict: Verdict, record: RunRecord, folder: RunFolder, shown: bool = False) -> str:
    return "\n".join(verdict_lines(verdict, record, folder.path, shown=lambda _: shown))


def _verdict(cause: Cause) -> Verdict:
    return Verdict(attempt=0, cause=cause, decision=Decision(action="stop", why="no restart left"))


def test_last_lines_are_shown_below_the_cause_unless_they_were_seen(folder: RunFolder) -> None:
    failure = RankFailure(rank=3, host="n1", code=7, log="out/node-0000.log", last_lines=("boom",))
    verdict = _verdict(Cause(kind="user", rank=3, host="n1", code=7, reason="exited with code 7"))
    lines = _words(verdict, _record(failure=failure), folder).splitlines()
    assert lines[0] == "windlass: rank 3 on n1 exited with code 7"
    assert "  | boom" in lines
    assert lines[-2:] == [
        f"windlass: output of this rank: windlass logs {folder.path} --rank 3",
        f"windlass: settings and their reasons: windlass explain {folder.path}",
    ]
    assert "boom" not in _words(verdict, _record(failure=failure), folder, shown=True)
    assert "the run lasted 1.2 s\n" in _words(verdict, _record(failure=failure), folder)
    timed = msgspec.structs.replace(verdict, times=Times(started=10.0, failed=10.5, ended=11.2))
    assert "1.2 s; it took 0.7 s to end all other ranks" in _words(timed, _record(failure=failure), folder)


def test_ranks_that_never_started_are_not_said_to_have_been_ended(folder: RunFolder) -> None:
    folder.write("launcher.log", "srun: error: Unable to create step\n")
    verdict = _verdict(Cause(kind="transient", reason="the launcher says: Unable to create step"))
    words = _words(verdict, _record(), folder)
    assert "all other ranks" not in words
    assert f"{folder.path}/launcher.log" in words


@each(
    ("said", "hint"),
    [
        ("slurmstepd: error: task/affinity: CPU binding outside of job step allocation", "--cpu-bind none"),
        ("srun: error: Unable to create step for job 1: More processors requested than permitted", "fewer CPUs"),
        ("ssh: Could not resolve hostname nid9: Name or service not known", "not known by this name"),
        ("srun: error: Invalid account or account/partition combination specified", "--account NAME"),
    ],
)
def test_an_error_of_the_launcher_itself_comes_with_what_helps(folder: RunFolder, said: str, hint: str) -> None:
    folder.write("launcher.log", f"something before\n{said}\n")
    words = _words(_verdict(Cause(kind="transient", reason="the launcher ended with code 1")), _record(), folder)
    assert "windlass: hint: " in words and hint in words


def test_words_of_a_launcher_that_nobody_knows_bring_no_hint(folder: RunFolder) -> None:
    folder.write("launcher.log", "mpiexec: something new\n")
    verdict = _verdict(Cause(kind="transient", reason="the launcher ended with code 1"))
    assert "hint" not in _words(verdict, _record(), folder)


def test_a_good_end_tells_which_ranks_are_not_where_they_were_planned(folder: RunFolder) -> None:
    plan, _ = plan_for("workstation", ranks_per_node=2)
    folder.part("where/0").write_text("0\tn1\t0-1\t\t1\n1\tn1\t0\t\t2\n")
    lines = good_end(plan, _record("ok", 0), folder)
    assert "  rank 0 on n1: cpus 0-1 (as planned)" in lines
    assert "  rank 1 on n1: cpus 0 (planned 2-3)" in lines
