"""The code for the ranks: the zip of `agents/ship` with the modules of the bench, written to the run directory.

Windlass need not be installed in a container or in a site's Python, because Python runs the file directly. The modules
need only the standard library, and torch for the cases that measure torch.
"""

from __future__ import annotations

from pathlib import Path

import windlass
from windlass.agents.ship import tree_bytes
from windlass.errors import MachineError
from windlass.node.sys.atomic import replace_file
from windlass.node.sys.reading import read_bytes

_TOP = Path(windlass.__file__).parent
_PACKAGES = ("base/procs", "bench", "bench/collectives", "bench/io", "bench/matmul", "bench/train")
_MAIN = b"""\
import json
import sys

from windlass.bench.rank import leave, run_program

leave(run_program(sys.argv[1], json.loads(sys.argv[2])))
"""


def put_code(folder: Path) -> Path:
    """Write the code to `folder` and return the file to run as `FILE PROGRAM OPTIONS`. Raises `MachineError`."""
    members = {f"windlass/{name}": read_bytes(_TOP / name, follow=True) for name in ("__init__.py", "errors.py")}
    packages = {f"windlass.{name.replace('/', '.')}": _TOP / name for name in _PACKAGES}
    path = folder / "ranks.pyz"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(path, tree_bytes({"__main__.py": _MAIN, **members}, packages, compressed=False))
    except OSError as error:
        raise MachineError(
            f"cannot write the ranks' code to {path}: {error.strerror}", hint="choose another place with --run-dir"
        ) from error
    return path
