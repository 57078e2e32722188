"""`python -m windlass.cache.node peer|mount CONFIG`, or the same from the zip file: one process of a node's cache."""

from __future__ import annotations

import sys

from .daemon import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
