"""windlass logs: which runs there are, what a rank wrote, where it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unit.cli.typed import Ended, in_process, run_here


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a good run `two` of two ranks and a failed one."""
    folder = tmp_path_factory.mktemp("logs")
    say = "import os,sys; r = os.environ['RANK']; print('out', r); print('err', r, file=sys.stderr); print('ü')"
    (folder / "say.py").write_text(say)
    assert run_here("-q", "-r", "2", "--name", "two", "say.py", cwd=folder).code == 0
    assert run_here("-q", "--name", "bad", "--", "sh", "-c", "exit 9", cwd=folder).code == 9
    return folder


def _logs(runs: Path, name: str, *words: str) -> Ended:
    (path,) = (runs / "runs").glob(f"{name}-*")
    return in_process("logs", str(path), *words, cwd=runs)


def test_runs_are_listed_with_how_they_ended(runs: Path) -> None:
    text = in_process("logs", cwd=runs).stdout
    assert [line.split("  ")[1] for line in text.splitlines()] == ["failed, code 9", "ok, code 0"]


def test_where_there_are_none_it_says_where_it_looked(tmp_path: Path) -> None:
    ended = in_process("logs", cwd=tmp_path)
    assert ended.code == 2
    assert f"no runs in {tmp_path / 'runs'}" in ended.stderr


def test_one_rank_is_shown_without_labels(runs: Path) -> None:
    assert _logs(runs, "two", "--rank", "1").stdout.splitlines() == ["out 1", "err 1", "ü"]
    assert _logs(runs, "two").stdout.splitlines()[0] == "out 0"


def test_several_ranks_are_labelled(runs: Path) -> None:
    lines = _logs(runs, "two", "--rank", "all").stdout.splitlines()
    assert sorted(lines) == ["[0] err 0", "[0] out 0", "[0] ü", "[1] err 1", "[1] out 1", "[1] ü"]


def test_json_has_rank_and_text(runs: Path) -> None:
    rows = json.loads(_logs(runs, "two", "--rank", "1", "--json").stdout)
    assert rows[0] == {"rank": 1, "text": "out 1"}


def test_the_place_of_each_rank_is_shown(runs: Path) -> None:
    rows = json.loads(_logs(runs, "two", "--where", "--json").stdout)
    assert [row["rank"] for row in rows] == [0, 1]
    assert all(row["cpus"] and row["host"] and row["pid"] for row in rows)
    assert _logs(runs, "two", "--where").stdout.startswith("rank    0  ")


@pytest.mark.parametrize(
    ("rank", "told"), [("2", "ranks 0 to 1"), ("x", "not a list of ranks"), ("1-0", "ranks 0 to 1")]
)
def test_a_rank_that_is_not_there_is_refused(runs: Path, rank: str, told: str) -> None:
    ended = _logs(runs, "two", "--rank", rank)
    assert ended.code == 2
    assert f"--rank '{rank}'" in ended.stderr and told in ended.stderr


def test_a_folder_that_is_no_run_is_named(runs: Path) -> None:
    ended = in_process("logs", "say.py", cwd=runs)
    assert ended.code == 2
    assert "not a run folder" in ended.stderr
