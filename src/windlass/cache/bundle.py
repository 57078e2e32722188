"""The node side as one file: a zip that any Python from 3.9 on runs, so that N nodes make N opens and not N imports."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

from windlass.bytecode import bytecode

_NODE = Path(__file__).parent / "node"
_MAIN = "import sys\nfrom node.daemon import main\nsys.exit(main(sys.argv[1:]))\n"


def bundle_bytes() -> bytes:
    """The zip's bytes; the same for the same source, so that it can be compared and cached by content."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, "__main__.py", _MAIN.encode())
        for file in sorted(_NODE.glob("*.py")):
            _add(archive, f"node/{file.name}", file.read_bytes())
            _add(archive, f"node/{file.stem}.pyc", bytecode(file))
    return stream.getvalue()


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    # Without a date, so that the bytes depend on the source alone.
    archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)


def write_bundle(path: Path) -> Path:
    """Writes the zip in one step and returns its path."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(bundle_bytes())
    temporary.replace(path)
    return path
