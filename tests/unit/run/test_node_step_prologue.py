"""Node steps find their launcher as the ranks' own step does: after the job's modules and activation."""

from __future__ import annotations

from pathlib import Path

import msgspec

from planning import plan_for
from windlass.agents.step import run_node_step
from windlass.model.plan import Prologue
from windlass.plan.agents import plan_node_step
from windlass.plan.environment.modules import activation_lines


def test_a_launcher_that_only_the_activated_environment_has_is_found(tmp_path: Path) -> None:
    tools = tmp_path / "it's a venv" / "bin"
    tools.mkdir(parents=True)
    (tools / "activate").write_text(f'echo activated; PATH="{tools}:$PATH"\n')
    (tools / "mpiexec").write_text('#!/bin/sh\nwhile [ "$1" != -genvall ]; do shift; done\nshift\nexec "$@"\n')
    (tools / "mpiexec").chmod(0o755)
    plan, _ = plan_for("generic-pbs", "true", launcher="hydra", nodes=2)
    lines = tuple(Prologue(line=line, because="asked for") for line in activation_lines(str(tools.parent), "venv"))
    step = plan_node_step(msgspec.structs.replace(plan, modules=(), modules_use=(), prologue=lines), "look")
    done = run_node_step(step, ("echo", "here", "a b"), environ={"PATH": "/nowhere:/usr/bin:/bin"}, timeout_s=60)
    assert done.stdout == "here a b\n"
    assert "activated" in done.stderr
