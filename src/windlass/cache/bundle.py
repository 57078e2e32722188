"""The node side as one file: a zip that any Python from 3.9 on runs, so that N nodes make N opens and not N imports.

Beside each source lies its bytecode for the Python that made the bundle: that one starts at once, every other Python
ignores it and compiles the source.
"""

from __future__ import annotations

import io
import marshal
import os
import zipfile
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path

_NODE = Path(__file__).parent / "node"
_MAIN = "import sys\nfrom node.daemon import main\nsys.exit(main(sys.argv[1:]))\n"


def bundle_bytes() -> bytes:
    """The zip's bytes; the same for the same source, so that it can be compared and cached by content."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, "__main__.py", _MAIN.encode())
        for file in sorted(_NODE.glob("*.py")):
            source = file.read_bytes()
            _add(archive, f"node/{file.name}", source)
            _add(archive, f"node/{file.stem}.pyc", _bytecode(source, f"node/{file.name}"))
    return stream.getvalue()


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    # Without a date, so that the bytes depend on the source alone.
    archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)


def _bytecode(source: bytes, name: str) -> bytes:
    """A .pyc that says by its content which source it belongs to, and is not checked again (PEP 552)."""
    code = compile(source, name, "exec", dont_inherit=True)
    unchecked_hash = (1).to_bytes(4, "little")
    return MAGIC_NUMBER + unchecked_hash + source_hash(source) + marshal.dumps(code)


def write_bundle(path: Path) -> Path:
    """Writes the zip in one step and returns its path."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(bundle_bytes())
    temporary.replace(path)
    return path
