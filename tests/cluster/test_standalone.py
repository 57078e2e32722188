"""A standalone batch script runs as it was printed: nothing of windlass is there, before the job or in it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cluster.command import SHOW, json_lines, windlass_argv, windlass_env
from cluster.slurm import SlurmCluster

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(240)]


def _printed(slurm: SlurmCluster, folder: Path, *words: str) -> Path:
    argv = windlass_argv("submit", "--dry-run", "--standalone", "--python", sys.executable, *words)
    said = slurm.run(argv, env=windlass_env(folder), cwd=folder, check=True)
    script = folder / "job.sh"
    script.write_text(said.stdout)
    return script


def _run_folder(folder: Path) -> Path:
    (found,) = (folder / "runs").iterdir()
    return found


def test_a_printed_script_runs_by_hand_in_an_empty_folder(slurm: SlurmCluster, tmp_path: Path) -> None:
    script = _printed(slurm, tmp_path, "-N", "2", "-r", "2", str(SHOW))
    assert "-RUN_ID" not in script.read_text() and not (tmp_path / "runs").exists()
    env = {**windlass_env(tmp_path), "SHOW": "RANK MASTER_PORT"}
    job = slurm.run(("sbatch", "--parsable", str(script)), env=env, cwd=tmp_path, check=True).stdout.strip()
    ended = slurm.wait_job(job, timeout_s=90)
    run = _run_folder(tmp_path)
    text = "".join(log.read_text() for log in sorted((run / "out").iterdir()))
    assert ended["JobState"] == "COMPLETED", text
    lines = json_lines("\n".join(line.partition(": ")[2] for line in text.splitlines()))
    assert sorted(int(line["environ"]["RANK"]) for line in lines) == [0, 1, 2, 3]
    assert {int(line["environ"]["MASTER_PORT"]) for line in lines} != {20000}, "the port comes from the job's number"
    assert (run / "exit_code").read_text() == "0\n"


def test_runs_list_knows_a_standalone_job(slurm: SlurmCluster, tmp_path: Path) -> None:
    env = windlass_env(tmp_path)
    argv = windlass_argv("submit", "--standalone", "-r", "1", "--", "sh", "-c", "exit 3")
    job = slurm.run(argv, env=env, cwd=tmp_path, check=True).stdout.strip()
    slurm.wait_job(job, timeout_s=90)
    said = slurm.run(windlass_argv("runs", "list"), env=env, cwd=tmp_path, check=True)
    assert "failed" in said.stdout and "a standalone job, with code 3" in said.stdout, said.text
