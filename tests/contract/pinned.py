"""Names that users rely on, pinned in `pins/`: what is pinned must still be there; what is new may be.

To pin what there is now, new names too: `WINDLASS_GOLDEN=write`, then read `git diff tests/contract`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

FOLDER = Path(__file__).parent / "pins"
WRITE = os.environ.get("WINDLASS_GOLDEN") == "write"


def hold(name: str, found: dict[str, list[str]]) -> None:
    """Fails where something pinned under `name` is not in `found`: a group, or a name of a group."""
    path = FOLDER / f"{name}.json"
    if WRITE:
        FOLDER.mkdir(exist_ok=True)
        path.write_text(json.dumps({group: sorted(set(names)) for group, names in found.items()}, indent=1) + "\n")
    pinned: dict[str, list[str]] = json.loads(path.read_text())
    lost = {group: sorted(set(names) - set(found.get(group, ()))) for group, names in pinned.items()}
    assert {group: names for group, names in lost.items() if names or group not in found} == {}, (
        f"users rely on these, see {path.name}; if they go on purpose: say so in CHANGELOG.md, WINDLASS_GOLDEN=write"
    )


def key_paths(value: object, at: str = "") -> set[str]:
    """Every key of a JSON value, as in `environment[].name`."""
    if isinstance(value, list):
        return {path for item in value for path in key_paths(item, f"{at}[]")}
    if not isinstance(value, dict):
        return set()
    found = set()
    for key, item in value.items():
        path = f"{at}.{key}" if at else str(key)
        found |= {path, *key_paths(item, path)}
    return found
