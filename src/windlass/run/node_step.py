"""Small commands beside the ranks: the host file, killing what a launcher left, one task per node."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from windlass.containers import get_runtime
from windlass.errors import WindlassError
from windlass.launchers import get_launcher
from windlass.launchers.base import LaunchSpec
from windlass.model.origin import words_of
from windlass.model.plan import Plan
from windlass.model.site import LauncherSpec
from windlass.plan.render.rank_script import wrap_spec
from windlass.procs.command import run_command
from windlass.run.folder import RunFolder
from windlass.schedulers import get_scheduler

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


def kill_step(plan: Plan, environ: Mapping[str, str]) -> None:
    """Kill on all nodes what the launcher started; for ranks that do not listen to SIGTERM. Never raises."""
    if plan.scheduler == "none":
        return
    scheduler = get_scheduler(plan.scheduler)
    with contextlib.suppress(WindlassError):
        argv = scheduler.kill_step_argv(environ, plan.name)
        if argv is not None:
            run_command(argv, timeout_s=_KILL_TIMEOUT_S, env=environ, check=False)


def run_on_nodes(plan: Plan, words: tuple[str, ...], environ: Mapping[str, str], timeout_s: float) -> None:
    """One small task on each node of the run, beside whatever runs there. Raises `CommandError` where it fails."""
    run_command((*beside_words(plan), *words), timeout_s=timeout_s, env=environ)


def beside_words(plan: Plan) -> tuple[str, ...]:
    """The launcher's words for one task on each node."""
    launcher = get_launcher(plan.launcher)
    spec = LaunchSpec(
        nodes=plan.nodes,
        ranks_per_node=1,
        host_list=plan.hosts if plan.launcher == "srun" else None,
        beside=True,
        step_name=f"{plan.name}-end",
    )
    return words_of(launcher.arguments(spec, LauncherSpec()))
