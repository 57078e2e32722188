"""Decide which host libraries go into a container, where in its search path, and why. Pure.

The rules:
- Network libraries go in front of the image's libraries.
- Libraries that they need and that the image lacks go behind.
- A library of the image stays in use if it offers the required symbol versions.
- The C library is always the image's, so a host library that needs a newer one is refused.

Runs on nodes: standard library, Python 3.9.
"""

from __future__ import annotations

import fnmatch
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from windlass.node.libs.closure import GLIBC, Closure, ImagePlugin, Library, PluginLink, newest, version_key
from windlass.node.libs.variables import Variable

NETWORK = ("libfabric.so*", "libcxi.so*", "libcxiutils.so*", "libmpi*.so*", "libpmi*.so*", "lib*ccl-net*.so*")
"""Libraries of the interconnect. Only these go in front of the image's libraries."""

FRONT, BEHIND, IMAGE, PROVIDERS = "front", "behind", "image", "providers"


_NO_VARIABLES: Mapping[str, str] = {}


class ImageLibrary(NamedTuple):
    """A library that the image's loader finds."""

    path: str
    versions: Optional[Tuple[str, ...]]
    """Symbol versions that it offers. None if unreadable."""


class ImageFacts(NamedTuple):
    """The facts about an image for this decision."""

    machine: str
    glibc: str
    """Version of its C library. Empty if unknown."""
    libc: str
    """`glibc`, `musl` or empty."""
    libraries: Dict[str, ImageLibrary]
    providers: Tuple[str, ...]
    """Fabrics that its own libfabric can use."""
    plugins: Tuple[ImagePlugin, ...] = ()
    """Network plugins of NCCL and RCCL."""
    environment: Mapping[str, str] = _NO_VARIABLES
    """Those of its variables that determine which libraries are loaded."""
    compat: str = ""
    """Driver version of the library in its CUDA compatibility directory."""
    compat_folder: str = ""


class Placed(NamedTuple):
    """One library of the host's closure and its placement."""

    name: str
    source: str
    where: str
    because: str


class LibraryDecision(NamedTuple):
    """All libraries that go into the container, in the loader's order, or the reason why none may."""

    placed: Tuple[Placed, ...]
    refused: Tuple[str, ...]
    remedy: str
    links: Tuple[PluginLink, ...] = ()
    hidden: Tuple[str, ...] = ()
    """Plugins of the image that compete with the chosen one and are no longer loaded."""
    variables: Tuple[Variable, ...] = ()
    warnings: Tuple[str, ...] = ()
    missing: Tuple[str, ...] = ()
    """Network libraries that the host lacks. Each is also a reason in `refused`."""


def facts_as_json(facts: ImageFacts) -> Dict[str, Any]:
    """Return plain values for transfer to the nodes. `facts_from_json` reads them back."""
    libraries = {name: [found.path, found.versions] for name, found in facts.libraries.items()}
    return {**facts._asdict(), "libraries": libraries}


def facts_from_json(data: Dict[str, Any]) -> ImageFacts:
    libraries = {
        name: ImageLibrary(path, None if versions is None else tuple(versions))
        for name, (path, versions) in data["libraries"].items()
    }
    plugins = tuple(ImagePlugin(tuple(paths), uses, own) for paths, uses, own in data["plugins"])
    return ImageFacts(**{**data, "libraries": libraries, "providers": tuple(data["providers"]), "plugins": plugins})


def is_network(name: str) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in NETWORK)


def decide(host: Closure, image: ImageFacts) -> LibraryDecision:
    """Decide which libraries of the host's closure go into the image."""
    placed: List[Placed] = []
    refused: List[str] = []
    remedies: List[str] = []
    missing: List[str] = []
    if image.libc == "musl":
        return LibraryDecision(
            (), ("the image has musl and no glibc: no library of the host works in it",), _OTHER_IMAGE
        )
    wants = _wanted_versions(host)
    for library in host.libraries.values():
        if image.machine and library.elf.machine != image.machine:
            refused.append("%s is for %s, the image for %s" % (library.path, library.elf.machine, image.machine))
            remedies.append("use an image for %s" % library.elf.machine)
            continue
        where, because = _where(library, image, wants.get(library.name, ()))
        if where is None:
            refused.append(because)
            remedies.append(_OTHER_IMAGE)
            continue
        placed.append(Placed(library.name, library.path, where, because))
    going = [host.libraries[entry.name] for entry in placed if entry.where != IMAGE]
    old = too_new_for(going, image)
    if old:
        refused.append(old)
        remedies.insert(0, _glibc_remedy(image.glibc))
    for name, by in host.missing.items():
        if name not in image.libraries and name not in GLIBC:
            what = "%s needs %s, which neither the host nor the image has" % (by, name)
            refused.append(what if by else "the host has no %s" % name)
            missing += [] if by else [name]
            remedies.append("install it on the node, or name the folder that has it with --host-libs")
    return LibraryDecision(tuple(placed), tuple(refused), remedies[0] if remedies else "", missing=tuple(missing))


_OTHER_IMAGE = "use an image with a newer base, or one with its own network libraries (`windlass image build`)"


def _glibc_remedy(glibc: str) -> str:
    return (
        "use an image whose glibc is as new as the host's (%s), build the network libraries into it "
        "(`windlass image build --with ofi`), or use the image's libraries: --host-libs none" % glibc
    )


def _wanted_versions(host: Closure) -> Dict[str, Tuple[str, ...]]:
    """Return for each library the symbol versions that the others of the closure require."""
    wanted: Dict[str, Dict[str, None]] = {}
    for library in host.libraries.values():
        for name, versions in library.elf.version_needs.items():
            wanted.setdefault(name, {}).update(dict.fromkeys(versions))
    return {name: tuple(versions) for name, versions in wanted.items()}


def _where(library: Library, image: ImageFacts, wanted: Tuple[str, ...]) -> Tuple[Optional[str], str]:
    own = image.libraries.get(library.name)
    if library.name in GLIBC:
        return IMAGE, "the C library stays the image's own"
    if is_network(library.name):
        if own is None:
            return FRONT, "the host's network library; the image has none"
        return FRONT, "the host's network library, in front of the image's %s" % own.path
    if own is None:
        return BEHIND, "%s needs it and the image lacks it" % (library.needed_by or "the network library")
    if own.versions is None:
        return IMAGE, "the image has %s" % own.path
    lacking = [version for version in wanted if version not in own.versions]
    if not lacking:
        return IMAGE, "the image has %s with all that is needed of it" % own.path
    if set(own.versions) <= set(library.elf.version_defs):
        return FRONT, "the image's %s lacks %s, and the host's offers all that the image's does" % (
            own.path,
            lacking[0],
        )
    return None, "%s of the image lacks %s, and the host's %s cannot take its place: it lacks %s" % (
        own.path,
        lacking[0],
        library.path,
        next(version for version in own.versions if version not in library.elf.version_defs),
    )


def too_new_for(going: List[Library], image: ImageFacts) -> str:
    """Describe the library that needs the newest glibc, if the image's glibc is older."""
    if not image.glibc:
        return ""
    worst, need = "", ""
    for library in going:
        versions = [v for name, vs in library.elf.version_needs.items() if name in GLIBC for v in vs]
        wanted = newest(versions)
        if wanted and version_key(wanted) > version_key(need or image.glibc):
            worst, need = library.path, wanted
    return "%s needs glibc %s, the image has %s" % (worst, need, image.glibc) if worst else ""
