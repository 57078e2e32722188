"""Run a module of windlass: `python start.py MODULE [ARGS…]`.

`python -m` puts the current folder first in `sys.path`, and a file of that folder could replace `json` or `runpy`. This
script removes that entry before it imports anything. Python 3.9 and 3.10 have no option for that.
"""

import sys

if __name__ == "__main__":
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        del sys.path[0]  # the folder of this script, whose modules are named like those of Python
    package, module = __file__.rpartition("/")[0], sys.argv.pop(1)
    folder = package.rpartition("/")[0]
    if folder not in sys.path:  # windlass is not installed
        sys.path.append(folder)
    if module == "windlass":
        from windlass.cli.main import entry

        entry()
    else:
        import runpy

        runpy.run_module(module, run_name="__main__", alter_sys=True)
