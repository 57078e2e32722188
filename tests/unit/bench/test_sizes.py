"""Sizes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looping import each
from windlass.bench.sizes import parse_size, parse_sizes
from windlass.errors import UsageError
from windlass.node.sys.text import binary_size


def test_a_range_is_what_nccl_tests_makes_of_it() -> None:
    sizes = parse_sizes("1M:8G:2")
    assert len(sizes) == 14
    assert (sizes[0], sizes[1], sizes[-1]) == (1 << 20, 1 << 21, 1 << 33)


def test_lists_steps_and_single_sizes_are_understood() -> None:
    assert parse_sizes("4K") == (4096,)
    assert parse_sizes("1K, 1MiB,64") == (64, 1024, 1 << 20)
    assert parse_sizes("1M:4M:+1M") == tuple(n << 20 for n in (1, 2, 3, 4))
    assert parse_sizes("1.5K") == (1536,)


@each("text", ["", "abc", "1X", "-1M", "0", "1M:", "8G:1M:2", "1M:8G:1", "1M:8G:x", "1:2:3:4", "1.3", "1:4096000:+1"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_sizes(text)
    assert raised.value.hint


@settings(deadline=None, max_examples=50)
@given(st.integers(min_value=1, max_value=1 << 45))
def test_every_number_of_bytes_is_read_back(size: int) -> None:
    assert parse_size(str(size)) == size
    assert parse_size(f"{size}B") == size
    assert binary_size(size)


@settings(deadline=None, max_examples=50)
@given(st.text(max_size=20))
def test_any_text_gives_sizes_or_a_clear_error(text: str) -> None:
    try:
        sizes = parse_sizes(text)
    except UsageError:
        return
    assert sizes == tuple(sorted(set(sizes)))
    assert sizes[0] >= 1
