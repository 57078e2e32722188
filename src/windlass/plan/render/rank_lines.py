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
    first = [
        f"  w_kept={expandable(kept_folder(plan, job))}",
        '  mkdir -m 700 "$w_kept" 2>/dev/null',
        f'  if [ -O "$w_kept" ] && [ ! -L "$w_kept" ] && [ ! -d "$w_kept/{name}-n$w_node_rank" ]; then',
        f'    rm -f "$w_kept/{name}-n$w_node_rank"; ln -s "${CACHE_DIR_VARIABLE}" "$w_kept/{name}-n$w_node_rank"',
        "  fi",
    ]
    every = [
        "# Build tools write down the path of what they built, and build again where it is another one.",
        f"w_kept={expandable(kept_folder(plan, job))}",
        f'if [ -O "$w_kept" ] && [ ! -L "$w_kept" ] && [ "$w_kept/{name}-n$w_node_rank" -ef "${CACHE_DIR_VARIABLE}" ]; '
        f"then {CACHE_DIR_VARIABLE}=$w_kept/{name}-n$w_node_rank; fi",
    ]
    return first, every


def _unpack_lines(keep: str) -> list[str]:
    """Unpack an archive that only this user could have written. What is checked is the open file, so that another user
    cannot put a file of theirs in its place. `tar` keeps no owners and, without -P, leaves no folder."""
    archive = quote(keep.rstrip("/") + "/caches.tar")
    return [
        f"  if [ -f {archive} ]; then (",
        f'    umask 077; exec 3< {archive}; [ -O /proc/self/fd/3 ] || {{ echo "windlass: not yours" >&2; exit 1; }}',
        "    case $(LC_ALL=C ls -lnL /proc/self/fd/3) in -????-??-*) ;;",
        '    *) echo "windlass: other users can write it" >&2; exit 1 ;; esac',
        f'    tar -C "${CACHE_DIR_VARIABLE}" -x -o -f - <&3; w_code=$?',
        f'    chmod -R ug-s,go-rwx "${CACHE_DIR_VARIABLE}"; exit "$w_code"',
        f'  ) || echo "windlass: cannot unpack" {archive}", going on without" >&2; fi',
    ]


def cache_lines(plan: Plan, job: JobFacts) -> list[str]:
    """Makes the folders, for the first rank of a node with what an earlier job has kept."""
    if not plan.caches:
        return []
    subdirs = " ".join(f'"${CACHE_DIR_VARIABLE}"/{quote(entry.subdir)}' for entry in plan.caches)
    lines = [
        "",
        "# Caches of compilers and libraries: on this node, for this run, made before any rank needs them.",
        f"w_parent={expandable(cache_parent(plan, job))}",
        f"export {CACHE_DIR_VARIABLE}=$w_parent/n$w_node_rank",
        'mkdir -m 700 "$w_parent" 2>/dev/null || [ -d "$w_parent" ] || w_fail "cannot make $w_parent"',
        '[ -O "$w_parent" ] && [ ! -L "$w_parent" ] || w_fail "$w_parent belongs to somebody else"',
    ]
    if plan.keep_caches:
        first, every = _same_path(plan, job)
        lines += [
            "# Saved caches of an earlier job: the first rank of the node unpacks them, the others wait for it.",
            'if [ "$w_local_rank" = 0 ]; then',
            f'  mkdir -p "${CACHE_DIR_VARIABLE}"',
            *(_unpack_lines(plan.keep_caches) if job.kept_caches else ()),
            *first,
            f'  : > "${CACHE_DIR_VARIABLE}/.ready"',
            "else",
            "  w_tries=0",
            f'  until [ -e "${CACHE_DIR_VARIABLE}/.ready" ] || [ $w_tries -ge 600 ]; do'
            " sleep 0.2; w_tries=$((w_tries + 1)); done",
            "fi",
            *every,
        ]
    return [*lines, f'mkdir -p {subdirs} || w_fail "cannot make the caches in ${CACHE_DIR_VARIABLE}"']


LIVE_FOLDER = "live"
"""In the run folder while a run goes on: one file for each of these ranks."""

LIVE_END = (
    "# All of its output is handed on before this script ends; a process that it left behind may hold it for ever.",
    'if [ -n "$w_tee" ]; then',
    "  exec >/dev/null 2>&1",
    '  (sleep 2; kill -KILL "$w_tee") & w_limit=$!',
    '  wait "$w_tee"; kill "$w_limit"',
    "fi",
)


def live_start(ranks: tuple[int, ...]) -> list[str]:
    """Sends the output of these ranks through `tee`; `w_tee` is empty in all others."""
    if not ranks:
        return []
    return [
        "",
        "# Somebody watches these ranks on a terminal: a copy of what they write shows progress bars while they grow.",
        f'w_tee= w_live="$WINDLASS_RUN_DIR/{LIVE_FOLDER}/$w_rank"',
        f'case "$w_rank" in {"|".join(map(str, ranks))})',
        '  if command -v tee >/dev/null && mkfifo -m 600 "$w_live.pipe" 2>/dev/null; then',
        '    (trap \'\' HUP INT TERM USR1 USR2; exec tee "$w_live") < "$w_live.pipe" &',
        '    w_tee=$!; exec > "$w_live.pipe" 2>&1; rm -f "$w_live.pipe"',
        "  fi ;;",
        "esac",
    ]


def live_command(ranks: tuple[int, ...]) -> list[str]:
    """Runs the command of such a rank where this script would not stay its parent otherwise. Signals reach all
    processes of a rank; the script waits, and ends as the command did."""
    if not ranks:
        return []
    return [
        'if [ -n "$w_tee" ]; then',
        "  trap : HUP INT TERM USR1 USR2",
        '  "$@"; w_code=$?',
        *(f"  {line}" for line in LIVE_END),
        "  trap - HUP INT TERM USR1 USR2",
        '  if [ "$w_code" -gt 128 ]; then kill -"$((w_code - 128))" $$; fi',
        '  exit "$w_code"',
        "fi",
    ]


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
