"""The node side as one file: a zip that any Python from 3.9 on runs, so that N nodes make N opens and not N imports."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

_NODE = Path(__file__).parent / "node"
_MAIN = "import sys\nfrom node.daemon import main\nsys.exit(main(sys.argv[1:]))\n"


def bundle_bytes() -> bytes:
    """The zip's bytes; the same for the same source, so that it can be compared and cached by content."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo("__main__.py"), _MAIN)
        for file in sorted(_NODE.glob("*.py")):
            archive.writestr(zipfile.ZipInfo(f"node/{file.name}"), file.read_bytes())
    return stream.getvalue()


def write_bundle(path: Path) -> Path:
    """Writes the zip in one step and returns its path."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(bundle_bytes())
    temporary.replace(path)
    return path
