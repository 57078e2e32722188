"""Place the host's network libraries for a container, on each node before the ranks start.

Computes the closure of the host's network libraries, copies the files that the image needs into a directory of this
job, and reports the copied files with the reasons. The files are copies and not links, because links to the host's
paths do not resolve inside the container. The directory belongs to the job, is made under another name first, and is
removed with the job's caches.

The module also selects the providers that the host's libfabric loads as separate files, and the libraries that they
need. libfabric searches for providers in a directory `libfabric` next to itself and in FI_PROVIDER_PATH. Neither exists
inside the container. A provider that does not fit is omitted. If it is the fabric's own provider, the placement is
refused instead. Runs on nodes: standard library, Python 3.9.
"""

from __future__ import annotations

import fnmatch
import glob
import json
import os
import platform
import shutil
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Tuple

from windlass.node.libs.closure import FABRIC, Closure, SystemRoot, choose_plugins, closure, version_key
from windlass.node.libs.decide import (
    BEHIND,
    FRONT,
    IMAGE,
    NETWORK,
    PROVIDERS,
    ImageFacts,
    LibraryDecision,
    Placed,
    decide,
    facts_from_json,
    too_new_for,
)
from windlass.node.libs.variables import (
    UNSET,
    Variable,
    compat_variables,
    driver_version,
    environment_text,
    provider_variable,
)
from windlass.node.sys.identity import own_environ
from windlass.node.sys.messages import node_writer


class Providers(NamedTuple):
    placed: Tuple[Placed, ...]
    """The providers, and the libraries that they need in addition to those of libfabric."""
    refused: Tuple[str, ...]
    remedy: str
    left_out: Tuple[str, ...]


def provider_paths(root: SystemRoot, fabric: str, named: str) -> Tuple[str, ...]:
    """Return the paths of the providers. For each name the first one counts.

    `fabric` is the path of libfabric. `named` is a list of directories as in FI_PROVIDER_PATH, where an `@` means the
    usual directory as well.
    """
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
    """Select providers. `wanted` is the fabric's provider. `has` are libraries that go in anyway."""
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


FOLDER = "host-libs"
ENVIRONMENT = "env.sh"
_PLUGIN_VARIABLE = "NCCL_NET_PLUGIN"
_PARTS = (FRONT, BEHIND, PROVIDERS)
_OWN_HINT = "give the folder that has libfabric.so.1, on Cray systems /opt/cray/libfabric/VERSION/lib64"


class HostSearch:
    """The locations of a host's network libraries: directories and names.

    If a pattern matches several directories, those of loaded modules come first (`loaded`, the search path of this
    process), then the newest version.
    """

    def __init__(
        self, root: SystemRoot, folders: Tuple[str, ...], names: Tuple[str, ...], loaded: Tuple[str, ...] = ()
    ) -> None:
        self.root = root
        self.names = names
        self.folders = tuple(folder for pattern in folders for folder in _best_first(root, pattern, loaded))


def _best_first(root: SystemRoot, pattern: str, loaded: Tuple[str, ...]) -> List[str]:
    if not any(char in pattern for char in "*?["):
        return [pattern]
    base = "" if root.folder == "/" else glob.escape(root.folder)
    found = [root.inside(place) for place in glob.glob(base + pattern)]
    return sorted(found, key=lambda folder: (folder in loaded, version_key(folder)), reverse=True)


def host_closure(search: HostSearch, own: str = "") -> Closure:
    """Return the closure of the wanted names.

    If the user names directories (`own`, separated by colons), it is the closure of every network library in them.
    """
    names = list(search.names)
    folders = search.folders
    if own:
        given = tuple(own.split(":"))
        folders = (*given, *folders)
        names = [name for folder in given for name in _network_names(search.root, folder)]
    return closure(search.root, names, folders)


def _network_names(root: SystemRoot, folder: str) -> List[str]:
    """Return the network libraries in a directory, by the names that the loader uses."""
    found: Dict[str, None] = {}
    for name in root.names(folder):
        loaded = root.load(folder + "/" + name) if any(fnmatch.fnmatch(name, p) for p in NETWORK) else None
        if loaded is not None:
            found[loaded[1].soname or name] = None
    return list(found)


