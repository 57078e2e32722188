"""Parts of the rank script: caches of compilers on the node, live output on a terminal, the container. Pure text.

srun's daemons forward only complete lines, so a progress bar would appear when it is done. For the few ranks that a
person watches on a terminal, `tee` copies the output to a file, and windlass draws the end of that file. Without `tee`
or named pipes only the progress bar is missing.
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
    """The folder on each node that holds this run's caches; `${NAME}` in the site's root is expanded on the node."""
    return f"{plan.cache_root.rstrip('/')}/{job.jit_folder or f'windlass-{job.uid}-{job.run_id}'}"


def kept_folder(plan: Plan, job: JobFacts) -> str:
    """The folder on each node with the paths that are the same in every job of this user."""
    return f"{plan.cache_root.rstrip('/')}/windlass-{job.uid}-kept"


def _same_path(plan: Plan, job: JobFacts) -> tuple[list[str], list[str]]:
    """Lines for the first rank of a node, and for all of them: a link to this run's caches by a path that the next job
    has too. Where another job on this node holds it, the run's own path has to do."""
    if job.jit_folder is not None or not plan.keep_caches:
        return [], []
    name = hashlib.sha256(plan.keep_caches.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    kept = expandable(kept_folder(plan, job))
    return part("same_path_first", kept=kept, name=name), part("same_path", kept=kept, name=name)


def _unpack_lines(keep: str) -> list[str]:
    """Unpack an archive that only this user could have written. What is checked is the open file, so that another user
    cannot put a file of theirs in its place. `tar` keeps no owners and, without -P, leaves no folder."""
    archive = quote(keep.rstrip("/") + "/caches.tar")
    return part("unpack", archive=archive)


def cache_lines(plan: Plan, job: JobFacts) -> list[str]:
    """Makes the folders, for the first rank of a node with what an earlier job has kept."""
    if not plan.caches:
        return []
    subdirs = " ".join(f'"${CACHE_DIR_VARIABLE}"/{quote(entry.subdir)}' for entry in plan.caches)
    kept: list[str] = []
    if plan.keep_caches:
        first, every = _same_path(plan, job)
        unpack = _unpack_lines(plan.keep_caches) if job.kept_caches else ()
        kept = part("kept_caches", unpack=unpack, first=first, every=every)
    return part("caches", parent=expandable(cache_parent(plan, job)), kept=kept, folders=subdirs)


LIVE_FOLDER = "live"
"""In the run folder while a run goes on: one file for each of these ranks."""


def live_start(ranks: tuple[int, ...]) -> list[str]:
    """Sends the output of these ranks through `tee`; `w_tee` is empty in all others."""
    return part("live_start", folder=LIVE_FOLDER, ranks="|".join(map(str, ranks))) if ranks else []


def live_command(ranks: tuple[int, ...]) -> list[str]:
    """Runs the command of such a rank where this script would not stay its parent otherwise. Signals reach all
    processes of a rank; the script waits, and ends as the command did."""
    return part("live_command", live_end=[f"  {line}" for line in part("live_end")]) if ranks else []


def wrap_spec(plan: Plan, run_dir: str) -> WrapSpec:
    """What the container runtime of this plan has to wrap."""
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
    """Lines that put the container around the command in `$@`."""
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
    """A command in the plan's container and nothing of a rank around it, as a script for one node."""
    words = " ".join(quote(word) for word in command)
    return "\n".join(("#!/bin/sh", f"set -- {words}", *container_lines(plan, run_dir), 'exec "$@"', ""))


def wrap_lines(arguments: tuple[Argument, ...]) -> list[str]:
    """The words in front of the command, last first, so that an optional one can first ask the node."""
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
    """A bind whose source is a pattern: the newest version that the node has, and a word where it has none."""
    words = [word.replace(argument.exists, "${w_newest}") for word in argument.words]
    missing = quote(f"has no {argument.exists}: {argument.because}")
    return [
        f"w_newest=$(printf '%s\\n' {argument.exists} | sort -V | tail -n 1)",
        f'if [ -e "$w_newest" ]; then set -- {" ".join(expandable(word) for word in words)} "$@"',
        f'elif [ "$w_local_rank" = 0 ]; then echo "windlass: $w_host" {missing} >&2; fi',
    ]
