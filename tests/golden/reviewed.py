"""Texts that somebody has read: what windlass makes today is held against them."""

from __future__ import annotations

import os
from pathlib import Path


def compare(folder: Path, name: str, text: str) -> None:
    """With WINDLASS_GOLDEN=write the text is kept first, to be read in the diff."""
    path = folder / name
    if os.environ.get("WINDLASS_GOLDEN") == "write":
        folder.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.exists(), f"{name} is missing: write it with WINDLASS_GOLDEN=write"
    assert text == path.read_text(), f"{name} differs: read the diff, then WINDLASS_GOLDEN=write"
