"""`python -m windlass` is the `windlass` command."""

from windlass.cli.main import entry

if __name__ == "__main__":
    entry()
