"""Where catalog files lie: those of the package, and those of the user beside them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Kind = Literal["site", "hardware", "network"]

DATA_DIR = Path(__file__).parent / "data"
_FOLDERS: dict[Kind, str] = {"site": "sites", "hardware": "hardware", "network": "networks"}


def catalog_path(kind: Kind, name: str) -> Path | None:
    """The package's file of this name, or None."""
    path = DATA_DIR / _FOLDERS[kind] / f"{name}.toml"
    return path if path.is_file() else None


def user_path(kind: Kind, name: str, config_dir: Path | None) -> Path | None:
    """The user's file of this name, or None."""
    path = config_dir / _FOLDERS[kind] / f"{name}.toml" if config_dir is not None else None
    return path if path is not None and path.is_file() else None


def catalog_names(kind: Kind, config_dir: Path | None = None) -> tuple[str, ...]:
    """Names of all catalog files of a kind, the user's own included. Reads folders, not files."""
    folder = _FOLDERS[kind]
    names = {path.stem for path in (DATA_DIR / folder).glob("*.toml")}
    if config_dir is not None and (config_dir / folder).is_dir():
        names |= {path.stem for path in (config_dir / folder).glob("*.toml")}
    return tuple(sorted(names))


@lru_cache(maxsize=64)
def read_builtin(path: Path) -> Mapping[str, Any]:
    """A file of the package; a test checks them all, so that loading need not."""
    table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    return table
