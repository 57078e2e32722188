"""The layer of a computing centre, between the catalog and the user's files: a folder that only the centre can change.

Read only where such a folder exists. It contains site files, and a `config.toml` with defaults, forbidden options and
bad nodes. It guides users and is no barrier: the scheduler enforces what must hold.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from windlass.errors import ConfigError
from windlass.node.sys.folders import require_owner

TABLES = ("forbidden", "bad_nodes")
"""Of `config.toml`, for a centre only."""
_BELOW = ("*.toml", "sites", "hardware", "networks", "*/*.toml")


class ForbiddenOption(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options that the centre refuses: of windlass, of the scheduler, of the launcher. A value may follow the name."""

    options: tuple[str, ...]
    because: str
    site: str | None = None
    """Only here. None: at all sites."""


class NodesToAvoid(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes that no job should get, with the evidence and the day on which the entry ends."""

    site: str
    hosts: str
    because: str
    until: datetime.date


class Centre(msgspec.Struct, frozen=True, kw_only=True):
    """What the centre says. Empty where its folder is not used."""

    folder: Path
    why_not: str = ""
    """Why windlass does not use the folder."""
    forbidden: tuple[ForbiddenOption, ...] = ()
    bad_nodes: tuple[NodesToAvoid, ...] = ()

    def forbidden_at(self, site: str) -> tuple[ForbiddenOption, ...]:
        return tuple(rule for rule in self.forbidden if rule.site in {None, site})


def why_not_used(folder: Path, owner: int | None) -> str:
    """Why windlass does not believe what is in this folder; empty where only one user (`owner`) can change it."""
    try:
        require_owner(folder, [path for pattern in _BELOW for path in folder.glob(pattern)], owner)
    except OSError as error:
        return f"{error.filename} {error.strerror}"
    return ""


def read_centre(folder: Path, table: Mapping[str, Any], file: Path) -> Centre:
    """The centre of a folder whose `config.toml` has this table. Raises `ConfigError` for a wrong entry."""
    try:
        found = {name: table[name] for name in TABLES if name in table}
        return msgspec.convert({"folder": folder, **found}, Centre)
    except msgspec.ValidationError as error:
        hint = "write options = [...] and because in [[forbidden]], site, hosts, because and until in [[bad_nodes]]"
        raise ConfigError(f"{file}: {error}", hint=hint) from error
