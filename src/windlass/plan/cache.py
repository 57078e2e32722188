"""The parts that `--cache` adds to a plan and to the rank script: roots, and paths in the node's view. Pure.

This module starts nothing. The plan also contains the agents that serve the view, see `plan/agents.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from windlass.backends.containers import get_runtime
from windlass.base.notation.shell import comment, expandable, quote
from windlass.errors import UsageError
from windlass.model.origin import Origin
from windlass.model.plan import CachePlan, CacheRoot, ContainerPlan, Mount, Plan
from windlass.model.request import Request
from windlass.node.cache.config import state_folder
from windlass.plan.render.parts import part

VIEW_VARIABLE = "WINDLASS_VIEW"
REDIRECTED = (
    "PATH",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONUSERBASE",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
)
FLAG = Origin(scope="flag", where="--cache")
_BECAUSE = "the nodes share one read of these folders, so that not every node reads the shared file system"


def plan_cache(
    request: Request, seen: tuple[tuple[str, str], ...], environments: tuple[str, ...], *, ahead: bool = True
) -> CachePlan | None:
    """The cache of a run, or None if the request has no `--cache`.

    `seen` are the roots with symbolic links resolved, if this process could read them. `environments` are prefixes that
    the ranks may use.
    """
    if not request.cache:
        return None
    roots = declared_roots(seen or ((path, path) for path in request.cache))
    return CachePlan(
        roots=roots,
        environments=tuple(e for e in dict.fromkeys(environments) if below_roots(e, roots)),
        variables=() if request.container else REDIRECTED,
        placement=request.cache_placement,
        budget_bytes=request.cache_budget_bytes or 2 << 30,
        readers=request.cache_readers,
        store=request.cache_store or "",
        allow_other=request.cache_allow_other,
        trace=request.cache_trace,
        ahead=ahead,
        because=_BECAUSE,
        origin=FLAG,
    )


def declared_roots(pairs: Iterable[tuple[str, str]], said: str = "--cache") -> tuple[CacheRoot, ...]:
    """Return the roots without those inside another root. Raises `UsageError` for the whole file system."""
    kept: list[CacheRoot] = []
    for path, real in sorted(pairs):
        if path == "/" or real == "/":
            raise UsageError(f"{said} {path}: the whole file system", hint="name the folders that the ranks read")
        if ":" in path:
            raise UsageError(f"{said} {path}: a colon separates paths in PATH", hint="rename the folder")
        if not any(is_below(path, root.path) for root in kept):
            kept.append(CacheRoot(path=path, real=real))
    return tuple(kept)


def is_below(path: str, folder: str) -> bool:
    """Whether `path` is `folder` or is inside it. No path is inside a folder with an empty name."""
    return bool(folder) and (path == folder or path.startswith(folder.rstrip("/") + "/"))


def below_roots(path: str, roots: tuple[CacheRoot, ...]) -> bool:
    return any(is_below(path, root.path) or is_below(path, root.real) for root in roots)


# Paths on the node


def agents_folder(plan: Plan, uid: int | str, run_id: str) -> str:
    """Directory of a run's agents on each node. `${NAME}` in the site's root is expanded there.

    Another user cannot guess the run's name and create the directory first.
    """
    return f"{plan.cache_root.rstrip('/')}/windlass-{uid}-{run_id}.agents"


# The rank script


def view_folder_lines(plan: Plan, uid: int, run_id: str) -> list[str]:
    """Lines that set the value of `{view}`: the directory of this node's view.

    The value is empty in a container, because the view is mounted at the paths of the roots there.
    """
    if plan.cache is None or not plan.cache.variables:
        return ["w_view="] if plan.cache is not None else []
    return [f"w_view={_state(plan, uid, run_id)}/view"]


def _state(plan: Plan, uid: int, run_id: str) -> str:
    return expandable(state_folder(agents_folder(plan, uid, run_id), run_id, "")) + '"$w_node_rank"'


def view_lines(plan: Plan, uid: int, run_id: str) -> list[str]:
    """Lines that replace paths below the roots with paths in this node's view, in variables of the rank."""
    cache = plan.cache
    if cache is None:
        return []
    state = _state(plan, uid, run_id)
    first = quote(cache.roots[0].path)
    lines = [
        "",
        *comment(f"The cooperative cache: {cache.because}."),
        f"export {VIEW_VARIABLE}={state}/view",
        f"w_front={state}/front",
        f'[ -e "${VIEW_VARIABLE}"{first} ] || w_fail "the view of the cache is not there: see agents.log"',
    ]
    if not cache.variables:
        return lines
    patterns = [f"    {line}" for root in cache.roots for line in _patterns(root)]
    fronts = [_front_line(index, prefix) for index, prefix in enumerate(cache.environments)]
    return [*lines, *part("view", patterns=patterns, variables=" ".join(cache.variables), fronts=fronts)]


