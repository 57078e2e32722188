"""Results of ranks as lines of their output."""

from __future__ import annotations

import os
import random
from itertools import zip_longest
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.bench.messages import ResultReader, ResultWriter, messages
from windlass.node.sys.messages import MARK, message_lines

_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**50), 2**50) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(st.text(), _values))
def test_any_message_survives_being_cut_into_lines(content: dict[str, Any]) -> None:
    lines = message_lines(3, "a", {"content": content, "kind": "row"})
    assert all("\n" not in line for line in lines)
    reader = ResultReader()
    heard = [reader.read_line(line) for line in lines]
    assert heard[:-1] == [None] * (len(lines) - 1)
    assert heard[-1] == {"content": content, "kind": "row"}


def test_long_messages_are_cut_into_lines_that_every_launcher_carries() -> None:
    lines = message_lines(0, "a", {"kind": "row", "time_s": [random.random() for _ in range(500)]})
    assert len(lines) > 3
    assert max(map(len, lines)) < 1000


def test_messages_of_several_ranks_are_told_apart_though_their_lines_mix() -> None:
    steps = [[random.random() for _ in range(400)] for _ in range(2)]
    sent: list[list[str]] = []
    for rank in range(2):
        read, write = os.pipe()
        ResultWriter(write).send("steps", rank=rank, step_s=steps[rank])
        os.close(write)
        with os.fdopen(read) as out:
            sent.append(out.read().splitlines())
    mixed = [pair for lines in zip_longest(*sent, fillvalue="") for pair in enumerate(lines)]
    mixed.insert(1, (0, "a warning of some library"))
    assert sorted((rank, message["rank"]) for rank, message in messages(mixed)) == [(0, 0), (1, 1)]


def test_torn_and_foreign_lines_are_passed_over() -> None:
    whole = message_lines(0, "a", {"kind": "row", "x": [random.random() for _ in range(200)]})
    torn = [*whole[:1], *whole[2:]]
    noise = [
        "",
        MARK,
        MARK + "x",
        MARK + "1 2",
        MARK + "0 1 a/b {}",
        MARK + "0 1 1/1 {torn",
        MARK + "0 1 1/1 [1]",
        MARK + '0 2 1/1 {"a":1}',
    ]
    assert messages([(0, line) for line in [*torn, *noise]]) == []


def test_a_mark_behind_a_label_of_the_launcher_is_found() -> None:
    (line,) = message_lines(0, "a", {"kind": "end"})
    assert ResultReader().read_line(f"[0] {line}") == {"kind": "end"}
