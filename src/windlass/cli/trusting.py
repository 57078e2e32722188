"""Show what a run folder or a plan of another user would run, and ask whether to trust it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from windlass.backends.schedulers import scheduler_of_job
from windlass.base.notation.style import for_terminal
from windlass.base.settings import read_settings
from windlass.cli.show import clear
from windlass.model.plan import Plan
from windlass.plan.show import plan_text
from windlass.run.folder import PLAN_FILE, plan_of, read_plan_file
from windlass.run.trust import (
    COMPONENTS,
    NotTrustedError,
    component_folders,
    signed_content,
    trust_folder,
    trust_plan,
)

T = TypeVar("T")


def asking_for_trust(act: Callable[[], T], environ: Mapping[str, str], *, in_jobs: bool = True) -> T:
    """Call `act`. If something is not trusted, ask once on a terminal and call it again.

    Without a terminal, raises the error. With `in_jobs` false, a job of a scheduler never asks.
    """
    try:
        return act()
    except NotTrustedError as error:
        if not can_ask() or not (in_jobs or scheduler_of_job(environ) is None):
            raise
        _say(f"windlass: {error.message}")
        if not confirm_trust(error.path, environ):
            raise
    return act()


def can_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm_trust(path: Path, environ: Mapping[str, str], *, ask: bool = True) -> bool:
    """Show what a run folder or a plan file would run, ask, and store a yes.

    Returns whether it is trusted now. Exactly the shown content is trusted.
    """
    state_dir = read_settings(environ).state_dir
    if path.is_dir():
        content = signed_content(path)
        for part in component_folders(path):
            content |= {f"{COMPONENTS}/{part.name}/{name}": data for name, data in signed_content(part).items()}
    else:
        content = {PLAN_FILE: read_plan_file(path)[1]}
    for name, data in content.items():
        shown = shown_plan(plan_of(data, path)) if Path(name).name == PLAN_FILE else data.decode(errors="replace")
        _say(f"== {name}\n{shown}")
    if ask:
        _say(f"Trust {str(path)!r} and let windlass run this as you? [y/N] ", end="")
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            return False
    if path.is_dir():
        trust_folder(path, content, state_dir)
    else:
        trust_plan(content[PLAN_FILE], state_dir)
    return True


def shown_plan(plan: Plan) -> str:
    """All parts of a plan that have an effect, without masks. Only reasons and origins are left out."""
    libraries = plan.container.host_libs if plan.container else None
    more = {"request, which `windlass runs resume` plans again": plan.request, "libraries of the host": libraries}
    parts = [
        "\n".join([title, *(f"  {name} {value}" for name, value in msgspec.to_builtins(fields).items())])
        for title, fields in more.items()
        if fields is not None
    ]
    return "\n\n".join([plan_text(plan, script=bool(plan.command)), *parts, *map(shown_plan, plan.parts)])


def _say(text: str, end: str = "\n") -> None:
    clear()
    print(for_terminal(text), end=end, file=sys.stderr, flush=True)
