"""The code that ranks run, put into the run folder as plain files.

A container or a site's own Python need not have windlass installed: it finds the few modules beside the script. They
need nothing but the standard library, and torch for what measures torch.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import windlass
from windlass.errors import MachineError

_PACKAGE = Path(windlass.__file__).parent
_PARTS = ("__init__.py", "errors.py", "procs/__init__.py", "procs/command.py")
_BENCH = ("__init__.py", "measure.py", "matmul.py", "sizes.py", "lines.py", "ranks", "train")

_SCRIPT = """\
\"\"\"One rank of a benchmark: rank.py PROGRAM [ARGS]. Runs the copy of windlass beside it.\"\"\"
import sys
from importlib import import_module
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.exit(import_module("windlass.bench.ranks." + sys.argv[1]).main(sys.argv[2:]))
"""


def put_code(folder: Path) -> Path:
    """Copy the ranks' modules to `folder`/code; returns the script to run."""
    code = folder / "code"
    try:
        (code / "windlass" / "bench").mkdir(parents=True)
        (code / "windlass" / "procs").mkdir()
        for name in _PARTS:
            shutil.copyfile(_PACKAGE / name, code / "windlass" / name)
        for name in _BENCH:
            source, target = _PACKAGE / "bench" / name, code / "windlass" / "bench" / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
            else:
                shutil.copyfile(source, target)
        script = code / "rank.py"
        script.write_text(_SCRIPT)
    except OSError as error:
        raise MachineError(
            f"cannot write the ranks' code to {code}: {error.strerror}", hint="choose another place with --run-dir"
        ) from error
    return script
