"""The check of results: it knows the right answer of every collective, and finds a wrong one."""

from __future__ import annotations

from typing import Any

import pytest

from looping import each
from requirements import require_torch
from windlass.bench.collectives.operations import count_wrong, fill_with, reduced, share, values

require_torch()
pytestmark = pytest.mark.torch


def _tensor(count: int, dtype: str) -> Any:
    import torch

    return torch.zeros(count, dtype=getattr(torch, dtype))


@each("dtype", ["float32", "float16", "bfloat16", "float64", "int8", "uint8", "int32", "int64"])
@each("ranks", [1, 2, 7, 300])
def test_a_right_sum_has_no_wrong_element_in_any_type(dtype: str, ranks: int) -> None:
    import torch

    total = torch.zeros(1003, dtype=torch.int64)
    for rank in range(ranks):
        part = _tensor(1003, "int64")
        fill_with(part, values(rank, 0))
        total += part
    assert count_wrong(total.to(getattr(torch, dtype)), reduced(ranks, 0, "sum"), ranks) == 0


@each("count", [1, 5, 1003, 3_000_001])
def test_every_changed_element_is_counted(count: int) -> None:
    tensor = _tensor(count, "float32")
    fill_with(tensor, values(3, 0))
    table = [float(value) for value in values(3, 0)]
    assert count_wrong(tensor, table, 4) == 0
    places = {0, count // 2, count - 1}
    for place in places:
        tensor[place] += 1
    assert count_wrong(tensor, table, 4) == len(places)


def test_not_a_number_is_wrong() -> None:
    tensor = _tensor(10, "float32")
    tensor[3] = float("nan")
    assert count_wrong(tensor, [0.0] * 5, 2) == 1


def test_what_a_missing_rank_leaves_behind_is_seen() -> None:
    tensor = _tensor(1000, "float32")
    for rank in range(3):  # of four
        part = _tensor(1000, "float32")
        fill_with(part, values(rank, 0))
        tensor += part
    assert count_wrong(tensor, reduced(4, 0, "sum"), 4) == 800, "one value in five of the last rank is 0"


def test_parts_of_different_ranks_and_places_differ() -> None:
    assert len({tuple(values(rank, 0)) for rank in range(5)}) == 5
    assert len({tuple(values(0, start)) for start in range(5)}) == 5
    assert reduced(2, 0, "max") == [3.0, 2.0, 4.0, 4.0, 3.0]
    assert reduced(2, 0, "avg") == [1.5, 1.0, 3.0, 2.5, 2.0]


def test_sizes_are_shared_out_as_nccl_tests_does() -> None:
    assert share("all_reduce", 1000, 3, 4) == (1000, 1000)
    assert share("all_gather", 1000, 3, 4) == (996, 332)
    assert share("all_to_all", 1000, 3, 2) == (984, 328)
    assert share("gather", 2, 3, 4) == (0, 0)
