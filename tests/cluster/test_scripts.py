"""Training scripts that nobody wrote for windlass, unchanged, on two nodes of a real Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.command import allocated
from cluster.slurm import SlurmCluster
from requirements import require_torch

pytestmark = [pytest.mark.slurm, pytest.mark.torch, pytest.mark.timeout(240)]
SCRIPTS = Path(__file__).parent / "scripts"
WARNING = "never met"


def test_settings_by_file_and_by_name_reach_a_script_that_goes_by_rank_alone(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    require_torch()
    (tmp_path / "config.py").write_text("batch_size = 2\nmax_iters = 3\n")
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        words = ("config.py", "--backend=gloo", "--device=cpu", "--out_dir=my out", "--learning_rate=0.05")
        done = job.run_python("-r", "1", "--show", "all", str(SCRIPTS / "overrides.py"), *words, timeout_s=150)
    assert done.code == 0, done.text
    assert WARNING not in done.stderr
    said = sorted(line.partition("] ")[2] for line in done.stdout.splitlines() if "iterations" in line)
    assert [line.split(":")[0] for line in said] == ["rank 0 of 2", "rank 1 of 2"], done.text
    assert len({line.split(": ")[1] for line in said}) == 1, "both have the same weights"
    assert (tmp_path / "my out" / "ckpt.pt").exists()


@pytest.mark.slow
def test_a_script_for_torchrun_trains_on_two_nodes_and_goes_on_after_its_snapshot(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    require_torch()
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        script = str(SCRIPTS / "epochs.py")
        first = job.run_python("-r", "1", "--show", "all", script, "2", "1", "--batch_size", "16", timeout_s=150)
        second = job.run_python("-r", "1", "--show", "all", script, "3", "1", "--batch_size", "16", timeout_s=150)
    assert (first.code, second.code) == (0, 0), first.text + second.text
    for rank in (0, 1):
        assert f"[0/{rank}] epoch 1, 8 steps" in first.stdout, first.text
    assert "goes on after 2 epochs" in second.stdout and "epoch 2, 8 steps" in second.stdout, second.text
    assert "epoch 1," not in second.stdout
