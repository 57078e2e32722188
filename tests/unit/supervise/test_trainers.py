"""Trainers: which one a script uses, how it is told and resumes, and which of its checkpoints are complete."""

from __future__ import annotations

import os
import subprocess
import time
import zipfile
from pathlib import Path

import msgspec
import pytest

from looping import each
from planning import PLAIN
from windlass.model.plan import Plan, TrainerPlan
from windlass.model.request import Request
from windlass.plan.inputs import PlanningContext
from windlass.plan.plan import make_plan
from windlass.plan.render.rank_script import rank_script, requeue_script
from windlass.plan.render.variables import JobFacts
from windlass.plan.show import plan_text
from windlass.plan.trainers import trainer_specs
from windlass.run.failure.ends import newest_step, read_ledger
from windlass.run.folder import RunFolder
from windlass.run.script import read_script
from windlass.run.supervise.checkpoints import after_attempt, find_checkpoints, with_checkpoint
from windlass.sites.catalog import load_site

SCRIPTS = Path(__file__).parents[2] / "cluster" / "trainers"
HF = "from transformers import HfArgumentParser, Trainer, TrainingArguments\n"
LIGHTNING = "from lightning import Trainer\n"


def planned(folder: Path, text: str, *words: str, site: str = "workstation", **options: object) -> Plan:
    """The plan of a script with this text. Restarts are on unless `options` say otherwise."""
    (folder / "train.py").write_text(text)
    request = Request(command=("train.py", *words), kind="script", cwd=str(folder), **{"restarts": 1, **options})
    script = read_script(request)
    context = PlanningContext(
        site=load_site(site), topology=PLAIN, imports=script.imports, script=script.facts, python="python3"
    )
    return make_plan(request, context)[0]


def trainer(plan: Plan) -> TrainerPlan:
    assert plan.trainer is not None
    return plan.trainer


@each(
    ("script", "name"),
    [
        ("hf_trainer", "Hugging Face Trainer"),
        ("lightning_cli", "Lightning"),
        ("accelerated", "accelerate"),
        ("deepspeed_engine", "DeepSpeed"),
        ("megatron_style", "Megatron"),
    ],
)
def test_the_trainer_of_each_script_is_named_with_its_reason(tmp_path: Path, script: str, name: str) -> None:
    plan = planned(tmp_path, (SCRIPTS / f"{script}.py").read_text())
    assert trainer(plan).name == name
    assert f"  {name}: the script " in plan_text(plan)


@each(
    ("text", "options"),
    [
        (HF, {"restarts": None}),
        ("import transformers\nmodel = transformers.AutoModel.from_pretrained('x')\n", {}),
        ("import windlass, accelerate\naccelerate.Accelerator()\nwindlass.Snapshot('ckpt', model=m)\n", {}),
    ],
)
def test_no_trainer_without_restarts_without_its_classes_or_with_snapshots(
    tmp_path: Path, text: str, options: dict[str, object]
) -> None:
    assert planned(tmp_path, text, **options).trainer is None


@each(
    ("text", "words", "resume"),
    [
        (HF, (), "possible"),
        (HF + "Trainer().train(resume_from_checkpoint=True)\n", (), "itself"),
        (HF + "get_last_checkpoint('out')\n", (), "itself"),
        ("from transformers import Trainer\n", (), "never"),
        (LIGHTNING, (), "never"),
        (LIGHTNING + "Trainer().fit(m, ckpt_path='last')\n", (), "itself"),
        ("from lightning.pytorch.cli import LightningCLI\n", (), "possible"),
        ("from accelerate import Accelerator\nAccelerator().load_state()\n", (), "itself"),
        ("from accelerate import Accelerator\np.add_argument('--resume_from_checkpoint')\n", (), "possible"),
        ("import megatron\n", ("--save", "out"), "possible"),
        ("import megatron\n", ("--save", "out", "--load", "out"), "itself"),
        ("import torchtitan\n", (), "itself"),
        ("import deepspeed\ne.load_checkpoint('out')\n", (), "itself"),
        ("import deepspeed\n", (), "never"),
    ],
)
def test_how_a_script_resumes_is_read_from_it_and_nothing_is_passed_unasked(
    tmp_path: Path, text: str, words: tuple[str, ...], resume: str
) -> None:
    plan = planned(tmp_path, text, *words)
    assert trainer(plan).resume == resume
    warned = any(remark.kind == "trainer-resume" for remark in plan.remarks)
    assert warned == (resume in {"possible", "never"})
    assert with_checkpoint(plan, RunFolder(tmp_path)).command == plan.command


