"""The code that ranks run, put into the run folder as plain files.

A container or a site's own Python need not have windlass installed: it finds the few modules beside the script. They
need nothing but the standard library, and torch for what measures torch.
"""

from __future__ import annotations

from pathlib import Path

import windlass
from windlass.errors import MachineError
from windlass.node.sys.atomic import replace_file
from windlass.node.sys.reading import read_bytes

_PACKAGE = Path(windlass.__file__).parent
_BENCH = ("__init__", "barrier", "measure", "messages", "options", "rank", "sizes")
_PROCS = ("base/__init__.py", "base/procs/__init__.py", "base/procs/command.py")
_NODE = (
    "node/__init__.py",
    "node/sys/__init__.py",
    *(f"node/sys/{name}.py" for name in ("messages", "reading", "text")),
)
_FILES = ("__init__.py", "errors.py", *_PROCS, *_NODE, *(f"bench/{name}.py" for name in _BENCH))
_PROGRAMS = ("collectives", "io", "matmul", "train")

_SCRIPT = """\
\"\"\"One rank of a benchmark: rank.py PROGRAM OPTIONS. Runs the copy of windlass beside it.\"\"\"
import json
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
from windlass.bench.rank import leave, run_program

leave(run_program(sys.argv[1], json.loads(sys.argv[2])))
"""


def _copy_package(source: Path, target: Path) -> None:
    for file in sorted(source.rglob("*.py")):
        copy = target / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        replace_file(copy, read_bytes(file, follow=True))


def put_code(folder: Path) -> Path:
    """Copy the ranks' modules to `folder`/code; returns the script to run."""
    code = folder / "code"
    try:
        for name in _FILES:
            target = code / "windlass" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            replace_file(target, read_bytes(_PACKAGE / name, follow=True))
        for name in _PROGRAMS:
            _copy_package(_PACKAGE / "bench" / name, code / "windlass" / "bench" / name)
        script = code / "rank.py"
        replace_file(script, _SCRIPT.encode())
    except OSError as error:
        raise MachineError(
            f"cannot write the ranks' code to {code}: {error.strerror}", hint="choose another place with --run-dir"
        ) from error
    return script
