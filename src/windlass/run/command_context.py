"""Gather what planning needs to know of one command: its script, its environment and its paths.

A run has one command. A job file has one for each component.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

import msgspec

from windlass.errors import UsageError
from windlass.model.finding import Finding
from windlass.model.request import Request
from windlass.model.site import Site
from windlass.plan.cache import is_below
from windlass.plan.inputs import PlanningContext
from windlass.run.auto_cache import with_auto_cache
from windlass.run.container_paths import seen_paths
from windlass.run.interpreter import activate_kind, check_activate, check_python, find_python, is_here
from windlass.run.script import Script, read_script


def command_facts(script: Script, python: str, because: str) -> dict[str, Any]:
    """Return the fields of a context that depend on the command alone, for a run and for each component."""
    return {
        "python": python,
        "python_because": because,
        "imports": script.imports,
        "script": script.facts,
        "trains_alone": script.trains_alone,
        "starts_ray": script.starts_ray,
    }


def check_paths(request: Request, site: Site, environ: Mapping[str, str], *, here: bool, ours: bool) -> list[Finding]:
    """Check that the environments named by the request exist here. Raises for a missing one.

    An environment on node-local storage is not checked if this machine is not one of the nodes (`ours`). For a plan for
    another machine, returns a warning for each missing environment.
    """
    if here:
        node_local = () if ours else node_local_folders(site, environ)
        if not request.container:
            check_python(request, node_local)
        check_activate(request, node_local)
        return []
    node_local = node_local_folders(site, environ)
    if request.activate and is_here(request.activate):
        check_activate(request, node_local)
    named = [("--activate", request.activate or ""), *(("--cache", path) for path in request.cache)]
    return [
        Finding("path-missing", "warning", f"{flag} {path} does not exist here", "it must exist on the nodes")
        for flag, path in named
        if path and not is_here(path) and not any(is_below(path, folder) for folder in node_local)
    ]


def node_local_folders(site: Site, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the node-local folders. A login node cannot see what `windlass stage` put there.

    For a folder per user or per job (`/mnt/bb/${USER}`), returns its parent, because the user who asks may not be the
    user who runs.
    """
    storage = site.file.storage
    named = (path for path in (storage.local, storage.stage) if path)
    fixed = (path.partition("$")[0].rstrip("/") or Template(path).safe_substitute(environ) for path in named)
    return tuple(dict.fromkeys(("/tmp", "/dev/shm", *fixed)))


def cache_roots(request: Request) -> tuple[tuple[str, str], ...]:
    """Return the roots of --cache with links resolved. Raises `UsageError` for a missing root."""
    for path in request.cache:
        if not is_here(path):
            raise UsageError(f"--cache {path} does not exist", hint="give a folder that every node can read")
    return tuple((path, str(Path(path).resolve())) for path in request.cache)


def cache_environments(request: Request, python: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Prefixes from which the ranks may start programs: the interpreter's, the active environments', and the roots."""
    named = [environ.get("VIRTUAL_ENV"), environ.get("CONDA_PREFIX"), request.activate, *request.cache]
    if "/" in python:
        named.insert(0, str(Path(python).parent.parent))
    return tuple(dict.fromkeys(str(prefix) for prefix in named if prefix and (Path(prefix) / "bin").is_dir()))


def with_parts(
    request: Request, context: PlanningContext, environ: Mapping[str, str], *, here: bool
) -> tuple[Request, PlanningContext]:
    """Return the request and the context of a job file with the context of each component.

    Only the facts about the component's command and environment are read. The machine is the same for all.
    """
    components, parts = [], []
    for one in request.components:
        inherited = {
            name: getattr(request, name) for name in ("site", "site_file", "scheduler", "launcher", "partition")
        }
        child = msgspec.structs.replace(one.request, **inherited)
        script = read_script(child)
        python, because = find_python(child, context.site, environ, script)
        child, note = with_auto_cache(child, python, context.site, environ)
        roots = cache_roots(child) if here else ()
        part = msgspec.structs.replace(
            context,
            **command_facts(script, python, because),
            place=None,
            activate_kind=activate_kind(child),
            cache_roots=roots,
            cache_environments=cache_environments(child, python, environ) if roots else (),
            seen_paths=seen_paths(child, context.site, environ) if context.on_node else None,
            remarks=(
                *check_paths(child, context.site, environ, here=here, ours=context.on_node),
                *filter(None, [note]),
            ),
            component=one.name,
        )
        components.append(msgspec.structs.replace(one, request=child))
        parts.append(part)
    whole = msgspec.structs.replace(context, parts=tuple(parts))
    return msgspec.structs.replace(request, components=tuple(components)), whole
