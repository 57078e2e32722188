from __future__ import annotations

import pytest

from looping import each
from windlass.base.notation.counts import counted, parse_counts, parse_size, size_text
from windlass.errors import UsageError


@each(("text", "size"), [("512M", 512 << 20), ("2G", 2 << 30), ("1.5 KiB", 1536), ("7", 7)])
def test_size_is_read_in_powers_of_1024(text: str, size: int) -> None:
    assert parse_size(text, "--cache-memory") == size


@each("text", ["", "G", "-1", "2X", "1,5G"])
def test_what_is_no_size_is_refused_by_the_name_of_its_option(text: str) -> None:
    with pytest.raises(UsageError, match="--cache-memory"):
        parse_size(text, "--cache-memory")


def test_size_is_written_with_a_unit_that_fits() -> None:
    sizes = (0, 999, 1000, 2_500_000, 3 * 10**9, 4 * 10**15)
    assert [size_text(size) for size in sizes] == ["0 B", "999 B", "1.0 kB", "2.5 MB", "3.0 GB", "4000.0 TB"]


def test_counts_of_slurm_are_expanded_and_others_refused() -> None:
    assert parse_counts("4(x2),3") == (4, 4, 3)
    with pytest.raises(UsageError):
        parse_counts("4x2")


def test_one_is_singular() -> None:
    assert (counted(1, "node"), counted(2, "node")) == ("1 node", "2 nodes")
