"""Lines of the rank script for the caches of compilers and libraries on the node. Pure text."""

from __future__ import annotations

import hashlib

from windlass.base.notation.shell import expandable, quote
from windlass.model.plan import Plan
from windlass.plan.environment.caches import CACHE_DIR_VARIABLE
from windlass.plan.render.job_facts import JobFacts


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
