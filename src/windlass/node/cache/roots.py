"""The declared roots: the only part of the shared file system that a cache can name.

A root has the path that the user wrote (`view`, shown by the mount) and the real directory (`real`, with symlinks
resolved once, at the start). All transmitted paths are view paths.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple


class Root(NamedTuple):
    view: bytes
    real: bytes


def declare_roots(paths: Sequence[str | bytes]) -> tuple[Root, ...]:
    """Return roots for user paths: made absolute, symlinks resolved, a root inside another one dropped.

    Raises `FileNotFoundError` for a root that does not exist.
    """
    roots: list[Root] = []
    for path in paths:
        view = os.path.normpath(os.path.join(os.fsencode(os.getcwd()), os.fsencode(path)))
        view = b"/" + view.lstrip(b"/")
        real = os.path.realpath(view)
        os.stat(real)
        roots.append(Root(view, real))
    roots.sort()
    kept: list[Root] = []
    for root in roots:
        if not any(is_under(root.view, k.view) for k in kept):
            kept.append(root)
    return tuple(kept)


def is_under(path: bytes, root: bytes) -> bool:
    return path == root or root == b"/" or path.startswith(root + b"/")


def root_of(path: bytes, roots: Sequence[Root]) -> Root | None:
    for root in roots:
        if is_under(path, root.view):
            return root
    return None


def names_above(path: bytes, roots: Sequence[Root]) -> dict[bytes, Root | None] | None:
    """Return the names in a directory above the roots: each with its root, or None for a further such directory.

    Returns None instead of a dict if the directory is not above any root.
    """
    prefix = path.rstrip(b"/") + b"/"
    found: dict[bytes, Root | None] = {}
    for root in roots:
        if root.view.startswith(prefix) and root.view != prefix:
            name, _, rest = root.view[len(prefix) :].partition(b"/")
            found[name] = None if rest else root
    return found or (None if path != b"/" else {})


def link_text(link: bytes, target: bytes, roots: Sequence[Root]) -> bytes:
    """Return the text of a symbolic link at view path `link`.

    An absolute target inside a root, under its declared or its real name, becomes relative. So it stays inside the view
    wherever the view is mounted, bound or nested. Every other text is returned unchanged.
    """
    if not target.startswith(b"/"):
        return target
    clean = b"/" + os.path.normpath(target).lstrip(b"/")
    for root in roots:
        for base in (root.view, root.real):
            if is_under(clean, base):
                rest = clean[len(base.rstrip(b"/")) :].lstrip(b"/")
                inside = root.view.rstrip(b"/") + b"/" + rest if rest else root.view
                return os.path.relpath(inside, os.path.dirname(link))
    return target
