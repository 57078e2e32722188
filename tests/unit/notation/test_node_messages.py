"""What programs on nodes and ranks say through a launcher: no line is longer than Slurm forwards whole."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from windlass.agents.ship import script_text
from windlass.node.sys.messages import MARK, message_lines, read_messages

SLURM_PIECE = 1024


@pytest.mark.parametrize("size", [0, 1, 5_000, 200_000])
def test_a_value_of_any_size_travels_in_short_lines(size: int) -> None:
    value = {"text": os.urandom(size // 2).hex()}
    lines = message_lines(12345, "3fffff.1000", value)
    assert all(len(line) + 1 < SLURM_PIECE for line in lines)
    assert read_messages(f"label: {line}" for line in reversed(lines)) == [value]


def test_a_missing_part_is_no_message_and_not_half_of_one() -> None:
    lines = message_lines(0, "a", {"text": os.urandom(3_000).hex()})
    assert len(lines) > 2 and read_messages(lines[1:]) == []


def test_messages_of_two_nodes_are_told_apart_though_their_lines_mix() -> None:
    values = [{"node": node, "text": os.urandom(2_000).hex()} for node in range(2)]
    pairs = zip(*(message_lines(node, "same", value) for node, value in enumerate(values)), strict=True)
    assert read_messages(line for pair in pairs for line in (*pair, "a warning of some library")) == values


def test_a_rank_of_a_self_test_says_all_of_its_variables_in_short_lines_and_needs_no_windlass() -> None:
    variables = {f"NCCL_V{number}": os.urandom(200).hex() for number in range(20)}
    argv = [sys.executable, "-I", "-S", "-c", script_text("windlass.node.checks.selftest:main", {})]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env={**os.environ, **variables}, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) > 4 and all(len(line) + 1 < SLURM_PIECE and line.startswith(MARK) for line in lines)
    (report,) = read_messages(lines)
    assert variables.items() <= report["variables"].items()
