"""Bandwidths, the average and the table, held against the published one."""

from __future__ import annotations

from pathlib import Path

import pytest

from looping import each
from unit.bench.made import collectives_record, told
from windlass.bench.collectives.options import OPS, parse_ops
from windlass.bench.collectives.rows import (
    average_busbw,
    bandwidths,
    measurement,
    squeezed,
    table_lines,
    text,
    wrong_remarks,
)
from windlass.bench.record import Measurement
from windlass.errors import UsageError

SEED = Path(__file__).parents[4] / "examples" / "benchmarks" / "nccl-tests-2x4-gh200.txt"


def _published() -> list[list[str]]:
    return [line.split() for line in SEED.read_text().splitlines() if line.strip() and line.strip()[0].isdigit()]


def _rows() -> list[Measurement]:
    rows = []
    for fields in _published():
        for placement, at in (("out-of-place", 5), ("in-place", 9)):
            rows.append(measurement(told(int(fields[0]), float(fields[at]), placement=placement), 8, 2))
    return rows


def test_8_ranks_8_gib_in_94_75_ms_are_158_65_gb_per_s() -> None:
    figures = bandwidths("all_reduce", 8 << 30, 94.752e-3, 8)
    assert figures["busbw"].value == pytest.approx(158.65, abs=0.005)
    assert figures["algbw"].value == pytest.approx(90.66, abs=0.005)
    assert figures["busbw"].formula == "busbw = algbw*2(n-1)/n"


@each(
    ("op", "factor"),
    [
        ("all_reduce", 1.75),
        ("all_gather", 0.875),
        ("reduce_scatter", 0.875),
        ("all_to_all", 0.875),
        ("gather", 0.875),
        ("scatter", 0.875),
        ("broadcast", 1),
        ("reduce", 1),
        ("sendrecv", 1),
    ],
)
def test_every_op_has_the_factor_of_nccl_tests(op: str, factor: float) -> None:
    figures = bandwidths(op, 10**9, 1.0, 8)
    assert figures["busbw"].value == pytest.approx(factor * figures["algbw"].value)


def test_the_average_is_that_of_all_sizes_and_both_placements() -> None:
    assert average_busbw(_rows()) == pytest.approx(103.965, abs=0.01)


def test_the_table_is_the_published_one() -> None:
    ours = table_lines(_rows())
    theirs = [line.rstrip() for line in SEED.read_text().splitlines()[5:-3]]
    assert ours[:3] == theirs[:3]
    for mine, published in zip(ours[3:], theirs[3:], strict=True):
        assert len(mine) == len(published)
        for one, two in zip(mine.split(), published.split(), strict=True):
            # The published times are rounded, so the last figure of a bandwidth may differ.
            assert one == two or float(one) == pytest.approx(float(two), abs=0.011), published


GOLDEN = """\
# all_gather over 4 ranks on 1 node (CPU (x86_64))
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        4096           256     float    none      -1     12.5    0.33    0.25      0      N/A     N/A     N/A    N/A
     1048576         65536     float    none      -1   1000.0    1.05    0.79      0    800.0    1.31    0.98      7
# Out of bounds values : 7 FAILED
# Avg bus bandwidth    : 0.671744
#"""


def test_missing_placements_and_wrong_elements_are_shown() -> None:
    same = {"op": "all_gather", "redop": "none"}
    record = collectives_record(
        told(4096, 12.5, count=256, **same),
        told(1 << 20, 1000, count=65536, **same),
        told(1 << 20, 800, count=65536, placement="in-place", wrong=7, **same),
        ranks=4,
        nodes=1,
        device={"kind": "cpu", "name": "CPU (x86_64)"},
    )
    assert text(record) == GOLDEN
    assert wrong_remarks(record.rows) == ["all_gather of 1048576 bytes in-place: 7 wrong elements"]


def test_one_rank_moves_nothing_over_a_link() -> None:
    assert bandwidths("all_reduce", 1024, 1e-6, 1)["busbw"].value == 0


def test_numbers_are_squeezed_as_nccl_tests_does() -> None:
    assert squeezed(9.9, 6) == "9.90"
    assert squeezed(1234.567, 6) == "1234.6"
    assert squeezed(123456.7, 6) == "123457"
    assert squeezed(12345678.9, 6) == "1e+07"


def test_ops_are_a_list_and_a_misspelt_one_is_named() -> None:
    assert parse_ops("all_reduce, alltoall,all_reduce") == ("all_reduce", "all_to_all")
    assert parse_ops("all") == OPS
    with pytest.raises(UsageError) as raised:
        parse_ops("all_redice")
    assert "all_reduce" in str(raised.value.hint)
    with pytest.raises(UsageError):
        parse_ops(" , ")