@each(
    ("text", "options", "said"),
    [
        (HF, {"restarts": 0}, "passes it on restarts only"),
        ("print()\n", {}, "found no trainer"),
        (HF, {}, None),
    ],
)
def test_resume_without_effect_is_a_warning(
    tmp_path: Path, text: str, options: dict[str, int], said: str | None
) -> None:
    plan = planned(tmp_path, text, options=("resume",), **options)
    warnings = [remark.evidence for remark in plan.remarks if remark.kind == "trainer-resume"]
    assert (said is None and not warnings) or (said is not None and said in warnings[0])


@each(
    ("text", "words", "site", "notice"),
    [
        (HF, (), "workstation", ""),
        (HF, ("--enable_jit_checkpoint",), "workstation", "SIGTERM"),
        (HF + "TrainingArguments(enable_jit_checkpoint=True)\n", (), "workstation", "SIGTERM"),
        (HF + "signal.signal(signal.SIGUSR2, f)\n", (), "workstation", "SIGUSR2"),
        (LIGHTNING, (), "generic-slurm", "SIGUSR1"),
        (LIGHTNING, (), "workstation", ""),
        ("import megatron\n", ("--exit-signal-handler",), "workstation", "SIGTERM"),
        ("import megatron\n", (), "workstation", ""),
    ],
)
def test_the_request_to_leave_is_the_signal_on_which_this_trainer_saves(
    tmp_path: Path, text: str, words: tuple[str, ...], site: str, notice: str
) -> None:
    plan = planned(tmp_path, text, *words, site=site)
    assert trainer(plan).notice == notice
    script = rank_script(plan, JobFacts(run_dir="/r", run_id="r", master_addr="h", master_port=1, job_id="1"))
    lines = [line for line in script.splitlines() if line.startswith("w_forward()")]
    meant = {"": "|| return 0;", "SIGUSR2": "|| set -- USR2;"}.get(notice, f"|| set -- {notice[3:]};")
    assert len(lines) == 1 and meant in lines[0]
    assert ("(trap '' USR2; " in script) == (notice != "SIGUSR2")


def test_scontrol_requeue_of_lightning_reports_the_save_and_other_commands_reach_slurm(tmp_path: Path) -> None:
    plan = planned(tmp_path, LIGHTNING, site="generic-slurm")
    assert trainer(plan).holds_requeue and "does not reach Slurm" in plan_text(plan)
    real, ours = tmp_path / "bin", tmp_path / "requeue"
    for folder, text in ((real, '#!/bin/sh\necho "real $*"\n'), (ours, requeue_script())):
        folder.mkdir()
        (folder / "scontrol").write_text(text)
        (folder / "scontrol").chmod(0o755)
    env = {"PATH": f"{ours}:{real}:{os.environ['PATH']}"}
    found = [
        subprocess.run(["scontrol", *words], env=env, capture_output=True, text=True, check=True, timeout=20).stdout
        for words in (("show", "job", "7"), ("requeue", "7"))
    ]
    assert found == ["real show job 7\n", "windlass: the trainer has saved\n"]
    assert (ours / "saved").exists()


def checkpoint(folder: Path, step: int, *, age_s: float = 0.0, ranks: int = 2) -> Path:
    """A checkpoint of the Hugging Face Trainer."""
    path = folder / "out" / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "trainer_state.json").write_text("{}")
    for name in ("optimizer.pt", *(f"rng_state_{rank}.pth" for rank in range(ranks))):
        with zipfile.ZipFile(path / name, "w") as archive:
            archive.writestr("archive/data.pkl", b"x" * 1000)
    (path / "model.safetensors").write_bytes(b'\x20\0\0\0\0\0\0\0{"w":{"data_offsets":[0,4]}}    1234')
    for file in (*path.iterdir(), path):
        os.utime(file, (time.time() - age_s,) * 2)
    return path


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


