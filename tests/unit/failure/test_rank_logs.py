"""The ranks' output as it is found again in the files of their nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from planning import plan_for
from windlass.errors import MachineError
from windlass.run.failure.rank_logs import RankLogs, rank_logs


def _logs(tmp_path: Path, *nodes: bytes, ranks_per_node: int = 2) -> RankLogs:
    plan, _ = plan_for("workstation", "true", ranks_per_node=ranks_per_node)
    (tmp_path / "out").mkdir()
    logs = rank_logs(plan, tmp_path)
    for node, data in enumerate(nodes):
        logs.path(node * ranks_per_node).write_bytes(data)
    return logs


def test_the_lines_of_one_rank_are_found_again(tmp_path: Path) -> None:
    logs = _logs(tmp_path, b"0: a\n1: b: c\nno label\n1: \n1: \xff\n")
    assert list(logs.lines({1})) == [(1, "b: c"), (1, ""), (1, "\udcff")]
    assert [rank for rank, _ in logs.lines()] == [0, 1, 1, 1]
    assert logs.last_lines([0, 1], 2) == {0: ("a",), 1: ("", "\udcff")}


def test_a_rank_that_wrote_nothing_has_no_lines(tmp_path: Path) -> None:
    logs = _logs(tmp_path)
    assert list(logs.lines()) == []
    assert logs.last_lines([0, 1], 20) == {0: (), 1: ()}
    logs.path(0).mkdir()
    assert logs.last_lines([0], 20) == {0: ()}
    with pytest.raises(MachineError, match="cannot read"):
        list(logs.lines())


def test_the_last_lines_of_a_quiet_rank_are_found_before_megabytes_of_another(tmp_path: Path) -> None:
    logs = _logs(tmp_path, b"1: ValueError: loss is nan\n" + b"0: talk, talk, talk, talk\n" * 400_000)
    assert logs.last_lines([1], 20) == {1: ("ValueError: loss is nan",)}
    assert logs.tails(0, 1) == {0: ("talk, talk, talk, talk",)}
