"""windlass logs: which runs there are, what a rank wrote, where it was."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from looping import each
from unit.cli.typed import Ended, argv, environment, in_process, run_here, running, windlass
from waiting import wait_until


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


def test_the_last_run_is_shown_where_none_is_named(tmp_path: Path) -> None:
    for name in ("first", "last"):
        assert run_here("-q", "--name", name, "--", "echo", name, cwd=tmp_path).code == 0
    assert in_process("logs", cwd=tmp_path).stdout.splitlines() == ["last"]


def test_a_run_is_found_by_its_name(runs: Path) -> None:
    (path,) = (runs / "runs").glob("two-*")
    assert in_process("logs", path.name, "--rank", "1", cwd=runs).stdout.splitlines() == ["out 1", "err 1", "ü"]


def test_earlier_starts_are_read_by_their_number(tmp_path: Path) -> None:
    again = "n = os.environ['WINDLASS_ATTEMPT']; print('start', n, flush=True); os.kill(os.getpid(), 9 * (n == '0'))"
    (tmp_path / "again.py").write_text(f"import os; {again}")
    done = run_here("-q", "-r", "1", "--restarts", "1", "again.py", cwd=tmp_path)
    assert done.code == 0, done.text
    assert in_process("logs", "--attempt", "1", cwd=tmp_path).stdout.splitlines()[0] == "start 0"
    assert in_process("logs", "--attempt", "2", cwd=tmp_path).stdout.splitlines() == ["start 1"]
    assert in_process("logs", cwd=tmp_path).stdout.splitlines() == ["start 1"]
    ended = in_process("logs", "--attempt", "3", cwd=tmp_path)
    assert ended.code == 2 and "the run was started 2 times" in ended.stderr


def test_a_run_is_followed_to_its_end(tmp_path: Path) -> None:
    script = (
        "import os, time; print('begun', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.1)\nprint('done')"
    )
    (tmp_path / "wait.py").write_text(script)
    with running("-q", "wait.py", cwd=tmp_path) as child:
        wait_until(lambda: bool(list(tmp_path.glob("runs/*/out/*"))), timeout_s=60, what="the rank has written")
        follower = subprocess.Popen(
            argv("logs", "-f"), cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, text=True
        )
        try:
            assert follower.stdout is not None and follower.stdout.readline() == "begun\n"
            (tmp_path / "go").touch()
            said, _ = follower.communicate(timeout=60)
        finally:
            follower.kill()
            follower.wait()
        child.communicate(timeout=60)
    assert (follower.returncode, said) == (0, "done\n")


@each("words", [(), ("--restarts", "1")])
def test_who_follows_a_run_reads_the_cause_that_its_terminal_shows(tmp_path: Path, words: tuple[str, ...]) -> None:
    ended = run_here("-q", *words, "--", "sh", "-c", "echo last words; exit 9", cwd=tmp_path)
    told = ended.stderr.splitlines()
    last = [line for line in told if line.startswith("windlass: rank 0")][-1]
    followed = in_process("logs", "-f", cwd=tmp_path)
    assert (ended.code, followed.code) == (9, 0)
    assert followed.stdout == "last words\n"
    assert followed.stderr.splitlines() == told[len(told) - told[::-1].index(last) - 1 :], told


def test_a_queued_job_is_said_to_wait_and_for_what(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "queued-1"
    words = ("--scheduler", "slurm", "--site", "generic-slurm", "--json", "--", "true")
    for part in ("out", "where", "ends", "comm"):
        (folder / part).mkdir(parents=True)
    (folder / "plan.json").write_text(in_process("plan", *words, cwd=tmp_path).stdout)
    (folder / "job_id").write_text("12\n")
    (tmp_path / "bin").mkdir()
    for name in ("squeue", "scontrol", "sacct"):
        program = tmp_path / "bin" / name
        program.write_text("#!/bin/sh\necho 'JobId=12 JobState=PENDING Reason=Resources Dependency=(null)'\n")
        program.chmod(0o700)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    said = windlass("logs", cwd=tmp_path, env={"PATH": path})
    assert said.stdout.strip() == "job 12 is waiting: Resources", said.text


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
    text = _logs(runs, "two", "--where").stdout
    assert text.startswith("rank    0  ")
    assert [line.rpartition(" pid ")[2] for line in text.splitlines()] == [str(row["pid"]) for row in rows]


@each(("rank", "told"), [("2", "ranks 0 to 1"), ("x", "not a list of ranks"), ("1-0", "ranges go up")])
def test_a_rank_that_is_not_there_is_refused(runs: Path, rank: str, told: str) -> None:
    ended = _logs(runs, "two", "--rank", rank)
    assert ended.code == 2
    assert f"--rank '{rank}'" in ended.stderr and told in ended.stderr


def test_a_folder_that_is_no_run_is_named(runs: Path) -> None:
    ended = in_process("logs", "say.py", cwd=runs)
    assert ended.code == 2
    assert "not a run folder" in ended.stderr
