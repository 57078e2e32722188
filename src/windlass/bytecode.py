"""Bytecode for the files that travel to nodes, beside each source: the Python that made the file starts at once, every
other version ignores it and compiles the source."""

from __future__ import annotations

import marshal
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path


def bytecode(file: Path) -> bytes:
    """A .pyc that says by its content which source it belongs to, and is not checked again (PEP 552)."""
    code = SourceFileLoader(file.stem, str(file)).get_code(file.stem)  # from __pycache__ where it is there
    unchecked_hash = (1).to_bytes(4, "little")
    return MAGIC_NUMBER + unchecked_hash + source_hash(file.read_bytes()) + marshal.dumps(code)
