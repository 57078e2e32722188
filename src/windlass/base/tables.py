"""The TOML parser for every Python version, and the files of the package (folder `data` of each room)."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

from windlass.node.sys.reading import read_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["packaged_table", "packaged_text", "tomllib"]


def packaged_text(module_file: str, name: str) -> str:
    """Return the text of the file `data/NAME` next to the module with this `__file__`."""
    return read_text(Path(module_file).parent / "data" / name, follow=True)


@cache
def packaged_table(module_file: str, name: str) -> dict[str, Any]:
    """Return the table of a TOML file. Each file is read once, so callers must not change the result."""
    table: dict[str, Any] = tomllib.loads(packaged_text(module_file, name))
    return table