def place(decision: LibraryDecision, parent: str) -> str:
    """Copy the decision's libraries below `parent`. The directory gets its name only when it is complete."""
    final = os.path.join(parent, FOLDER)
    partial = "%s.%d" % (final, os.getpid())
    try:
        for where in _PARTS:
            os.makedirs(os.path.join(partial, where), mode=0o700)
        for entry in decision.placed:
            if entry.where != IMAGE:
                _copy(entry.source, os.path.join(partial, entry.where), entry.name)
        for link in decision.links:
            _link(link.target, os.path.join(partial, FRONT, link.name))
        with open(os.path.join(partial, ENVIRONMENT), "w", encoding="utf-8") as stream:
            stream.write(environment_text(decision.variables, final))
        _give_name(partial, final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return final


def _give_name(partial: str, final: str) -> None:
    """Rename the directory in one step.

    An existing directory comes from an earlier start of the run or from another node that shares the parent. If its
    content is the same, it stays, because ranks may have it open.
    """
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
    for where in ("", *_PARTS):
        place = os.path.join(folder, where)
        names = os.listdir(place) if os.path.isdir(place) else []
        found += [("%s/%s" % (where, name), os.lstat(os.path.join(place, name)).st_size) for name in names]
    return sorted(found)


def _link(target: str, path: str) -> None:
    """Make a link that replaces one of the same name, because `_copy` also makes short names."""
    if os.path.lexists(path):
        os.unlink(path)
    os.symlink(target, path)


def _copy(source: str, folder: str, name: str) -> None:
    target = os.path.join(folder, name)
    shutil.copyfile(source, target)
    os.chmod(target, 0o500)
    base = name.split(".so", 1)[0] + ".so"
    if base != name and not os.path.lexists(os.path.join(folder, base)):
        os.symlink(name, os.path.join(folder, base))  # some libraries are opened by their short name at run time


def decide_here(spec: Mapping[str, Any], image: ImageFacts) -> LibraryDecision:
    """Return the decision for this machine.

    No library goes in if the image itself supports the fabric and the user does not insist. The image's plugin for
    libfabric is used in any case.
    """
    root = SystemRoot(spec["root"], image.machine or platform.machine())
    decision = _libraries(spec, image, root)
    if decision.refused:
        return decision
    going = [entry.name for entry in decision.placed if entry.where == FRONT]
    from_host = FABRIC in going
    found = (library.path for library in image.libraries.values())
    chosen = choose_plugins(going, image.plugins, found, bool(spec["provider"]) or from_host)
    variables = [
        provider_variable(
            any(entry.where == PROVIDERS for entry in decision.placed),
            image.environment.get("FI_PROVIDER_PATH"),
            from_host,
        ),
        *compat_variables(image.compat, image.compat_folder, driver_version(root)),
    ]
    named = image.environment.get(_PLUGIN_VARIABLE)
    if chosen.links or chosen.hidden or (named and (spec["provider"] or from_host)):
        because = "the image names a plugin: %s" % named if named else "the plugin is found by the name of its library"
        variables.append(Variable(_PLUGIN_VARIABLE, UNSET, "", because))
    given = spec.get("given", ())
    return decision._replace(
        links=chosen.links,
        hidden=chosen.hidden,
        warnings=(*decision.warnings, *chosen.warnings),
        variables=tuple(variable for variable in variables if variable.name not in given),
    )


def _libraries(spec: Mapping[str, Any], image: ImageFacts, root: SystemRoot) -> LibraryDecision:
    if spec["provider"] and spec["provider"] in image.providers and not spec["own"]:
        return LibraryDecision((), (), "")
    loaded = tuple(folder.rstrip("/") for folder in own_environ().get("LD_LIBRARY_PATH", "").split(":"))
    search = HostSearch(root, tuple(spec["folders"]), tuple(spec["names"]), loaded)
    found = host_closure(search, spec["own"])
    if not found.libraries and not found.missing:
        return LibraryDecision((), ("%s has no network library (libfabric, libcxi, …)" % spec["own"],), _OWN_HINT)
    decision = decide(found, image)
    fabric = found.libraries.get(FABRIC)
    if decision.refused or fabric is None:
        return decision
    named = own_environ().get("FI_PROVIDER_PATH", "") if root.folder == "/" else ""
    folders = (*(part for part in spec["own"].split(":") if part), *search.folders)
    more = decide_providers(
        root,
        provider_paths(root, fabric.path, named),
        image,
        folders,
        spec["provider"],
        [entry.name for entry in decision.placed],
    )
    return LibraryDecision(
        (*decision.placed, *more.placed), more.refused, more.remedy or decision.remedy, warnings=more.left_out
    )


def main(settings: Dict[str, Any]) -> int:
    """Place the libraries. `spec` is a JSON file with the image's facts, the names to find, and the target."""
    with open(settings["spec"], encoding="utf-8") as stream:
        spec = json.load(stream)
    decision = decide_here(spec, facts_from_json(spec["image"]))
    said = {
        "placed": [entry._asdict() for entry in decision.placed],
        "links": [link._asdict() for link in decision.links],
        "hidden": decision.hidden,
        "variables": [variable._asdict() for variable in decision.variables],
        "warnings": decision.warnings,
        "refused": decision.refused,
        "remedy": decision.remedy,
    }
    if not decision.refused:
        try:
            parent = os.path.expandvars(spec["parent"])
            os.makedirs(parent, mode=0o700, exist_ok=True)
            if os.lstat(parent).st_uid != os.getuid() or os.path.islink(parent):
                raise OSError(0, "%s belongs to another user" % parent)
            place(decision, parent)
        except OSError as error:
            said["refused"] = ["cannot copy the host's libraries: %s" % (error.strerror or error)]
            said["remedy"] = "check the free space in %s" % spec["parent"]
    node_writer(settings).send(libraries=said, done=True)
    return 0
