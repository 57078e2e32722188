"""Where catalog files lie: those of the package, and those of the user beside them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from windlass.base.tables import tomllib
from windlass.node.sys.reading import read_text

CatalogKind = Literal["site", "hardware", "network"]

DATA_DIR = Path(__file__).parent / "data"
_FOLDERS: dict[CatalogKind, str] = {"site": "sites", "hardware": "hardware", "network": "networks"}


def catalog_path(kind: CatalogKind, name: str) -> Path | None:
    """The package's file of this name, or None."""
    path = DATA_DIR / _FOLDERS[kind] / f"{name}.toml"
    return path if path.is_file() else None


def user_path(kind: CatalogKind, name: str, config_dir: Path | None) -> Path | None:
    """The user's file of this name, or None."""
    path = config_dir / _FOLDERS[kind] / f"{name}.toml" if config_dir is not None else None
    return path if path is not None and path.is_file() else None


def catalog_names(kind: CatalogKind, config_dir: Path | None = None) -> tuple[str, ...]:
    """Names of all catalog files of a kind, the user's own included. Reads folders, not files."""
    folder = _FOLDERS[kind]
    names = {path.stem for path in (DATA_DIR / folder).glob("*.toml")}
    if config_dir is not None and (config_dir / folder).is_dir():
        names |= {path.stem for path in (config_dir / folder).glob("*.toml")}
    return tuple(sorted(names))


@lru_cache(maxsize=64)
def read_builtin(path: Path) -> Mapping[str, Any]:
    """A file of the package; a test checks them all, so that loading need not."""
    table: dict[str, Any] = tomllib.loads(read_text(path, follow=True))
    return table


class SiteHead(msgspec.Struct, frozen=True, kw_only=True):
    """What detection needs of a site file."""

    detect: Mapping[str, Any] = {}
    hardware: str | None = None
    scheduler: str | None = None


_HARDWARE = re.compile(r'^hardware\s*=\s*"([^"]+)"', re.MULTILINE)
_SCHEDULER = re.compile(r'^\[scheduler\]\s*\nkind\s*=\s*"([^"]+)"', re.MULTILINE)
_DETECT = re.compile(r"^\[detect\][^\n]*\n(?:(?!\[)[^\n]*\n?)*", re.MULTILINE)


def read_detect(path: Path) -> SiteHead:
    """The `[detect]` table and two keys of a site file, without parsing the rest: twenty files in milliseconds.

    A test ties this to the full parser for every file of the package; a user's file is parsed as a whole.
    """
    text = read_text(path, errors="replace", follow=True)
    if not path.is_relative_to(DATA_DIR):
        return _parsed_head(text)
    table = _DETECT.search(text)
    hardware = _HARDWARE.search(text)
    scheduler = _SCHEDULER.search(text)
    return SiteHead(
        detect=tomllib.loads(table.group())["detect"] if table else {},
        hardware=hardware.group(1) if hardware else None,
        scheduler=scheduler.group(1) if scheduler else None,
    )


def _parsed_head(text: str) -> SiteHead:
    """Of a user's file. One that does not parse shows no signs: detection is not the place to complain about it."""
    try:
        data = tomllib.loads(text)
        head = {"detect": data.get("detect", {}), "hardware": data.get("hardware")}
        return msgspec.convert({**head, "scheduler": data.get("scheduler", {}).get("kind")}, SiteHead)
    except (ValueError, RecursionError, AttributeError):  # of the parser, of msgspec, of a table that is none
        return SiteHead()
