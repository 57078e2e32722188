"""What programs on nodes and ranks say through a launcher: no line is longer than Slurm hands on whole."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from looping import each
from windlass.api import selftest_program
from windlass.node.sys.parts import join_parts, part_lines
from windlass.run.node_answers import json_lines
from windlass.run.remote import NodeProbe
from windlass.run.selftest import MARK

SLURM_PIECE = 1024


@each("size", [0, 1, 5_000, 200_000])
def test_a_value_of_any_size_travels_in_short_lines(size: int) -> None:
    value = {"text": os.urandom(size // 2).hex()}
    lines = part_lines(value, "MARK ", rank=12345)
    assert all(len(line) + 1 < SLURM_PIECE for line in lines)
    assert join_parts([part for line in reversed(lines) for part in json_lines(line)]) == value


def test_a_missing_part_is_an_error_and_not_half_a_value() -> None:
    lines = part_lines({"text": os.urandom(3_000).hex()})
    with pytest.raises(ValueError, match="missing or torn"):
        join_parts([part for line in lines[1:] for part in json_lines(line)])


def _said(argv: list[str], **env: str) -> list[str]:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env={**os.environ, **env}, check=True)
    return done.stdout.splitlines()


def test_a_look_at_a_node_is_said_in_short_lines() -> None:
    lines = _said([sys.executable, "-m", "windlass.run.remote"])
    assert all(len(line) + 1 < SLURM_PIECE for line in lines)
    probe = msgspec.convert(join_parts(list(json_lines("\n".join(lines)))), NodeProbe)
    assert probe.topology.cpus


def test_a_rank_of_a_self_test_says_all_of_its_variables_in_short_lines_and_needs_no_windlass() -> None:
    variables = {f"NCCL_V{number}": os.urandom(200).hex() for number in range(20)}
    lines = _said([sys.executable, "-I", "-S", "-c", selftest_program()], **variables)
    assert len(lines) > 4 and all(len(line) + 1 < SLURM_PIECE and line.startswith(MARK) for line in lines)
    report = join_parts([part for line in lines for part in json_lines(line)])
    assert variables.items() <= report["variables"].items()