@each(
    "damage",
    [
        lambda path: (path / "trainer_state.json").unlink(),
        lambda path: cut(path / "optimizer.pt"),
        lambda path: cut(path / "model.safetensors"),
        lambda path: (path / "rng_state_1.pth").unlink(),
        lambda path: (path / "checkpoint-is-incomplete.txt").touch(),
    ],
)
def test_an_incomplete_newest_checkpoint_is_not_chosen(tmp_path: Path, damage: object) -> None:
    whole = checkpoint(tmp_path, 10, age_s=5)
    newest = checkpoint(tmp_path, 20)
    made = trainer(planned(tmp_path, HF, "--output_dir", "out"))
    found, _ = find_checkpoints(made, tmp_path, 2, 0.0)
    assert found is not None and (found.path, found.step) == (newest, 20)
    damage(newest)  # type: ignore[operator]
    found, incomplete = find_checkpoints(made, tmp_path, 2, 0.0)
    assert found is not None and (found.path, found.step, incomplete) == (whole, 10, (newest,))


def test_after_a_failure_incomplete_ones_are_renamed_and_the_next_start_gets_the_newest_whole_one(
    tmp_path: Path,
) -> None:
    plan = planned(tmp_path, HF, "--output_dir", "out", options=("resume",))
    plan = msgspec.structs.replace(plan, ranks_per_node=2, world_size=2)
    folder, began = RunFolder(tmp_path / "run"), time.time() - 60
    folder.path.mkdir()
    checkpoint(tmp_path, 90, age_s=4000)  # of another run
    whole, newest = checkpoint(tmp_path, 10, age_s=5), checkpoint(tmp_path, 20)
    cut(newest / "optimizer.pt")
    assert with_checkpoint(plan, folder).command == plan.command, "the first start loads nothing"
    (said,) = after_attempt(plan, folder, began)
    assert "incomplete" in said and (newest.parent / "incomplete-checkpoint-20").is_dir()
    assert newest_step(read_ledger(folder.path)) == 10
    attempt = folder.path / "attempt-1"
    attempt.mkdir()
    cause = {"kind": "transient", "reason": "x"}
    verdict = {"attempt": 1, "cause": cause, "decision": {"action": "restart", "why": "x"}, "times": {"started": began}}
    (attempt / "verdict.json").write_bytes(msgspec.json.encode(verdict))
    again = with_checkpoint(plan, folder)
    assert again.command[-2:] == ("--resume_from_checkpoint", str(whole))
    assert with_checkpoint(again, folder).command == again.command, "the argument is replaced, not added twice"


def test_a_pointer_written_last_decides_which_checkpoint_is_complete(tmp_path: Path) -> None:
    made = trainer(planned(tmp_path, "import megatron\n", "--save", "out"))
    for step in (5, 10):
        (tmp_path / "out" / f"iter_{step:07d}").mkdir(parents=True)
    tracker = tmp_path / "out" / "latest_checkpointed_iteration.txt"
    assert find_checkpoints(made, tmp_path, 2, 0.0)[0] is None
    tracker.write_text("5")
    found, _ = find_checkpoints(made, tmp_path, 2, 0.0)
    assert found is not None and found.step == 5


@pytest.mark.torch
def test_the_step_in_a_file_of_torch_is_read_without_loading_it(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "out" / "hpc_ckpt_1.ckpt"
    path.parent.mkdir()
    torch.save({"epoch": 3, "global_step": 170_000, "state_dict": {"w": torch.ones(3)}}, path)
    found, _ = find_checkpoints(
        trainer(planned(tmp_path, LIGHTNING, "--trainer.default_root_dir=out")), tmp_path, 1, 0.0
    )
    assert found is not None and found.step == 170_000


def test_every_row_of_the_table_has_a_source_and_names_its_checkpoints() -> None:
    specs = trainer_specs()
    assert len({spec.name for spec in specs}) == len(specs) >= 6
    for spec in specs:
        assert "/" in spec.source and spec.checkpoints and (spec.step or spec.stored_step)
