"""One step of making or using an environment, and the pieces of shell that both have in common. Pure."""

from __future__ import annotations

import re

import msgspec

from windlass.model.condition import Facts, holds
from windlass.model.site import ModuleSpec, Site
from windlass.notation.shell import quote


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step: lines of bash, and why."""

    name: str
    because: str
    commands: tuple[str, ...]
    source: str = ""
    shown: tuple[str, ...] = ()
    """What people are shown in the place of the commands."""


def shell_path(path: str) -> str:
    """A path of the catalog (`{account}`, `${USER}`) or of the user as one word of bash."""
    if "{account" not in path and "${" not in path:
        return quote(path)
    text = path.replace("{account_lower}", "${ACCOUNT,,}").replace("{account}", "${ACCOUNT}")
    return '"' + re.sub(r'[\\"`]|\$(?!\{)', lambda match: "\\" + match[0], text) + '"'


def site_modules(site: Site) -> tuple[ModuleSpec, ...]:
    """The modules that an environment is made with: the site's defaults on one node, and those it needs beside them."""
    facts = Facts(nodes=1, ranks_per_node=1, scheduler=site.file.scheduler.kind, launcher="local")
    wanted = set(site.file.python.modules)
    return tuple(
        spec
        for spec in site.file.modules
        if (spec.default and holds(spec.when, facts)) or {name.split("/", 1)[0] for name in spec.load} & wanted
    )