def _patterns(root: CacheRoot) -> list[str]:
    inside = f'"${VIEW_VARIABLE}"{quote(root.path)}'
    lines = [f"{quote(root.path)}|{quote(root.path)}/*) w_answer=${VIEW_VARIABLE}$1 ;;"]
    if root.real != root.path:
        real = quote(root.real)
        lines.append(f'{real}|{real}/*) w_answer={inside}"${{1#{real}}}" ;;')
    return lines


def _front_line(at: int, prefix: str) -> str:
    return (
        f'w_swap {quote(prefix)}; case ":$PATH:" in *":$w_answer/bin:"*) PATH=$w_front/{at}/bin:$PATH ;; esac; '
        f'[ -e "$w_front/{at}/pyvenv.cfg" ] && [ "${{VIRTUAL_ENV-}}" = "$w_answer" ] && VIRTUAL_ENV=$w_front/{at} || :'
    )


def command_lines(plan: Plan) -> list[str]:
    """Lines that take the command (and a Python script) from the view. Its arguments do not change."""
    cache = plan.cache
    if cache is None or not cache.variables:
        return []
    lines = ["# The program comes through the cache's view; a script of `bin` in its version for the view."]
    for index, prefix in enumerate(cache.environments):
        folder = quote(f"{prefix}/bin")
        lines.append(
            f'case $1 in {folder}/*) w_answer=$w_front/{index}/bin/${{1##*/}}; [ -e "$w_answer" ] && '
            '{ shift; set -- "$w_answer" "$@"; } ;; esac'
        )
    lines.append('w_swap "$1"; shift; set -- "$w_answer" "$@"')
    if plan.request.kind == "script":
        lines.append('w_first=$1; shift; w_swap "$1"; shift; set -- "$w_first" "$w_answer" "$@"')
    return lines


# The container


def with_view(container: ContainerPlan | None, cache: CachePlan | None) -> ContainerPlan | None:
    """The container with the view mounted at each root, so that paths inside the container do not change."""
    if container is None or cache is None:
        return container
    runtime = get_runtime(container.runtime)
    if runtime.starts_task:
        raise UsageError(
            f"--cache cannot be used with {runtime.name}: it creates the container before the node's view exists",
            hint="push the environment to the nodes with `windlass stage` instead",
        )
    mounts = tuple(
        Mount(
            source="${" + VIEW_VARIABLE + "}" + root.path,
            target=root.path,
            because="inside the container, the cache is mounted at the path of the folder",
            origin=FLAG,  # not a read-only bind, which some runtimes lack: the view itself is read-only
        )
        for root in cache.roots
    )
    for mount in mounts:
        problem = runtime.check_mount(mount)
        if problem:
            raise UsageError(
                f"--cache {mount.target} cannot be shown by {runtime.name}: {problem}",
                hint="leave --cache out, or choose another container runtime with --runtime",
            )
    hidden = {root.path for root in cache.roots}
    kept = tuple(mount for mount in container.mounts if mount.target not in hidden)
    return msgspec.structs.replace(container, mounts=(*kept, *mounts))
