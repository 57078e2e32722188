"""Profiles of chosen ranks: what their script puts in front of the command, and what is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from looping import each
from planning import plan_for
from windlass.errors import UsageError
from windlass.node.sampler import profiler
from windlass.plan.profile import PROFILE_VARIABLE, PROFILERS, profile_lines


def said_by(rank: int, lines: list[str], run_dir: Path) -> str:
    """What a rank runs in the end, and what its hook is told."""
    script = ["set -- python3 'my script.py'", *lines, 'printf "%s\\n" "$@"', f'echo "${{{PROFILE_VARIABLE}:-}}"']
    env = {"w_rank": str(rank), "WINDLASS_RUN_DIR": str(run_dir), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["sh", "-euc", "\n".join(script)], env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout


@each("tool", PROFILERS)
def test_only_the_chosen_ranks_are_profiled(tool: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "a run's folder"
    run_dir.mkdir()
    plan, _ = plan_for("lumi", nodes=2, profile=tool, profile_ranks="9,14", profile_steps=32)
    lines = profile_lines(plan)
    assert said_by(1, lines, run_dir) == "python3\nmy script.py\n\n"
    chosen = said_by(14, lines, run_dir)
    assert (run_dir / "profile").is_dir()
    assert chosen.splitlines()[-3:-1] == ["python3", "my script.py"]
    if tool == "torch":
        assert chosen.splitlines()[-1] == f"32:{run_dir}/profile"
    else:
        assert chosen.splitlines()[0] == tool
        assert f"{run_dir}/profile/rank-14" in chosen


def test_the_commands_are_those_of_the_sites_documents() -> None:
    plan, _ = plan_for("lumi", nodes=2, profile="rocprof", profile_ranks="14")
    assert "rocprof --hip-trace --stats" in "\n".join(profile_lines(plan))


def test_torch_is_profiled_by_the_hook_and_plans_show_its_agents() -> None:
    plan, _ = plan_for("workstation", nodes=1, profile="torch")
    assert plan.agents is not None
    assert "sampler" in plan.agents.services
    other, _ = plan_for("workstation", nodes=1, profile="nsys")
    assert other.agents is None


@each(
    ("options", "said"),
    [({"profile": "tourch"}, "tourch"), ({"profile": "nsys", "profile_ranks": "0,16"}, "ranks 0 to 15")],
)
def test_what_cannot_be_is_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan_for("lumi", nodes=2, **options)


def test_plan_and_hook_mean_the_same_variable() -> None:
    assert profiler.VARIABLE == PROFILE_VARIABLE
