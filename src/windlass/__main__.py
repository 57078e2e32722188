"""`python -m windlass` is the `windlass` command."""

import sys
from posix import getcwd  # a built-in module: nothing is imported from the current folder

if __name__ == "__main__":
    try:
        current = getcwd()
    except OSError:  # the folder was removed
        current = ""
    if sys.path[:1] == [current]:  # `-m` puts it first
        del sys.path[0]
    from windlass.cli.main import entry

    entry()
