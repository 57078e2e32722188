"""Paths of catalog files: those of the package, of the computing centre and of the user."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from windlass.base.settings import NO_FOLDERS, ConfigFolders, ConfigScope
from windlass.base.tables import tomllib
from windlass.node.sys.reading import read_text

CatalogKind = Literal["site", "hardware", "network"]

DATA_DIR = Path(__file__).parent / "data"
_FOLDERS: dict[CatalogKind, str] = {"site": "sites", "hardware": "hardware", "network": "networks"}


def catalog_path(kind: CatalogKind, name: str) -> Path | None:
    """The package's file of this name, or None."""
    path = DATA_DIR / _FOLDERS[kind] / f"{name}.toml"
    return path if _is_name(name) and path.is_file() else None


def own_paths(kind: CatalogKind, name: str, folders: ConfigFolders) -> dict[ConfigScope, Path]:
    """The existing files of this name of the centre and of the user."""
    paths = {scope: folder / _FOLDERS[kind] / f"{name}.toml" for scope, folder in folders.items()}
    return {scope: path for scope, path in paths.items() if _is_name(name) and path.is_file()}


def _is_name(name: str) -> bool:
    """Plans of others name sites, too: a path would lead out of the folders."""
    return "/" not in name and "\0" not in name


def catalog_names(kind: CatalogKind, folders: ConfigFolders = NO_FOLDERS) -> tuple[str, ...]:
    """Names of all catalog files of a kind, including those of the centre and of the user.

    Reads directories, not files.
    """
    places = (DATA_DIR, *folders.values())
    return tuple(sorted({path.stem for place in places for path in (place / _FOLDERS[kind]).glob("*.toml")}))


@lru_cache(maxsize=64)
def read_builtin(path: Path) -> Mapping[str, Any]:
    """Read a file of the package. A test checks all of these files, so loading does not check them."""
    table: dict[str, Any] = tomllib.loads(read_text(path, follow=True))
    return table


class SiteHead(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a site file that detection needs."""

    detect: Mapping[str, Any] = {}
    hardware: str | None = None
    scheduler: str | None = None


_HARDWARE = re.compile(r'^hardware\s*=\s*"([^"]+)"', re.MULTILINE)
_SCHEDULER = re.compile(r'^\[scheduler\]\s*\nkind\s*=\s*"([^"]+)"', re.MULTILINE)
_DETECT = re.compile(r"^\[detect\][^\n]*\n(?:(?!\[)[^\n]*\n?)*", re.MULTILINE)


def read_detect(path: Path) -> SiteHead:
    """The `[detect]` table and two keys of a site file, without parsing the rest: twenty files in milliseconds.

    A test compares this with the full parser for every file of the package. A user's file is always parsed completely.
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
    """Parse the head of a user's file. A file that does not parse has no signs: other commands report the error."""
    try:
        data = tomllib.loads(text)
        head = {"detect": data.get("detect", {}), "hardware": data.get("hardware")}
        return msgspec.convert({**head, "scheduler": data.get("scheduler", {}).get("kind")}, SiteHead)
    except (ValueError, RecursionError, AttributeError):  # from the parser, msgspec, or a value that is no table
        return SiteHead()
