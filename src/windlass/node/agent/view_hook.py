"""Redirect paths from `.pth` files, editable installs and the user site to the cache's view.

On the node this file is `sitecustomize.py` in a separate directory, the first of PYTHONPATH. `write_hook` replaces the
two names below with their values. The hook removes its directory from `sys.path` at once, and then runs the
`sitecustomize` that would have run without it. An old Python may also read this file.
"""

import sys

ROOTS: "list[tuple[str, str]]" = []
VIEW = ""


def moved(path: "str") -> "str":
    """Return the path in the view for a path below a root or its real path. Return other paths unchanged."""
    for root, real in ROOTS:
        for above in (root, real):
            if path == above or path.startswith(above + "/"):
                return VIEW + root + path[len(above) :]
    return path


def move_paths() -> "None":
    """Redirect the entries of `sys.path`, in their order, and the maps of editable installs' finders to the view."""
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
    """Run the next module of the same name in `sys.path`, as if Python had found it first."""
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
