"""What every table of a catalog file is: frozen, and closed to keys that nobody knows."""

from __future__ import annotations

import msgspec


class Table(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A TOML table that refuses keys it does not know."""
