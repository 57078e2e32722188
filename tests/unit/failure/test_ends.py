"""What rank scripts reported: how each rank ended, and where everybody was."""

from __future__ import annotations

from pathlib import Path

from planning import plan_for
from windlass.model.request import Allocation
from windlass.run.failure.ends import any_failed, read_ends, read_seats
from windlass.run.failure.rank_logs import RankLogs, rank_logs


def _logs(tmp_path: Path, *ends: str) -> RankLogs:
    two = Allocation(scheduler="slurm", job_id="7", hosts=("nid1", "nid2"))
    plan, _ = plan_for("generic-slurm", "true", allocation=two, ranks_per_node=2)
    (tmp_path / "ends").mkdir()
    for node, text in enumerate(ends):
        (tmp_path / "ends" / str(node)).write_text(text)
    return rank_logs(plan, tmp_path)


def test_ends_are_read_from_all_nodes_with_the_schedulers_names_of_hosts(tmp_path: Path) -> None:
    logs = _logs(tmp_path, "9.5\t0\ta\t143\n10.0\t1\ta\t7\n", "8.0\t2\tb\t0\n9.9\t3\tb\t139\n")
    assert [(end.rank, end.host, end.code, end.signal) for end in read_ends(logs)] == [
        (2, "nid2", 0, None),
        (0, "nid1", 143, 15),
        (3, "nid2", 139, 11),
        (1, "nid1", 7, None),
    ]
    assert any_failed(tmp_path)


def test_good_ends_and_torn_lines_are_nobodys_failure(tmp_path: Path) -> None:
    logs = _logs(tmp_path, "9.5\t0\ta\t0\n9.6\t1\n\nnonsense\n9.9\tx\ta\t1\n")
    assert [end.rank for end in read_ends(logs)] == [0]
    assert not any_failed(tmp_path / "elsewhere")


def test_a_clock_without_nanoseconds_is_good_enough(tmp_path: Path) -> None:
    logs = _logs(tmp_path, "1700000001.%N\t0\ta\t3\n1700000000.%N\t1\ta\t4\nsoon\t2\ta\t5\n")
    assert [(end.at, end.rank) for end in read_ends(logs)] == [
        (1700000000.0, 1),
        (1700000001.0, 0),
        (float("inf"), 2),
    ]


def test_seats_are_read_from_all_nodes_and_torn_ones_passed_over(tmp_path: Path) -> None:
    (tmp_path / "where").mkdir()
    (tmp_path / "where/0").write_text("0\tn0\t0-3\t\t100\n1\tn0\t4-7\t1\t101\n2\tn")
    (tmp_path / "where/1").write_text("3\tn1\t0-3\t0\t200\n")
    seats = sorted(read_seats(tmp_path / "where"))
    assert [(seat.rank, seat.host, seat.cpus, seat.device) for seat in seats] == [
        (0, "n0", "0-3", ""),
        (1, "n0", "4-7", "1"),
        (3, "n1", "0-3", "0"),
    ]
