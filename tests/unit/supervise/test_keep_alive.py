"""Runs of plain scripts on this machine that are kept alive, listed, stopped and resumed. Real processes, no torch."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import leftovers
from bar import BAR, HANG_AFTER_S
from unit.cli.typed import only_run, run_here, running, script, windlass
from waiting import wait_until

# What a rank does depends on which start it is: argv holds one word per start.
FAULTS = """
import os, signal, sys, time
rank, start = int(os.environ["RANK"]), int(os.environ["WINDLASS_ATTEMPT"])
what = sys.argv[1:][start] if start < len(sys.argv) - 1 else "end"
print(f"rank {rank} start {start}: {what}", flush=True)
if rank == 1 or what == "end":
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if what == "raise":
        raise ValueError("loss is nan")
    if what == "import":
        import no_such_module
    if what == "later":
        sys.exit(85)
    if what == "leave":
        os.system("sleep 300 >/dev/null 2>&1 &")
        sys.exit(3)
    if what == "end":
        sys.exit(0)
time.sleep(300)
"""


@pytest.fixture(autouse=True)
def _nothing_survives(mark: str) -> Iterator[None]:
    yield
    try:
        wait_until(lambda: not leftovers.marked_processes(mark), timeout_s=30, what="all processes of the test ended")
    except AssertionError:
        found = leftovers.marked_processes(mark)
        leftovers.remove(leftovers.Leftovers(processes=found))
        pytest.fail(f"still running: {found}")


def verdict(folder: Path, attempt: int | None = None) -> dict[str, Any]:
    run = only_run(folder)
    path = run / f"attempt-{attempt}" if attempt else run
    return dict(json.loads((path / "verdict.json").read_text()))


def test_a_killed_rank_is_named_and_the_run_starts_again(tmp_path: Path) -> None:
    done = run_here("-r", "2", "--restarts", "1", str(script(tmp_path, FAULTS)), "kill", cwd=tmp_path)
    assert done.code == 0, done.text
    assert "rank 1 on " in done.stderr and "killed by SIGKILL" in done.stderr
    assert "restarting from the beginning" in done.stderr
    assert verdict(tmp_path, 1)["cause"]["signal"] == signal.SIGKILL


def test_restarts_are_limited_and_the_last_code_is_the_runs(tmp_path: Path) -> None:
    done = run_here("-r", "2", "--restarts", "1", str(script(tmp_path, FAULTS)), "kill", "kill", "kill", cwd=tmp_path)
    assert done.code == 137, done.text
    assert "no restart: after 1 restart without a newer snapshot" in done.stderr
    assert (only_run(tmp_path) / "evidence" / "ends.txt").read_text().count("\n") == 2


def test_a_mistake_that_cannot_go_away_ends_at_once_with_its_traceback(tmp_path: Path) -> None:
    words = ("-r", "2", "--restarts", "3", "--show", "none", "-q", str(script(tmp_path, FAULTS)), "import")
    done = run_here(*words, cwd=tmp_path)
    assert done.code == 1
    lines = done.stderr.splitlines()
    assert "rank 1" in lines[0] and "ModuleNotFoundError: No module named 'no_such_module'" in lines[0], done.text
    assert "  | Traceback (most recent call last):" in lines
    assert "an error that a restart cannot fix" in lines[-2]
    assert not list(only_run(tmp_path).glob("attempt-*"))


def test_the_same_mistake_twice_ends_the_run(tmp_path: Path) -> None:
    done = run_here("-r", "2", "--restarts", "9", str(script(tmp_path, FAULTS)), *["raise"] * 9, cwd=tmp_path)
    assert done.code == 1
    assert "the same error at the same step twice" in done.stderr
    assert len(list(only_run(tmp_path).glob("attempt-*"))) == 1


def test_a_silent_run_is_a_hang_and_the_stopped_rank_is_named(tmp_path: Path) -> None:
    words = ("-r", "2", "--restarts", "1", "--hang-after", "1", "--grace", "0.2")
    done = run_here(*words, str(script(tmp_path, FAULTS)), "stop", cwd=tmp_path)
    assert done.code == 0, done.text
    assert "no output and no step for" in done.stderr
    assert "rank 1 stopped (SIGSTOP)" in done.stderr
    assert verdict(tmp_path, 1)["cause"]["rank"] == 1
    stack = (only_run(tmp_path) / "attempt-1" / "evidence" / "stack-rank-0.txt").read_text()
    assert "state S" in stack and "faults" not in stack.split("command:")[0]


def test_a_progress_bar_is_output_and_no_hang(tmp_path: Path) -> None:
    done = run_here("-r", "2", "--hang-after", str(HANG_AFTER_S), str(script(tmp_path, BAR)), cwd=tmp_path)
    assert done.code == 0, done.text
    assert "no output" not in done.stderr


def test_ranks_that_leave_to_be_resumed_are_started_again_without_restarts(tmp_path: Path) -> None:
    words = ("-r", "2", "--restarts", "0", "--hang-after", "60")
    done = run_here(*words, str(script(tmp_path, FAULTS)), "later", cwd=tmp_path)
    assert done.code == 0, done.text
    assert verdict(tmp_path, 1)["cause"]["kind"] == "resume"


def test_what_a_dead_rank_left_behind_is_gone_before_the_next_start(tmp_path: Path, mark: str) -> None:
    done = run_here("-r", "2", "--restarts", "1", str(script(tmp_path, FAULTS)), "leave", cwd=tmp_path)
    assert done.code == 0, done.text
    assert not leftovers.marked_processes(mark)


def test_a_secret_is_there_in_the_second_start_too_and_nowhere_afterwards(tmp_path: Path) -> None:
    text = FAULTS.replace('print(f"rank', 'open("seen", "a").write(os.environ["MY_TOKEN"] + "\\n"); print(f"rank')
    words = ("-r", "2", "--restarts", "1", "--env", "MY_TOKEN=hush", str(script(tmp_path, text)), "kill")
    done = run_here(*words, cwd=tmp_path)
    assert done.code == 0, done.text
    seen = (tmp_path / "seen").read_text().split()
    assert len(seen) >= 3 and set(seen) == {"hush"}, "both starts had it; one rank may have been ended before"
    for path in only_run(tmp_path).rglob("*"):
        assert not path.is_file() or b"hush" not in path.read_bytes(), path


def test_a_run_that_goes_on_is_listed_refused_twice_and_stopped(tmp_path: Path) -> None:
    with running("-r", "2", "--restarts", "1", str(script(tmp_path, FAULTS)), "wait", cwd=tmp_path) as child:
        wait_until(lambda: "start 0" in _output(tmp_path), timeout_s=30, what="the ranks run")
        run = str(only_run(tmp_path))
        listed = windlass("runs", "list", cwd=tmp_path)
        assert listed.stdout.startswith("running"), listed.text
        again = windlass("runs", "resume", run, cwd=tmp_path)
        assert again.code == 2 and f"by process {child.pid}" in again.stderr
        planned = windlass("run", "--plan", run, cwd=tmp_path)
        assert planned.code == 2 and "is being run by process" in planned.stderr
        cleaned = windlass("runs", "clean", "--failed", "--yes", cwd=tmp_path)
        assert "nothing to remove" in cleaned.stdout, cleaned.text
        assert windlass("runs", "stop", run, cwd=tmp_path).code == 0
        child.wait(timeout=20)
    assert windlass("runs", "list", cwd=tmp_path).stdout.startswith("stopped")
    twice = windlass("runs", "stop", run, cwd=tmp_path)
    assert twice.code == 2 and "does not run: stopped" in twice.stderr


def _output(folder: Path) -> str:
    return "".join(path.read_text() for path in (folder / "runs").glob("*/out/*"))


def test_a_killed_windlass_shows_as_killed_and_its_run_resumes(tmp_path: Path) -> None:
    with running("-r", "2", "--restarts", "1", str(script(tmp_path, FAULTS)), "wait", cwd=tmp_path) as child:
        wait_until(lambda: "start 0" in _output(tmp_path), timeout_s=30, what="the ranks run")
        os.kill(child.pid, signal.SIGKILL)
        child.wait(timeout=30)
    assert windlass("runs", "list", cwd=tmp_path).stdout.startswith("killed")
    done = windlass("runs", "resume", str(only_run(tmp_path)), cwd=tmp_path)
    assert done.code == 0, done.text
    shown = windlass("runs", "show", str(only_run(tmp_path)), cwd=tmp_path)
    assert ": done" in shown.stdout and "start 2: ok" in shown.stdout, shown.text
    refused = windlass("runs", "resume", str(only_run(tmp_path)), cwd=tmp_path)
    assert refused.code == 2 and "is done" in refused.stderr


def test_clean_says_what_would_go_and_keeps_what_holds_snapshots(tmp_path: Path) -> None:
    assert run_here("-r", "1", str(script(tmp_path, "pass")), cwd=tmp_path).code == 0
    run = only_run(tmp_path)
    assert "would remove" in windlass("runs", "clean", cwd=tmp_path).stdout and run.exists()
    assert "nothing to remove" in windlass("runs", "clean", "--older-than", "1", cwd=tmp_path).stdout
    inside = run / "ckpt"
    inside.mkdir()
    (run / "snapshots.tsv").write_text(f"1.0\tsaved\t5\t{inside}\n")
    assert "it holds its snapshots" in windlass("runs", "clean", "--yes", cwd=tmp_path).stdout and run.exists()
    inside.rmdir()
    assert "removed" in windlass("runs", "clean", "--yes", cwd=tmp_path).stdout and not run.exists()


def test_impossible_values_are_refused(tmp_path: Path) -> None:
    for words in (("--restarts", "-1"), ("--spares", "-2"), ("--hang-after", "0"), ("--hang-after", "nan")):
        done = run_here(*words, str(script(tmp_path, "pass")), cwd=tmp_path)
        assert done.code == 2 and words[0] in done.stderr, done.text
