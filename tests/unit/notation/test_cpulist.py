"""CPU lists and masks, as the kernel, Slurm and PALS write them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looping import each
from windlass.base.notation.counts import cpu_mask, format_bindings, format_cpulist, parse_bindings, parse_cpulist
from windlass.errors import ConfigError

_cpus = st.sets(st.integers(0, 600), max_size=80)


@given(_cpus)
def test_a_formatted_list_parses_to_the_same_cpus(cpus: set[int]) -> None:
    assert parse_cpulist(format_cpulist(cpus)) == tuple(sorted(cpus))


@given(_cpus)
def test_neighbours_never_stand_apart(cpus: set[int]) -> None:
    ends = [part.split("-") for part in format_cpulist(cpus).split(",") if part]
    for left, right in itertools.pairwise(ends):
        assert int(right[0]) > int(left[-1]) + 1


@given(st.sets(st.integers(0, 255), min_size=1))
def test_a_mask_has_the_bits_of_its_cpus(cpus: set[int]) -> None:
    value = int(cpu_mask(cpus), 16)
    assert {bit for bit in range(256) if value >> bit & 1} == cpus


@given(st.lists(st.sets(st.integers(0, 255), min_size=1), min_size=1, max_size=12))
def test_bindings_of_ranks_go_there_and_back(ranks: list[set[int]]) -> None:
    assert parse_bindings(format_bindings(ranks)) == tuple(tuple(sorted(cpus)) for cpus in ranks)


@each(
    ("text", "cpus"),
    [("", []), ("0", [0]), ("0-3,8", [0, 1, 2, 3, 8]), (" 1 , 0 ", [0, 1]), ("0-6:2", [0, 2, 4, 6]), ("3,3", [3])],
)
def test_lists_as_they_are_written(text: str, cpus: list[int]) -> None:
    assert list(parse_cpulist(text)) == cpus


@each("text", ["a", "1-", "-1", "3-1", "0-99999999", "0x3", "1-2-3", "0-6:x", "0-6:0", "1:2"])
def test_anything_else_is_an_error_that_shows_it(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_cpulist(text)
    assert text in caught.value.message


def test_the_masks_of_a_documented_node() -> None:
    assert cpu_mask(range(1, 8)) == "0xfe"
    assert cpu_mask(range(49, 56), digits=16) == "0x00fe000000000000"
