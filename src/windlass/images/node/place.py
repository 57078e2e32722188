"""Runs on each node before the ranks: computes the closure of the host's network libraries and copies what the image
needs of it into a folder of this job. Prints one line of JSON. Travels: standard library, Python 3.9.

Copies and no links, because links to the host's paths lead nowhere inside. The
folder is the job's own, is made under another name first, and goes with the job's caches.
"""

from __future__ import annotations

import fnmatch
import glob
import json
import os
import platform
import shutil
import sys
from typing import Any, Dict, List, Mapping, Tuple

from windlass.images.node.closure import Closure, Root, closure, version_key
from windlass.images.node.decide import (
    BEHIND,
    FRONT,
    IMAGE,
    NETWORK,
    Decision,
    ImageFacts,
    decide,
    facts_from_json,
)

FOLDER = "host-libs"
EXIT_REFUSED = 3
_OWN_HINT = "give the folder that has libfabric.so.1, on Cray systems /opt/cray/libfabric/VERSION/lib64"


class HostSearch:
    """Where a host keeps its network libraries: folders and names. Of the folders that a pattern stands for, those of
    loaded modules (`loaded`, the search path of this process) come first, then the newest version."""

    def __init__(
        self, root: Root, folders: Tuple[str, ...], names: Tuple[str, ...], loaded: Tuple[str, ...] = ()
    ) -> None:
        self.root = root
        self.names = names
        self.folders = tuple(folder for pattern in folders for folder in _best_first(root, pattern, loaded))


def _best_first(root: Root, pattern: str, loaded: Tuple[str, ...]) -> List[str]:
    if not any(char in pattern for char in "*?["):
        return [pattern]
    base = "" if root.folder == "/" else glob.escape(root.folder)
    found = [root.inside(place) for place in glob.glob(base + pattern)]
    return sorted(found, key=lambda folder: (folder in loaded, version_key(folder)), reverse=True)


def host_closure(search: HostSearch, own: str = "") -> Closure:
    """The closure of the wanted names; of folders that the user names (`own`, with colons between them), of every
    network library in them."""
    names = list(search.names)
    folders = search.folders
    if own:
        given = tuple(own.split(":"))
        folders = (*given, *folders)
        names = [name for folder in given for name in _network_names(search.root, folder)]
    return closure(search.root, names, folders)


def _network_names(root: Root, folder: str) -> List[str]:
    """The network libraries in a folder, by the names that the loader knows them by."""
    found: Dict[str, None] = {}
    for name in root.names(folder):
        loaded = root.load(folder + "/" + name) if any(fnmatch.fnmatch(name, p) for p in NETWORK) else None
        if loaded is not None:
            found[loaded[1].soname or name] = None
    return list(found)


def place(decision: Decision, parent: str) -> str:
    """Copies the decision's libraries below `parent`; the folder has its name only when it is complete."""
    final = os.path.join(parent, FOLDER)
    partial = "%s.%d" % (final, os.getpid())
    try:
        for where in (FRONT, BEHIND):
            os.makedirs(os.path.join(partial, where), mode=0o700)
        for entry in decision.placed:
            if entry.where != IMAGE:
                _copy(entry.source, os.path.join(partial, entry.where), entry.name)
        _give_name(partial, final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return final


def _give_name(partial: str, final: str) -> None:
    """One step. What is there already, of an earlier start of the run or of another node that shares the folder, stays
    where it is the same: ranks may have it open."""
    try:
        os.rename(partial, final)
    except OSError:
        if _listing(final) == _listing(partial):
            return
        old = "%s.old" % partial
        os.rename(final, old)
        os.rename(partial, final)
        shutil.rmtree(old, ignore_errors=True)


def _listing(folder: str) -> List[Tuple[str, int]]:
    found = []
    for where in (FRONT, BEHIND):
        place = os.path.join(folder, where)
        names = os.listdir(place) if os.path.isdir(place) else []
        found += [("%s/%s" % (where, name), os.stat(os.path.join(place, name)).st_size) for name in names]
    return sorted(found)


def _copy(source: str, folder: str, name: str) -> None:
    target = os.path.join(folder, name)
    shutil.copyfile(source, target)
    os.chmod(target, 0o500)
    base = name.split(".so", 1)[0] + ".so"
    if base != name and not os.path.lexists(os.path.join(folder, base)):
        os.symlink(name, os.path.join(folder, base))  # some are opened by their short name at run time


def decide_here(spec: Mapping[str, Any], image: ImageFacts) -> Decision:
    """The decision for this machine. Nothing goes in where the image has the fabric itself and nobody insists."""
    if spec["provider"] and spec["provider"] in image.providers and not spec["own"]:
        return Decision((), (), "")
    root = Root(spec["root"], image.machine or platform.machine())
    loaded = tuple(folder.rstrip("/") for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    search = HostSearch(root, tuple(spec["folders"]), tuple(spec["names"]), loaded)
    found = host_closure(search, spec["own"])
    if not found.libraries and not found.missing:
        return Decision((), ("%s has no network library (libfabric, libcxi, …)" % spec["own"],), _OWN_HINT)
    return decide(found, image)


def main(argv: List[str]) -> int:
    """`place.py SPEC`: SPEC is a JSON file with the image's facts, what to look for, and the folder to fill."""
    with open(argv[1], encoding="utf-8") as stream:
        spec = json.load(stream)
    decision = decide_here(spec, facts_from_json(spec["image"]))
    said = {
        "windlass": "host-libs",
        "node": os.environ.get("SLURMD_NODENAME") or platform.node(),
        "placed": [entry._asdict() for entry in decision.placed],
        "refused": decision.refused,
        "remedy": decision.remedy,
    }
    if not decision.refused:
        try:
            parent = os.path.expandvars(spec["parent"])
            os.makedirs(parent, mode=0o700, exist_ok=True)
            if os.lstat(parent).st_uid != os.getuid() or os.path.islink(parent):
                raise OSError(0, "%s belongs to somebody else" % parent)
            place(decision, parent)
        except OSError as error:
            said["refused"] = ["cannot copy the host's libraries: %s" % (error.strerror or error)]
            said["remedy"] = "is there space in %s?" % spec["parent"]
    sys.stdout.write(json.dumps(said) + "\n")
    return EXIT_REFUSED if said["refused"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
