"""Output of nccl-tests and of the oneCCL benchmark, read as records. Headings are those that its versions print."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looping import each
from unit.bench.commands import bench
from unit.cli.typed import windlass
from windlass.bench.collectives.rows import average_busbw
from windlass.bench.imported import Known, parse_foreign
from windlass.bench.reading import read_record
from windlass.bench.record import BenchRecord
from windlass.errors import ConfigError, UsageError, WindlassError

DATA = Path(__file__).parent / "data"
TABLE = Path(__file__).parents[3] / "examples" / "benchmarks" / "nccl-tests-2x4-gh200.txt"
PUBLISHED = TABLE.read_text()
END = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 1.5\n"
ROOT = "#       size         count      type   redop    root"
HALF = "     time   algbw   busbw #wrong"


def read(text: str, known: Known | None = None) -> BenchRecord:
    return parse_foreign(text.encode(), known or Known(op="all_reduce", ranks=8), where="out.txt")


def test_op_and_ranks_of_an_old_table_are_told_from_its_bandwidths() -> None:
    record = read_record(TABLE, Known(nodes=2, device="GH200"))
    assert len(record.rows) == 28
    assert {row.labels["op"] for row in record.rows} == {"all_reduce"}
    assert {row.labels["ranks"] for row in record.rows} == {8}
    assert record.software == {"nccl": "2.20.5+cuda12.4"}
    assert average_busbw(record.rows) == pytest.approx(103.965, abs=0.01)
    assert record.rows[-1].labels["placement"] == "in-place"
    assert record.rows[-1].figures["busbw"].value == pytest.approx(158.69, abs=0.01)


def test_a_new_table_names_its_op_its_hosts_and_its_devices() -> None:
    record = read_record(DATA / "nccl-alltoall-new.txt")
    assert record.where.nodes == 2
    assert record.where.hosts == "nid0001,nid0002"
    assert record.device["name"] == "NVIDIA GH200 120GB"
    assert {(row.labels["op"], row.labels["ranks"]) for row in record.rows} == {("all_to_all", 4)}
    assert [row.wrong for row in record.rows] == [0, None, 3, None]
    assert record.rows[0].figures["busbw"].value == pytest.approx(7.86, abs=0.01)


def test_what_a_table_does_not_say_is_asked_for(tmp_path: Path) -> None:
    table = (DATA / "nccl-alltoall-new.txt").read_text().replace("alltoall_perf", "")
    (tmp_path / "out.txt").write_text("\n".join(line for line in table.splitlines() if "Rank" not in line))
    with pytest.raises(UsageError, match="which collective"):
        read_record(tmp_path / "out.txt")
    record = read_record(tmp_path / "out.txt", Known(op="all_gather"))
    assert record.rows[0].labels["ranks"] == 4, "busbw / algbw = 3/4 can only be four ranks"
    with pytest.raises(UsageError, match="how many ranks"):
        read_record(tmp_path / "out.txt", Known(op="broadcast", ranks=None, nodes=None))


def test_a_table_without_results_is_refused(tmp_path: Path) -> None:
    head = PUBLISHED.splitlines()[:8]
    (tmp_path / "out.txt").write_text("\n".join(head))
    with pytest.raises(ConfigError, match="no result line"):
        read_record(tmp_path / "out.txt")


def test_oneccl_tells_times_and_the_bandwidths_are_ours() -> None:
    record = read_record(DATA / "oneccl.txt", Known(nodes=1))
    one, two, three = record.rows
    assert (one.labels["op"], one.labels["ranks"], one.labels["type"]) == ("all_reduce", 4, "float")
    assert two.figures["algbw"].value == pytest.approx(1048576 / 320e-6 / 1e9)
    assert two.figures["busbw"].value == pytest.approx(two.figures["algbw"].value * 1.5)
    assert three.labels["op"] == "all_gather"
    assert three.labels["bytes"] == 4 << 20, "oneCCL counts what one rank sends, nccl-tests what all hold"


def test_a_table_of_old_versions_has_errors_instead_of_counts_and_no_root() -> None:
    heading = (
        "#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error\n"
    )
    row = "     1048576        262144   float     sum    105.9    9.90   17.33  1e-07    105.7    9.92   17.36  1e-07\n"
    record = read(heading + row + END, Known())
    assert [(one.labels["op"], one.labels["ranks"], one.wrong) for one in record.rows] == [("all_reduce", 8, None)] * 2


def test_percentiles_time_stamps_and_copies_are_passed_over() -> None:
    more = "    i_min    i_max    i_p99    i_cv%"
    row = "     1048576        262144     float     sum      -1   105.90    9.90   17.33       0"
    figures = "   101.00   130.20   128.00     3.10"
    again = "   105.70    9.92   17.36       0"
    heading = ROOT + HALF + more + HALF + more + "           timestamp\n"
    record = read(heading + row + figures + again + figures + "  2026-07-09 10:11:12\n" + END)
    assert [one.figures["time"].value for one in record.rows] == [105.9, 105.7]
    beside = HALF.replace("#wrong", "copybw #wrong")
    copied = row.replace(" 0", " 12.00 0") + again.replace(" 0", " 11.00 0")
    record = read(ROOT + beside + beside + "\n" + copied + "\n" + END)
    assert [one.wrong for one in record.rows] == [0, 0]


@each("heading", [ROOT + HALF + HALF, ROOT + HALF])
def test_a_row_may_have_its_in_place_half_alone(heading: str) -> None:
    lead = "     1048576        262144     float     sum      -1"
    gap = " " * 32 if heading.count("algbw") == 2 else ""
    record = read(heading + "\n" + lead + gap + "   105.70    9.92   17.36       0\n" + END)
    assert [one.labels["placement"] for one in record.rows] == ["in-place"]


def test_tables_of_several_collectives_are_told_apart_and_repetitions_become_samples() -> None:
    table = PUBLISHED[PUBLISHED.index("#  ") :]
    text = "# Collective test starting: all_reduce_perf\n" + table
    record = read(text + text + text.replace("all_reduce", "broadcast"), Known(ranks=8))
    assert {one.labels["op"] for one in record.rows} == {"all_reduce", "broadcast"}
    assert len(record.rows) == 56
    assert [len(one.samples["time_s"]) for one in record.rows] == [2] * 28 + [1] * 28
    assert record.rows[-1].figures["busbw"].value == record.rows[-1].figures["algbw"].value


def test_labels_of_ranks_do_not_hide_a_table() -> None:
    for label in ("[0] ", "0: ", "[ 0] "):
        record = read("\n".join(label + line for line in PUBLISHED.splitlines()))
        assert len(record.rows) == 28


def test_a_table_that_was_cut_off_is_read_up_to_there_and_called_partial() -> None:
    whole = PUBLISHED[: PUBLISHED.index("# Out of bounds")]
    for cut in (whole, whole[:-40], whole[: whole.rindex("94752")], whole[: whole.rindex("2147483648")]):
        record = read(cut)
        killed = read(cut + "\nslurmstepd: error: *** STEP 7.0 ON nid0001 CANCELLED DUE TO TIME LIMIT ***\n")
        assert (len(killed.rows), killed.complete) == (len(record.rows), False)
        assert not record.complete
        assert "stopped" in record.remarks[-1]
        assert len(record.rows) in (26, 28)


def test_a_line_that_cannot_be_right_is_named() -> None:
    number = PUBLISHED[: PUBLISHED.index("12174")].count("\n") + 1
    for damage, said in (
        ("12174 nid001:71:71 [0] NCCL INFO comm", "columns"),
        ("1217", "88.20"),
        ("-12174", "no number"),
        ("0.00", "not positive"),
        ("inf", "no number"),
    ):
        with pytest.raises(ConfigError, match=rf"line {number}: .*{said}"):
            read(PUBLISHED.replace("12174", damage, 1))


def test_processor_times_and_zero_bytes_are_no_measurement() -> None:
    with pytest.raises(ConfigError, match="CPU time"):
        read(PUBLISHED.replace("    time", " cputime"))
    nothing = "           0             0     float     sum      -1" + 2 * "     5.10    0.00    0.00      0"
    heading = ROOT + HALF + HALF + "\n"
    with pytest.raises(ConfigError, match="0 bytes"):
        read(heading + nothing + "\n" + END)
    record = read(PUBLISHED.replace("     1048576  ", nothing + "\n     1048576  ", 1))
    assert len(record.rows) == 28
    assert record.skipped == ("sizes of 0 bytes: nothing was moved",)


def test_ranks_that_each_ran_alone_are_told_to_be_built_with_mpi() -> None:
    row = "     1048576        262144     float     sum      -1" + 2 * "    10.00  104.86    0.00      0" + "\n"
    record = read(ROOT + HALF + HALF + "\n" + row + END, Known(op="all_reduce"))
    assert record.rows[0].labels["ranks"] == 1
    assert "MPI=1" in record.remarks[0]


@given(st.data())
@settings(max_examples=150)
def test_damaged_tables_give_whole_rows_or_an_error_that_names_the_file(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([PUBLISHED, (DATA / "nccl-alltoall-new.txt").read_text()]))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        put = data.draw(st.sampled_from(["", "\n", " ", "9", "e", "-", "#", "NaN", "\x00", "1e308", "time", "\u0663"]))
        text = text[:start] + put + text[start + data.draw(st.integers(0, 30)) :]
    try:
        record = read(text, Known())
    except WindlassError as error:
        assert "out.txt" in str(error)
        return
    for row in record.rows:
        assert all(math.isfinite(figure.value) and figure.value >= 0 for figure in row.figures.values())
        assert int(row.labels["bytes"] or 0) > 0


def test_a_run_of_nccl_tests_is_a_record_and_so_is_what_comes_through_a_pipe(tmp_path: Path) -> None:
    """The binary needs devices; what it prints on the first rank is what is read."""
    table = str(TABLE)
    done = windlass(
        "run", "-r", "2", "--run-dir", "r", "--", "sh", "-c", f"test $RANK = 1 || cat {table}", cwd=tmp_path
    )
    assert done.code == 0, done.text
    told = bench(tmp_path, "report", "r", "--output", "nccl.json", "--nodes", "2", "--device-name", "GH200")
    assert "normal for 2 nodes of GH200: 159 GB/s busbw" in told.stdout, told.stderr
    same = bench(tmp_path, "compare", "nccl.json", table)
    assert same.returncode == 0, same.stderr
    piped = bench(tmp_path, "report", "-", stdin=done.stdout)
    assert "103.965" in piped.stdout, piped.stderr
    nothing = windlass("run", "-r", "1", "--run-dir", "n", "--", "true", cwd=tmp_path)
    assert nothing.code == 0, nothing.text
    assert "neither a record nor a table" in bench(tmp_path, "report", "n").stderr
