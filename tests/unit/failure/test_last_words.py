"""The end of a run in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from planning import plan_for
from windlass.model.record import RECORD_VERSION, Outcome, RankFailure, RunRecord
from windlass.run.execute import explain_end, good_end
from windlass.run.folder import RunFolder, make_folder


def _record(outcome: Outcome = "failed", code: int = 1, failure: RankFailure | None = None) -> RunRecord:
    return RunRecord(
        version=RECORD_VERSION,
        windlass="0",
        name="x",
        site="lumi",
        nodes=1,
        ranks_per_node=1,
        hosts="n1",
        outcome=outcome,
        exit_code=code,
        started="",
        seconds=1.25,
        failure=failure,
    )


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return make_folder(str(tmp_path / "r"), tmp_path, "x")


def _words(record: RunRecord, folder: RunFolder, seen: bool = False) -> str:
    return "\n".join(explain_end(record, folder, seen=lambda _: seen))


def test_a_good_end_needs_no_explanation(folder: RunFolder) -> None:
    assert _words(_record("ok", 0), folder) == ""


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (RankFailure(rank=3, host="n1", code=7), "rank 3 on n1 exited with code 7 after 1.2 s"),
        (RankFailure(rank=3, host="n1", signal=9), "rank 3 on n1 was killed by SIGKILL"),
        (RankFailure(rank=3, signal=63), "rank 3 was killed by signal 63"),
        (RankFailure(rank=None, signal=11), "a rank was killed by SIGSEGV"),
        (RankFailure(rank=None, said="Unable to create step"), "the launcher says: Unable to create step"),
        (RankFailure(rank=None, host="n7", said="Node failure"), "the launcher says (node n7): Node failure"),
    ],
)
def test_who_and_how(folder: RunFolder, failure: RankFailure, told: str) -> None:
    assert told in _words(_record(failure=failure), folder)


def test_ranks_that_never_started_are_not_said_to_have_been_ended(folder: RunFolder) -> None:
    words = _words(_record(failure=RankFailure(rank=None, said="Unable to create step")), folder)
    assert "all other ranks" not in words
    assert "launcher.log" in words


def test_last_lines_are_shown_unless_they_were_seen(folder: RunFolder) -> None:
    failure = RankFailure(rank=3, host="n1", code=7, log="out/node-0000.log", last_lines=("boom",))
    assert "  | boom" in _words(_record(failure=failure), folder)
    assert "boom" not in _words(_record(failure=failure), folder, seen=True)


def test_nobody_to_blame_points_to_the_launchers_words(folder: RunFolder) -> None:
    assert "no rank to blame" in _words(_record(), folder)


def test_a_good_end_tells_which_ranks_are_not_where_they_were_planned(folder: RunFolder) -> None:
    plan, _ = plan_for("workstation", ranks_per_node=2)
    folder.part("where/0").write_text("0\tn1\t0-1\t\t1\n1\tn1\t0\t\t2\n")
    lines = good_end(plan, _record("ok", 0), folder)
    assert "  rank 0 on n1: cpus 0-1 (as planned)" in lines
    assert "  rank 1 on n1: cpus 0 (planned 2-3)" in lines
