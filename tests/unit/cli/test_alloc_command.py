"""windlass alloc, as far as it goes without a scheduler: the command of each site, and what it refuses."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from looping import each
from unit.cli.typed import in_process, script

JOB = ("--account", "p1", "--time", "1h", "--nodes", "2")


def _argv(tmp_path: Path, *words: str) -> list[str]:
    ended = in_process("alloc", "--dry-run", *words, cwd=tmp_path)
    assert ended.code == 0, ended.stderr
    assert list(tmp_path.iterdir()) == []
    return shlex.split(ended.stdout)


def test_lumi_gets_the_line_of_its_own_guide(tmp_path: Path) -> None:
    words = (*JOB, "--directive", "--reservation=AI_workshop_Day2")
    argv = _argv(tmp_path, "--site", "lumi", *words)
    assert argv[0] == "salloc"
    wanted = {
        *("--partition=standard-g", "--account=p1", "--reservation=AI_workshop_Day2", "--threads-per-core=1"),
        *("--exclusive", "--nodes=2", "--gpus-per-node=8", "--time=01:00:00", "--mem=0"),
    }
    assert wanted <= set(argv)


@each(
    ("site", "head", "own"),
    [
        ("aurora", ["qsub", "-I"], {"select=2", "walltime=01:00:00", "filesystems=flare:home", "p1"}),
        ("tuolumne", ["flux", "alloc"], {"--nodes=2", "--time-limit=60m", "--bank=p1"}),
        ("frontier", ["salloc"], {"--nodes=2", "--account=p1", "--network=disable_rdzv_get"}),
    ],
)
def test_every_scheduler_has_its_own_command(tmp_path: Path, site: str, head: list[str], own: set[str]) -> None:
    argv = _argv(tmp_path, "--site", site, *JOB)
    assert argv[: len(head)] == head
    assert own <= set(argv)


@each("site", ["lumi", "aurora", "tuolumne", "frontier", "perlmutter", "polaris"])
def test_it_asks_for_what_submit_asks_for_but_for_the_log(tmp_path: Path, site: str) -> None:
    """One place makes directives: what a batch script says, the terminal's command says too."""
    folder = script(tmp_path).parent
    asked = in_process("submit", "--dry-run", "--site", site, *JOB, "--name", "x", "place.py", cwd=folder).stdout
    marks = ("#SBATCH ", "#PBS ", "# flux: ")
    lines = [line.split(" ", 2 if line[1] == " " else 1)[-1] for line in asked.splitlines() if line.startswith(marks)]
    log = ("--output", "-j", "-k", "-o")
    batch = [word for line in lines if not line.startswith(log) for word in shlex.split(line)]
    alloc = in_process("alloc", "--dry-run", "--site", site, *JOB, "--name", "x", cwd=folder).stdout
    assert [word for word in shlex.split(alloc) if word not in {"salloc", "qsub", "-I", "flux", "alloc"}] == batch


def test_what_the_user_asks_for_stays_whatever_it_is(tmp_path: Path) -> None:
    assert "--output=mine" in _argv(tmp_path, "--site", "lumi", *JOB, "--directive", "--output=mine")
    assert "--mem=0" not in _argv(tmp_path, "--site", "lumi", *JOB, "--directive", "~--mem")


def test_a_command_in_the_place_of_the_shell_comes_last(tmp_path: Path) -> None:
    assert _argv(tmp_path, "--site", "lumi", *JOB, "--", "srun", "it's", "--x")[-3:] == ["srun", "it's", "--x"]


def test_the_reasons_are_in_the_json(tmp_path: Path) -> None:
    told = json.loads(in_process("alloc", "--dry-run", "--json", "--site", "lumi", *JOB, cwd=tmp_path).stdout)
    assert told["argv"][0] == "salloc"
    assert all(argument["because"] for argument in told["arguments"])
    assert [word for argument in told["arguments"] for word in argument["words"]] == told["argv"]


@each(
    ("words", "code", "said"),
    [
        (("--site", "aurora", *JOB, "--", "hostname"), 2, "qsub -I gives a shell"),
        (("--site", "lumi", *JOB, "train.py"), 2, "-- train.py"),
        (("--site", "lumi", "--time", "1h"), 2, "needs an account"),
        (("--site", "workstation"), 2, "no scheduler"),
        (("--site", "lumi", *JOB, "--env", "A=1"), 2, "--env"),
        (("--site", "lumi", *JOB), 3, "salloc is not installed here"),
        (("--site", "lumi", "--account", "p1", "--partition", "dev-g", "--nodes", "99"), 2, "at most 32 nodes"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_what_cannot_be_is_said(tmp_path: Path, words: tuple[str, ...], code: int, said: str) -> None:
    ended = in_process("alloc", *words, cwd=tmp_path, env={"PATH": str(tmp_path)})
    assert ended.code == code
    assert said in ended.stderr
    assert "Traceback" not in ended.text


def test_inside_of_a_job_there_is_nothing_to_ask_for(tmp_path: Path) -> None:
    env = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2"}
    ended = in_process("alloc", "--site", "lumi", *JOB, cwd=tmp_path, env=env)
    assert ended.code == 2
    assert "job 12" in ended.stderr
    assert "windlass run" in ended.stderr
