"""`python -m windlass` is the `windlass` command."""

import sys

if __name__ == "__main__":
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        del sys.path[0]  # the current folder, which `-m` puts first
    from windlass.cli.main import entry

    entry()
