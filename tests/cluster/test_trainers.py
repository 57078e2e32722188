"""Scripts of known trainers on a real Slurm: a rank is killed, or the time of the job is up. They finish all steps, and
each loss is that of an undisturbed run."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from cluster.command import Allocation, Run, allocated, only_run, windlass_argv, windlass_env
from cluster.slurm import SlurmCluster
from requirements import examples_python, require_examples
from waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(900)]

SCRIPTS = Path(__file__).parent / "trainers"
STEPS = 30
EVERY = 5


def command(name: str, out: Path, nodes: int) -> list[str]:
    """The command line of a script as its users write it, which saves every five steps below `out`."""
    per_node = 2 // nodes
    return {
        "hf_trainer": [
            *("--output_dir", f"{out}", "--max_steps", f"{STEPS}", "--save_steps", f"{EVERY}", "--logging_steps", "1"),
            *("--use_cpu", "--report_to", "none", "--disable_tqdm", "true"),
        ],
        "lightning_cli": [
            *("fit", "--trainer.max_steps", f"{STEPS}", "--trainer.accelerator", "cpu", "--trainer.strategy", "ddp"),
            *("--trainer.devices", f"{per_node}", "--trainer.num_nodes", f"{nodes}"),
            *("--trainer.default_root_dir", f"{out}", "--trainer.enable_progress_bar", "false"),
            *("--trainer.callbacks", "ModelCheckpoint", "--trainer.callbacks.every_n_train_steps", f"{EVERY}"),
        ],
        "accelerated": ["--output_dir", f"{out}"],
        "deepspeed_engine": ["--save_dir", f"{out}"],
        "megatron_style": ["--save", f"{out}", "--exit-signal-handler"],
    }[name]


TRAINERS = ("hf_trainer", "lightning_cli", "accelerated", "deepspeed_engine", "megatron_style")


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {"MARKS": str(folder), "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu", "DS_SKIP_CUDA_CHECK": "1", **more}


def losses(folder: Path) -> dict[int, float]:
    """The loss of each step. A step that was done twice has the same loss both times."""
    found: dict[int, float] = {}
    for line in (folder / "losses").read_text().splitlines():
        step, loss = line.split()
        assert found.get(int(step), float(loss)) == pytest.approx(float(loss), abs=2e-4), f"step {step}"
        found[int(step)] = float(loss)
    return found


def undisturbed(name: str, folder: Path) -> dict[int, float]:
    """Losses of a run without a fault, with two ranks on this machine."""
    mine = folder / "undisturbed"
    mine.mkdir()
    words = ("--scheduler", "none", "-r", "2", "--python", str(examples_python()), *kept(folder))
    argv = windlass_argv("run", *words, str(SCRIPTS / f"{name}.py"), *command(name, mine / "out", 1))
    # The same state folder as the run's: without its key, the compiled caches would not be used.
    env = {**os.environ, **windlass_env(folder), "WINDLASS_RUNS": str(mine / "runs"), **environment(mine)}
    subprocess.run(argv, check=True, timeout=300, env=env, cwd=folder, capture_output=True)
    return losses(mine)


def kept(folder: Path) -> tuple[str, ...]:
    """DeepSpeed compiles for most of a minute, the whole time of a job here: the first run does it for all."""
    return ("--keep-caches", str(folder / "compiled"))


def check(wanted: dict[int, float], folder: Path, run: Run) -> None:
    found = losses(folder)
    assert sorted(found) == list(range(1, STEPS + 1))
    assert found == pytest.approx(wanted, abs=2e-4)
    lines = (folder / "losses").read_text().splitlines()
    assert 0 <= len(lines) - STEPS <= EVERY + 1, "more steps were lost than one interval"
    assert len(json.loads((run.path / "plan.json").read_text())["trainer"]["because"]) > 10


@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_with_a_killed_rank_goes_on_from_its_newest_checkpoint(
    slurm: SlurmCluster, tmp_path: Path, name: str
) -> None:
    require_examples()
    wanted = undisturbed(name, tmp_path)
    words = ("-r", "1", "--restarts", "2", "--with", "resume", "--python", str(examples_python()), *kept(tmp_path))
    script = (str(SCRIPTS / f"{name}.py"), *command(name, tmp_path / "out", 2))
    with allocated(slurm, tmp_path, "-N2", "--ntasks-per-node=1", "--exclusive") as job:
        done = job.windlass("run", *words, *script, timeout_s=300, env=environment(tmp_path, FAULT="13"))
    assert done.code == 0, done.text
    assert "restarting from the snapshot of step 10" in done.text
    check(wanted, tmp_path, only_run(tmp_path))


@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_whose_time_is_up_goes_on_in_another_job(slurm: SlurmCluster, tmp_path: Path, name: str) -> None:
    require_examples()
    wanted = undisturbed(name, tmp_path)
    job = Allocation(cluster=slurm, folder=tmp_path, job_env={})
    words = ("-N", "2", "-r", "1", "--time", "1", "--until-done", "--grace", "3", "--with", "resume")
    words += ("--python", str(examples_python()), *kept(tmp_path))
    words += tuple(f"--env={key}={value}" for key, value in environment(tmp_path, PAUSE="2").items())
    script = (str(SCRIPTS / f"{name}.py"), *command(name, tmp_path / "out", 2))
    said = job.windlass("submit", *words, *script)
    assert said.code == 0, said.text
    run = only_run(tmp_path)
    wait_until(lambda: _is_done(run), timeout_s=480, what="it is done", state=lambda: _log(run) + slurm.state())
    assert "the run continues in another job" in _log(run)
    assert "in the queue again" not in _log(run)  # only windlass submits the job again
    check(wanted, tmp_path, run)


def _is_done(run: Run) -> bool:
    try:
        return bool(run.result["outcome"] == "ok")
    except (FileNotFoundError, ValueError):
        return False


def _log(run: Run) -> str:
    return "".join(path.read_text() for path in run.path.glob("job*.log"))
