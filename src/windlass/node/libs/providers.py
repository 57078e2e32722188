"""Providers that the host's libfabric loads as files of their own: which of them go in with it, and what they need.

libfabric looks for them in a folder `libfabric` beside itself and in FI_PROVIDER_PATH; neither is there inside. One
that does not fit is left out, unless it is the fabric's own. Travels: standard library, Python 3.9.
"""

from __future__ import annotations

from typing import Dict, Iterable, List, NamedTuple, Tuple

from windlass.node.libs.closure import Closure, SystemRoot, closure
from windlass.node.libs.decide import PROVIDERS, ImageFacts, LibraryDecision, Placed, decide, too_new_for


class Providers(NamedTuple):
    placed: Tuple[Placed, ...]
    """The providers, and what they need beside what libfabric needs already."""
    refused: Tuple[str, ...]
    remedy: str
    left_out: Tuple[str, ...]


def provider_paths(root: SystemRoot, fabric: str, named: str) -> Tuple[str, ...]:
    """Places of the providers, by name the first: `fabric` is libfabric's own place, `named` a list of folders as in
    FI_PROVIDER_PATH (an `@` there means the usual folder as well)."""
    beside = root.inside(fabric).rpartition("/")[0] + "/libfabric"
    found: Dict[str, str] = {}
    for folder in (*(part.lstrip("@") for part in named.split(":")), beside):
        for name in root.names(folder) if folder.startswith("/") else ():
            if name.endswith("-fi.so"):
                found.setdefault(name, folder + "/" + name)
    return tuple(found.values())


def decide_providers(
    root: SystemRoot, paths: Iterable[str], image: ImageFacts, first: Tuple[str, ...], wanted: str, has: Iterable[str]
) -> Providers:
    """`wanted` is the fabric's provider; `has` are libraries that go in anyway."""
    placed: Dict[str, Placed] = {name: Placed(name, "", "", "") for name in has}
    start = len(placed)
    refused: List[str] = []
    left_out: List[str] = []
    remedy = ""
    for path in paths:
        name = path.rpartition("/")[2]
        made = _one(root, path, image, first)
        if made.refused and name == "lib%s-fi.so" % wanted:
            refused += made.refused
            remedy = remedy or made.remedy
        elif made.refused:
            left_out.append("%s is left out: %s" % (path, made.refused[0]))
        else:
            for entry in made.placed:
                placed.setdefault(entry.name, entry)
    return Providers(tuple(placed.values())[start:], tuple(refused), remedy, tuple(left_out))


def _one(root: SystemRoot, path: str, image: ImageFacts, first: Tuple[str, ...]) -> LibraryDecision:
    loaded = root.load(path)
    if loaded is None:
        return LibraryDecision((), ("%s is no library for this machine" % path,), "")
    found = closure(root, [path], first)
    own = found.libraries.pop(path)
    decision = decide(Closure(found.libraries, found.missing), image)
    old = too_new_for([own], image)
    refused = (*((old,) if old else ()), *decision.refused)
    entry = Placed(path.rpartition("/")[2], own.path, PROVIDERS, "a provider of the host's libfabric")
    return decision._replace(placed=(entry, *decision.placed), refused=refused)
