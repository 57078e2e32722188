"""The container around a rank's command, as lines of shell."""

from __future__ import annotations

from windlass.backends.containers import get_runtime
from windlass.backends.containers.base import OptionalArgument, WrapSpec
from windlass.backends.containers.binds import PATTERN
from windlass.base.notation.shell import expandable, quote
from windlass.model.origin import Argument
from windlass.model.plan import Plan
from windlass.plan.environment.ranks import rank_variable_names
from windlass.plan.render.variables import setting_lines


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
