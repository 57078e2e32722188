"""Python takes from the cache's view what `.pth` files, editable installs and the user's own site name by its path.

On the node this file lies as `sitecustomize.py` in a folder of its own, the first of PYTHONPATH, with what `write_hook`
puts in the place of the two names below. It takes itself out of the way at once: its folder leaves `sys.path`, and the
`sitecustomize` that would have run without it runs. An old Python may read it too.
"""

import sys

ROOTS: "list[tuple[str, str]]" = []
VIEW = ""


def moved(path: "str") -> "str":
    """A path below a root, or below what a root really is, as the view has it; any other as it is."""
    for root, real in ROOTS:
        for above in (root, real):
            if path == above or path.startswith(above + "/"):
                return VIEW + root + path[len(above) :]
    return path


def move_paths() -> "None":
    """Order stays. Finders of editable installs have a map of their own."""
    sys.path[:] = [moved(path) for path in sys.path]
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable__"):
            mapping = getattr(module, "MAPPING", {})
            for key, place in list(mapping.items()):
                mapping[key] = moved(place)
            spaces = getattr(module, "NAMESPACES", {})
            for key, places in list(spaces.items()):
                spaces[key] = [moved(place) for place in places]


def run_next() -> "None":
    """Whoever of the same name comes next in `sys.path` runs as if it had been found first."""
    ours = sys.modules.pop(__name__)
    try:
        __import__(__name__)
    except ImportError as error:
        if error.name != __name__:
            raise
        sys.modules[__name__] = ours


if __name__ == "sitecustomize":
    folder = __file__.rpartition("/")[0]
    while folder in sys.path:
        sys.path.remove(folder)
    try:
        move_paths()
    except Exception as error:
        sys.stderr.write("windlass: paths are not taken from the cache: %s: %s\n" % (type(error).__name__, error))
    run_next()
