"""The files that a launch reads, and ending its step on every node."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from windlass.backends.containers import get_runtime
from windlass.backends.launchers import get_launcher
from windlass.backends.launchers.base import LaunchSpec
from windlass.backends.schedulers import get_scheduler
from windlass.base.procs.command import run_command
from windlass.errors import WindlassError
from windlass.model.plan import Plan
from windlass.plan.render.batch_script import step_name
from windlass.plan.render.container import wrap_spec
from windlass.run.folder import RunFolder

_KILL_TIMEOUT_S = 20.0


def write_host_file(plan: Plan, folder: RunFolder, hosts: tuple[str, ...]) -> None:
    """The hosts of the run, one per line, in the form that the launcher reads."""
    if not hosts:
        return
    spec = LaunchSpec(nodes=plan.nodes, ranks_per_node=plan.ranks_per_node)
    text = get_launcher(plan.launcher).host_file_text(hosts, spec)
    folder.write("hosts", text if text is not None else "".join(f"{host}\n" for host in hosts))


def write_container_files(plan: Plan, folder: RunFolder) -> None:
    """Files that the container runtime reads from the run folder (an EDF)."""
    if plan.container is None:
        return
    for name, text in get_runtime(plan.container.runtime).files(wrap_spec(plan, str(folder.path))).items():
        folder.write(name, text)


def kill_step(plan: Plan, folder: RunFolder, environ: Mapping[str, str]) -> None:
    """Kill on all nodes what the launcher started for this folder, where ranks do not listen to SIGTERM. Never
    raises."""
    if plan.scheduler == "none":
        return
    scheduler = get_scheduler(plan.scheduler)
    with contextlib.suppress(WindlassError):
        argv = scheduler.kill_step_argv(environ, step_name(plan, str(folder.path)))
        if argv is not None:
            run_command(argv, timeout_s=_KILL_TIMEOUT_S, env=environ, check=False)
