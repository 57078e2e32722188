"""Record the modules that a rank has imported after its first steps, for the standby process of the node.

On the node this file is `sitecustomize.py` in a separate directory, the first of PYTHONPATH. It removes that directory
from `sys.path` at once and then runs the `sitecustomize` that would have run without it. It never imports torch: it
waits until the program does. Modules below the script's directory or the working directory are left out, because they
belong to the user and may read the rank's variables. An error in this file costs the standby, never the program.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # an old Python may also read this file
    from typing import Any

_STEPS = 3
_TORCH = "torch.optim.optimizer"


class _AfterImport:
    """A finder that delegates to the others and counts optimizer steps once torch has been imported."""

    def find_spec(self, name: "Any", path: "Any" = None, target: "Any" = None) -> "Any":
        if name != _TORCH:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec: Any = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                _call_after(spec.loader)
                return spec
        return None


def _call_after(loader: "Any") -> "None":
    execute = loader.exec_module

    def exec_module(module: "Any") -> "None":
        execute(module)
        _count_steps(module)

    loader.exec_module = exec_module


def _count_steps(module: "Any") -> "None":
    seen: list[Any] = []

    def after_step(*_: "Any") -> "None":  # it stays: torch is iterating over its hooks here
        if len(seen) < _STEPS:
            seen.append(1)
            if len(seen) == _STEPS:
                record(_folder)

    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is not None:
        register(after_step)


def record(folder: "str") -> "None":
    """Write the names of the imported modules that do not belong to the user, in the order of their import."""
    import json
    import os

    try:
        own = [os.path.realpath(path) + os.sep for path in (os.path.dirname(sys.argv[0]) or ".", ".")]
        kept = [os.path.realpath(path) + os.sep for path in (sys.prefix, sys.base_prefix)]
        names = []
        for name, module in list(sys.modules.items()):
            file = os.path.realpath(getattr(module, "__file__", None) or os.sep)
            if name != "__main__" and (file.startswith(tuple(kept)) or not file.startswith(tuple(own))):
                names.append(name)
        out = os.open(os.path.join(folder, "modules"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(out, json.dumps(names).encode())
        os.close(out)
    except FileExistsError:  # an earlier start of the ranks on this node has recorded them
        pass
    except Exception as error:
        sys.stderr.write("windlass: the standby gets no modules: %s: %s\n" % (type(error).__name__, error))


def _run_next() -> "None":
    ours = sys.modules.pop(__name__)
    try:
        __import__(__name__)
    except ImportError as error:
        if error.name != __name__:
            raise
        sys.modules[__name__] = ours


if __name__ == "sitecustomize":
    from os import environ as _environ

    _folder = _environ.pop("WINDLASS_MODULES", "")
    while __file__.rpartition("/")[0] in sys.path:
        sys.path.remove(__file__.rpartition("/")[0])
    if _folder:
        sys.meta_path.insert(0, _AfterImport())
    _run_next()
