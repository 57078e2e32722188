"""Gather the context of each component of a job file."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from windlass.model.request import Request
from windlass.plan.inputs import PlanningContext
from windlass.run.auto_cache import with_auto_cache
from windlass.run.container_paths import seen_paths
from windlass.run.context import cache_environments, cache_roots, check_paths
from windlass.run.interpreter import activate_kind, find_python
from windlass.run.script import read_script


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
            python=python,
            python_because=because,
            imports=script.imports,
            script=script.facts,
            trains_alone=script.trains_alone,
            starts_ray=script.starts_ray,
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
