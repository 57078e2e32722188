"""Write the winner as an overlay of the site in the user's configuration.

The next plan then uses the settings and shows the reason.
"""

from __future__ import annotations

import json
from pathlib import Path

from windlass.base.settings import ConfigFolders
from windlass.bench.tune.space import UNSET
from windlass.errors import MachineError
from windlass.node.sys.atomic import replace_file
from windlass.node.sys.reading import read_text
from windlass.sites.check import check_text
from windlass.sites.folders import catalog_names


def overlay_text(old: str, site: str, settings: dict[str, str], because: str, *, several_nodes: bool) -> str:
    """Return the text of the site's file in the user's directory, with these settings at its end.

    Settings at the end have precedence.
    """
    head = old.rstrip("\n") + "\n" if old.strip() else f'kind = "overlay"\nextends = {json.dumps(site)}\n'
    parts = [head]
    for name, value in settings.items():
        lines = ["[[settings]]", f"name = {json.dumps(name)}"]
        lines += [] if value == UNSET else [f"value = {json.dumps(value, ensure_ascii=False)}"]
        lines += [f"because = {json.dumps(because, ensure_ascii=False)}", 'source = "own"']
        lines += ["when = { nodes_min = 2 }"] if several_nodes else []
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def write_overlay(
    folders: ConfigFolders, site: str, settings: dict[str, str], because: str, *, several_nodes: bool
) -> Path:
    """Write the checked overlay and keep the existing content. Raises `MachineError` if the file would not be valid."""
    path = folders["user"] / "sites" / f"{site}.toml"
    try:
        old = read_text(path, follow=True) if path.exists() else ""
        text = overlay_text(old, site, settings, because, several_nodes=several_nodes)
        problems = check_text(
            text, file=str(path), stem=site, known=lambda kind: catalog_names(kind, folders), builtin=False
        )
        if problems:
            hint = "correct it with `windlass sites check`, or set the variables with --env"
            raise MachineError(f"{path} cannot take the settings: {problems[0].sentence()}", hint=hint)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode(), 0o644)
    except OSError as error:
        raise MachineError(f"cannot write {path}: {error.strerror}", hint="set WINDLASS_CONFIG") from error
    return path
