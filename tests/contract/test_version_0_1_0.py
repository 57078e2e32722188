"""Files that windlass 0.1.0 wrote: this version reads them, or refuses them with a sentence that names the version.

The files in `version-0.1.0/` are as that version wrote them, but for the names of the host and of the folders."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from unit.cli.typed import Ended, in_process

FILES = Path(__file__).parent / "version-0.1.0"
PARTS = ("out", "where", "ends", "comm")


def is_read(done: Ended) -> bool:
    """Whether a file was read. Where not: fails unless the error is a sentence about its version."""
    if done.code == 0:
        return True
    assert done.code == 2, done.text
    assert "Traceback" not in done.text
    assert done.stderr.startswith("windlass: error: ") and "version" in done.stderr, done.stderr
    return False


@pytest.fixture
def old_run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a run folder of that version; its empty folders are not in the repository."""
    folder = tmp_path / "old"
    shutil.copytree(FILES / request.param, folder)
    for part in PARTS:
        (folder / part).mkdir(exist_ok=True)
    return folder


@pytest.mark.parametrize("name", ["plan-frontier.json", "plan-cached.json"])
def test_a_plan_can_be_compared_or_is_refused(name: str, tmp_path: Path) -> None:
    done = in_process("diff", str(FILES / name), str(FILES / name), cwd=tmp_path)
    assert not is_read(done) or done.stdout == "the plans are equal\n"


def test_a_plan_can_be_run_in_a_job_or_is_refused(tmp_path: Path) -> None:
    in_process("runs", "trust", str(FILES / "plan-frontier.json"), "--yes", cwd=tmp_path)
    done = in_process("run", "--plan", str(FILES / "plan-frontier.json"), cwd=tmp_path)
    assert done.code == 2
    assert "is a plan for a slurm job, and this is no such job" in done.stderr or not is_read(done)


@pytest.mark.parametrize("old_run", ["failed", "restarted"], indirect=True)
def test_a_run_can_be_shown_or_is_refused(old_run: Path, tmp_path: Path) -> None:
    done = in_process("runs", "show", str(old_run), cwd=tmp_path)
    assert not is_read(done) or str(old_run) in done.stdout


@pytest.mark.parametrize("old_run", ["failed", "restarted"], indirect=True)
def test_logs_of_a_run_can_be_read_or_are_refused(old_run: Path, tmp_path: Path) -> None:
    done = in_process("logs", "--rank", "1", str(old_run), cwd=tmp_path)
    assert not is_read(done) or "rank 1" in done.stdout


@pytest.mark.parametrize("old_run", ["failed", "restarted"], indirect=True)
def test_runs_are_listed_or_refused(old_run: Path, tmp_path: Path) -> None:
    done = in_process("runs", "list", cwd=tmp_path, env={"WINDLASS_RUNS": str(old_run.parent)})
    assert not is_read(done) or str(old_run) in done.stdout


@pytest.mark.parametrize("name", ["bench-collectives.json", "bench-matmul.json"])
def test_a_record_of_a_benchmark_can_be_reported_or_is_refused(name: str, tmp_path: Path) -> None:
    report = in_process("bench", "report", str(FILES / name), cwd=tmp_path)
    compared = in_process("bench", "compare", str(FILES / name), str(FILES / name), cwd=tmp_path)
    assert is_read(report) == is_read(compared)
