"""Writing the user's `config.toml`: keys are set in place, and whatever else the file says stays.

Only `init` writes it. The reader of the settings, which every command imports, does without this."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from windlass.base.settings import CONFIG_FILE, read_config
from windlass.errors import os_errors
from windlass.node.sys.atomic import replace_file
from windlass.node.sys.reading import read_text

_TABLE = re.compile(r"^\s*\[\s*(?P<name>[^\[\]]+?)\s*\]\s*(?:#.*)?$")


def write_config(config_dir: Path, site: str | None, keys: Mapping[str, str]) -> Path:
    """Set `keys` in the user's configuration, for all sites or for one. Raises `ConfigError` where the file that is
    there is wrong, and leaves it as it is."""
    path = config_dir / CONFIG_FILE
    read_config(path)
    with os_errors(f"write {path}", hint="set WINDLASS_CONFIG"):
        text = read_text(path, follow=True).lstrip("\ufeff") if path.exists() else ""
        config_dir.mkdir(parents=True, exist_ok=True)
        replace_file(path, with_keys(text, f"sites.{site}" if site else None, keys).encode(), 0o600)
    read_config(path)
    return path


def with_keys(text: str, table: str | None, keys: Mapping[str, str]) -> str:
    """The text of a TOML file with these keys of a table (None: of the top) set to text."""
    lines = text.splitlines()
    start, end = _range_of(lines, table)
    if start is None:
        lines += ["", f"[{table}]"] if lines else [f"[{table}]"]
        start = end = len(lines)
    for key, value in keys.items():
        line = f"{key} = {json.dumps(value, ensure_ascii=False)}"
        at = next((n for n in range(start, end) if re.match(rf"\s*{re.escape(key)}\s*=", lines[n])), None)
        if at is None:
            lines.insert(end, line)
            end += 1
        else:
            lines[at] = line
    return "\n".join(lines) + "\n"


def _range_of(lines: list[str], table: str | None) -> tuple[int | None, int]:
    """First line after the table's head and the line after its last key; None where there is no such table."""
    heads = [(n, match["name"].replace('"', "")) for n, line in enumerate(lines) if (match := _TABLE.match(line))]
    start = 0 if table is None else next((n + 1 for n, name in heads if name == table), None)
    if start is None:
        return None, len(lines)
    end = next((n for n, _ in heads if n >= start), len(lines))
    while end > start and not lines[end - 1].strip():
        end -= 1
    return start, end
