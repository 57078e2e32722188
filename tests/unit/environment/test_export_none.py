"""A job that was sent without the environment (`--export=NONE`) runs like any other, on a real Slurm."""

from __future__ import annotations

import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from cluster.command import REPO, SHOW, json_lines, only_run, windlass_env
from cluster.slurm import SlurmCluster
from looping import each

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(180)]


def _installed(folder: Path) -> Path:
    """An interpreter in which windlass is installed: a job without an environment has no PYTHONPATH either."""
    target = folder / "env"
    venv.create(target, with_pip=False, symlinks=True)
    (site,) = target.glob("lib/python*/site-packages")
    (site / "windlass.pth").write_text(f"{REPO / 'src'}\n{sysconfig.get_path('purelib')}\n")
    return target / "bin" / "python"


@each("kind", [(), ("--standalone",)], ids=["with-windlass", "standalone"])
def test_ranks_get_all_that_the_plan_sets_and_nothing_else_of_the_users(
    slurm: SlurmCluster, hostile_dir: Path, kind: tuple[str, ...]
) -> None:
    python = str(_installed(hostile_dir))
    env = {**windlass_env(hostile_dir), "FROM_THE_LOGIN_NODE": "1", "SHOW": "x"}
    names = "RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR TRITON_CACHE_DIR MINE FROM_THE_LOGIN_NODE"
    words = ("submit", "--python", sys.executable, *kind, "-N", "2", "-r", "2", "--directive", "--export=NONE")
    asked = ("--env", f"SHOW={names}", "--env", "MINE=two words", str(SHOW))
    said = slurm.run([python, "-m", "windlass", *words, *asked], env=env, cwd=hostile_dir)
    assert said.code == 0, said.text
    ended = slurm.wait_job(said.stdout.strip(), timeout_s=60)
    run = only_run(hostile_dir).path
    log = (run / "job.log").read_text() if (run / "job.log").exists() else ""
    assert ended["ExitCode"] == "0:0", log
    shown = slurm.run([python, "-m", "windlass", "logs", str(run), "--rank", "all"], env=env, cwd=hostile_dir)
    lines = [line["environ"] for line in json_lines(shown.stdout)]
    assert sorted(int(line["RANK"]) for line in lines) == [0, 1, 2, 3]
    for line in lines:
        assert (line["WORLD_SIZE"], line["MASTER_ADDR"], line["MINE"]) == ("4", "nid0001", "two words")
        assert line["TRITON_CACHE_DIR"].endswith("/triton")
        assert "FROM_THE_LOGIN_NODE" not in line
