"""The layer of a computing centre, between the catalog and the user's files.

It is a folder that only the centre can change, and windlass reads it only if it exists. It contains site files, and a
`config.toml` with defaults, forbidden options and bad nodes. It guides users but does not enforce anything. The
scheduler enforces the rules.
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
"""Tables of `config.toml` that only a centre may use."""
_BELOW = ("*.toml", "sites", "hardware", "networks", "*/*.toml")


class ForbiddenOption(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options that the centre refuses: of windlass, the scheduler or the launcher. A value may follow the name."""

    options: tuple[str, ...]
    because: str
    site: str | None = None
    """Only at this site. None: at all sites."""


class NodesToAvoid(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes that no job should get, with the evidence and the day on which the entry expires."""

    site: str
    hosts: str
    because: str
    until: datetime.date


class Centre(msgspec.Struct, frozen=True, kw_only=True):
    """The centre's configuration. It is empty if windlass does not use the folder."""

    folder: Path
    why_not: str = ""
    """Why windlass does not use the folder."""
    forbidden: tuple[ForbiddenOption, ...] = ()
    bad_nodes: tuple[NodesToAvoid, ...] = ()

    def forbidden_at(self, site: str) -> tuple[ForbiddenOption, ...]:
        return tuple(rule for rule in self.forbidden if rule.site in {None, site})


def why_not_used(folder: Path, owner: int | None) -> str:
    """Return why windlass does not trust this folder. Empty if only one user (`owner`) can change it."""
    try:
        require_owner(folder, [path for pattern in _BELOW for path in folder.glob(pattern)], owner)
    except OSError as error:
        return f"{error.filename} {error.strerror}"
    return ""


def read_centre(folder: Path, table: Mapping[str, Any], file: Path) -> Centre:
    """Return the centre of a folder whose `config.toml` has this table. Raises `ConfigError` for an invalid entry."""
    try:
        found = {name: table[name] for name in TABLES if name in table}
        return msgspec.convert({"folder": folder, **found}, Centre)
    except msgspec.ValidationError as error:
        hint = "write options = [...] and because in [[forbidden]], site, hosts, because and until in [[bad_nodes]]"
        raise ConfigError(f"{file}: {error}", hint=hint) from error
