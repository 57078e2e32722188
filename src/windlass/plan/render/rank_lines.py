"""Parts of the rank script: JIT caches on the node, live output on a terminal, the container. Pure text.

srun's daemons forward only complete lines, so a progress bar would appear only when it is finished. For the few ranks
that a person watches on a terminal, `tee` copies the output to a file, and windlass draws the end of that file. Without
`tee` or named pipes, only the progress bar is missing.
"""

from __future__ import annotations

import hashlib

from windlass.backends.containers import get_runtime
from windlass.backends.containers.base import OptionalArgument, WrapSpec
from windlass.backends.containers.binds import PATTERN
from windlass.base.notation.shell import expandable, quote
from windlass.model.origin import Argument
from windlass.model.plan import Plan
from windlass.plan.environment.caches import CACHE_DIR_VARIABLE
from windlass.plan.environment.ranks import rank_variable_names
from windlass.plan.render.parts import part
from windlass.plan.render.variables import JobFacts, setting_lines


def cache_parent(plan: Plan, job: JobFacts) -> str:
    """The directory on each node with this run's caches. `${NAME}` in the site's root is expanded on the node."""
    return f"{plan.cache_root.rstrip('/')}/{job.jit_folder or f'windlass-{job.uid}-{job.run_id}'}"


def kept_folder(plan: Plan, job: JobFacts) -> str:
    """The directory on each node with the paths that are the same in every job of this user."""
    return f"{plan.cache_root.rstrip('/')}/windlass-{job.uid}-kept"


def _same_path(plan: Plan, job: JobFacts) -> tuple[list[str], list[str]]:
    """Lines for the first rank of a node, and lines for all of its ranks.

    They link this run's caches to a path that the next job also uses. If another job on this node uses that path, the
    ranks use the run's own path.
    """
    if job.jit_folder is not None or not plan.keep_caches:
        return [], []
    name = hashlib.sha256(plan.keep_caches.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    kept = expandable(kept_folder(plan, job))
    return part("same_path_first", kept=kept, name=name), part("same_path", kept=kept, name=name)


def _unpack_lines(keep: str) -> list[str]:
    """Lines that unpack an archive, if only this user can have written it.

    They check the open file, so that another user cannot replace the file in between. `tar` restores no owners and,
    without -P, writes only inside the target directory.
    """
    archive = quote(keep.rstrip("/") + "/caches.tar")
    return part("unpack", archive=archive)


def cache_lines(plan: Plan, job: JobFacts) -> list[str]:
    """Lines that create the directories. The first rank of a node also unpacks the caches of an earlier job."""
    if not plan.caches:
        return []
    subdirs = " ".join(f'"${CACHE_DIR_VARIABLE}"/{quote(entry.subdir)}' for entry in plan.caches)
    kept: list[str] = []
    if plan.keep_caches:
        first, every = _same_path(plan, job)
        unpack = _unpack_lines(plan.keep_caches) if job.kept_caches else ()
        kept = part("kept_caches", unpack=unpack, first=first, every=every)
    lines = part("caches", parent=expandable(cache_parent(plan, job)), kept=kept, folders=subdirs)
    if job.leftovers:
        root = plan.cache_root.rstrip("/")
        old = [
            f"w_remove {expandable(f'{root}/windlass-{job.uid}-{run_id}')} {quote(f'WINDLASS_RUN_DIR={run_dir}')}"
            for run_id, run_dir in job.leftovers
        ]
        lines += part("leftovers", remove=[f"  {line}" for line in old])
    return lines


LIVE_FOLDER = "live"
"""Directory in the run folder during a run, with one file for each of these ranks."""


def live_start(ranks: tuple[int, ...]) -> list[str]:
    """Lines that send the output of these ranks through `tee`. `w_tee` is empty in all other ranks."""
    return part("live_start", folder=LIVE_FOLDER, ranks="|".join(map(str, ranks))) if ranks else []


def live_command(ranks: tuple[int, ...]) -> list[str]:
    """Lines that run the command of such a rank if this script would not stay its parent.

    Signals reach all processes of a rank. The script waits and exits with the command's exit code.
    """
    return part("live_command", live_end=[f"  {line}" for line in part("live_end")]) if ranks else []


def wrap_spec(plan: Plan, run_dir: str) -> WrapSpec:
    """The input of this plan's container runtime."""
    assert plan.container is not None
    vendor = plan.topology.devices[0].vendor if plan.topology.devices else None
    return WrapSpec(
        container=plan.container,
        cwd=plan.request.cwd,
        run_dir=run_dir,
        vendor=vendor,
        settings=plan.environment,
        rank_variables=rank_variable_names(),
    )


def container_lines(plan: Plan, run_dir: str) -> list[str]:
    """Lines that wrap the command in `$@` in the container."""
    assert plan.container is not None
    runtime = get_runtime(plan.container.runtime)
    spec = wrap_spec(plan, run_dir)
    lines = ["# The container around it; ranks, devices and rendezvous were computed outside and go in with it."]
    if runtime.needs_user:
        lines.append(f'[ -n "${{USER-}}" ] || export USER="$(id -un)"  # {runtime.name} does not start without')
    for setting in runtime.host_settings(spec):
        lines += setting_lines(setting)
    return [*lines, *wrap_lines(runtime.wrap(spec))]


def container_script(plan: Plan, run_dir: str, command: tuple[str, ...]) -> str:
    """A script for one node that runs a command in the plan's container, without the rank setup."""
    words = " ".join(quote(word) for word in command)
    return "\n".join(("#!/bin/sh", f"set -- {words}", *container_lines(plan, run_dir), 'exec "$@"', ""))


def wrap_lines(arguments: tuple[Argument, ...]) -> list[str]:
    """Lines that add the arguments in front of the command.

    The last argument comes first, so that an optional argument can be tested on the node.
    """
    lines: list[str] = []
    for argument in reversed(arguments):
        if isinstance(argument, OptionalArgument) and PATTERN.fullmatch(argument.exists):
            lines += _newest_lines(argument)
            continue
        put = "set -- " + " ".join(expandable(word) for word in argument.words) + ' "$@"'
        if isinstance(argument, OptionalArgument):
            put = f"if [ -e {expandable(argument.exists)} ]; then {put}; fi"
        lines.append(put)
    return lines


def _newest_lines(argument: OptionalArgument) -> list[str]:
    """Lines for a bind whose source is a pattern: use the node's newest version, or print a message if none exists."""
    words = [word.replace(argument.exists, "${w_newest}") for word in argument.words]
    missing = quote(f"has no {argument.exists}: {argument.because}")
    put = " ".join(expandable(word) for word in words)
    return part("newest", path=argument.exists, words=put, missing=missing)
