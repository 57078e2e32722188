"""Scripts around the launcher, executed by real shells."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest

from looping import each
from planning import plan_for
from windlass.errors import UsageError
from windlass.model.plan import Prologue
from windlass.plan.render.batch_script import (
    batch_script,
    has_prologue,
    launch_script,
    printed_script,
    rendezvous_lines,
    standalone_script,
)

FOLDER = '/runs/it\'s $(id) `id` "q" *'
HOSTILE = f"{FOLDER}\n"


@each("site", ["lumi", "aurora", "tuolumne", "generic-pbs", "vista"])
def test_scripts_are_accepted_by_the_shell_that_gets_them(site: str) -> None:
    plan, _ = plan_for(site, "train", HOSTILE, nodes=2, account="a'b", name="x")
    folder = "/runs/x" if plan.scheduler == "pbs" else FOLDER
    for text in (
        batch_script(plan, folder, ("/opt/py thon", "-m", "windlass")),
        standalone_script(plan, folder),
        printed_script(plan, "{}\n", "0a", "/runs/x-$$", ("/opt/py thon",)),
        launch_script(plan, FOLDER),
    ):
        checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr


def test_directives_stand_together_at_the_top_and_their_reasons_follow() -> None:
    plan, _ = plan_for("lumi", nodes=2, account="project_1", time="30")
    lines = batch_script(plan, "/runs/x", ("windlass",)).splitlines()
    assert lines[0] == "#!/bin/bash"
    marked = [at for at, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert marked == list(range(1, 1 + len(plan.directives)))
    reasons = " ".join(line.strip("# ") for line in lines)
    assert all(argument.because[:40] in reasons for argument in plan.directives)


def test_the_default_script_hands_over_to_the_saved_plan(tmp_path: Path) -> None:
    plan, _ = plan_for("lumi")
    say = tmp_path / "say it's"
    say.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    say.chmod(0o755)
    text = batch_script(plan, "/runs/a b'c", (str(say), "-m", "windlass"))
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True)
    assert done.stdout == "-m|windlass|run|--plan|/runs/a b'c/plan.json|"


def test_activation_comes_before_the_launcher(tmp_path: Path) -> None:
    plan, _ = plan_for("workstation", "true")
    assert not has_prologue(plan)
    plan = msgspec.structs.replace(plan, prologue=(Prologue(line="export FIRST=1", because="a\nb"),))
    assert has_prologue(plan)
    (tmp_path / "rank.sh").write_text("echo first=$FIRST\n")
    done = subprocess.run(["bash", "-c", launch_script(plan, str(tmp_path))], capture_output=True, text=True)
    assert done.stdout == "first=1\n"


def _rendezvous(
    tmp_path: Path, job_id: str, hosts: str = "echo nid7.fabric.org; echo nid8", **options: object
) -> dict[str, str]:
    plan, _ = plan_for("generic-slurm", "true", **{"nodes": 2, **options})
    lines = rendezvous_lines(plan, "SLURM_JOB_ID", f"{{ {hosts}; }}", str(tmp_path))
    text = "\n".join(["set -u", *lines, "env"])
    done = subprocess.run(
        ["bash", "-c", text],
        capture_output=True,
        text=True,
        env={"SLURM_JOB_ID": job_id, "PATH": "/usr/bin:/bin:/sbin"},
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


@each("job_id", ["4711", "0", "08", "123456789012", "4711.server", "4711[3].server"])
def test_a_job_without_windlass_finds_its_rendezvous_in_shell(tmp_path: Path, job_id: str) -> None:
    found = _rendezvous(tmp_path, job_id)
    assert found["WINDLASS_MASTER_ADDR"] == "nid7"
    assert 20000 <= int(found["WINDLASS_MASTER_PORT"]) < 40000
    assert (tmp_path / "hosts").read_text() == "nid7.fabric.org\nnid8\n"


def test_a_wished_port_is_taken_as_it_is(tmp_path: Path) -> None:
    assert _rendezvous(tmp_path, "1", master_port=12345)["WINDLASS_MASTER_PORT"] == "12345"


def test_one_node_needs_no_name(tmp_path: Path) -> None:
    assert _rendezvous(tmp_path, "1", nodes=1)["WINDLASS_MASTER_ADDR"] == "127.0.0.1"


def test_a_line_break_cannot_become_a_directive() -> None:
    with pytest.raises(UsageError, match="line break"):
        plan_for("generic-slurm", "true", directives=("--comment=a\n#SBATCH --exclusive",))


def test_a_printed_script_hands_over_its_plan_and_runs_nothing_else(tmp_path: Path) -> None:
    """No text of the plan, of its remarks or of its command is executed or ends the here-document."""
    plan, _ = plan_for("generic-slurm", "END_OF_PLAN", HOSTILE, "\ntouch owned\n", nodes=2)
    text = f"END_OF_PLAN\n{HOSTILE}"
    say = tmp_path / "say"
    say.write_text('#!/bin/sh\nprintf "%s|" "$@"; cat\n')
    say.chmod(0o755)
    script = printed_script(plan, text, "0a", "/runs/x-$((40 + 2))", (str(say),))
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == f"run|--plan|-|--signed-by|0a|--run-dir|/runs/x-42|{text}"
    assert not (tmp_path / "owned").exists()
    assert "#   srun" in script, "the launcher's command line can be read"
