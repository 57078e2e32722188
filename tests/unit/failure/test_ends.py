"""What rank scripts reported: who failed first, and where everybody was."""

from __future__ import annotations

from pathlib import Path

from windlass.failure.ends import first_end, read_seats
from windlass.run.folder import RunFolder, make_folder


def _folder(tmp_path: Path, *ends: str) -> RunFolder:
    folder = make_folder(str(tmp_path / "r"), tmp_path, "x")
    for node, text in enumerate(ends):
        folder.part(f"ends/{node}").write_text(text)
    return folder


def test_the_earliest_cause_is_the_one_to_name(tmp_path: Path) -> None:
    found = first_end(_folder(tmp_path, "9.5\t0\ta\t143\n10.0\t1\ta\t7\n", "8.0\t2\tb\t0\n9.9\t3\tb\t9\n"))
    assert found is not None
    assert (found.rank, found.host, found.code) == (3, "b", 9)


def test_where_all_were_ended_by_signals_the_first_is_named(tmp_path: Path) -> None:
    found = first_end(_folder(tmp_path, "9.5\t0\ta\t143\n9.1\t1\ta\t137\n"))
    assert found is not None
    assert (found.rank, found.signal, found.exit_code) == (1, 9, 137)


def test_good_ends_and_torn_lines_are_nobodys_failure(tmp_path: Path) -> None:
    assert first_end(_folder(tmp_path, "9.5\t0\ta\t0\n9.6\t1\n\nnonsense\n9.9\tx\ta\t1\n")) is None
    assert first_end(_folder(tmp_path)) is None


def test_a_clock_without_nanoseconds_is_good_enough(tmp_path: Path) -> None:
    found = first_end(_folder(tmp_path, "1700000001.%N\t0\ta\t3\n1700000000.%N\t1\ta\t4\nsoon\t2\ta\t5\n"))
    assert found is not None and found.rank == 1


def test_seats_are_read_from_all_nodes_and_torn_ones_passed_over(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    folder.part("where/0").write_text("0\tn0\t0-3\t\t100\n1\tn0\t4-7\t1\t101\n2\tn")
    folder.part("where/1").write_text("3\tn1\t0-3\t0\t200\n")
    seats = sorted(read_seats(folder.part("where")))
    assert [(seat.rank, seat.host, seat.cpus, seat.device) for seat in seats] == [
        (0, "n0", "0-3", ""),
        (1, "n0", "4-7", "1"),
        (3, "n1", "0-3", "0"),
    ]
