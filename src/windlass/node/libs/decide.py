"""Which of the host's libraries go into a container, where in its search path, and why; what is refused. Pure.

The rules: network libraries stand in front of the image's own; what they need and the image lacks stands behind; what
the image has stays the image's, if it offers the symbol versions that are asked of it. The C library always stays the
image's, so a host library that wants a newer one is refused. Travels: standard library, Python 3.9.
"""

from __future__ import annotations

import fnmatch
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from windlass.node.libs.closure import GLIBC, Closure, ImagePlugin, Library, PluginLink, newest, version_key
from windlass.node.libs.variables import Variable

NETWORK = ("libfabric.so*", "libcxi.so*", "libcxiutils.so*", "libmpi*.so*", "libpmi*.so*", "lib*ccl-net*.so*")
"""Libraries that are the interconnect: only these go in front of what the image has."""

FRONT, BEHIND, IMAGE, PROVIDERS = "front", "behind", "image", "providers"


_NO_VARIABLES: Mapping[str, str] = {}


class ImageLibrary(NamedTuple):
    """A library that the image's loader finds."""

    path: str
    versions: Optional[Tuple[str, ...]]
    """Symbol versions that it offers; None where they could not be read."""


class ImageFacts(NamedTuple):
    """What is known of an image for this decision."""

    machine: str
    glibc: str
    """Version of its C library; empty where it is not known."""
    libc: str
    """`glibc`, `musl` or empty."""
    libraries: Dict[str, ImageLibrary]
    providers: Tuple[str, ...]
    """Fabrics that its own libfabric can use."""
    plugins: Tuple[ImagePlugin, ...] = ()
    """Network plugins of NCCL and RCCL."""
    environment: Mapping[str, str] = _NO_VARIABLES
    """Of its variables, those that decide which libraries are loaded."""
    compat: str = ""
    """Version of the driver whose library its CUDA compatibility folder has."""
    compat_folder: str = ""


class Placed(NamedTuple):
    """One library of the host's closure and what becomes of it."""

    name: str
    source: str
    where: str
    because: str


class LibraryDecision(NamedTuple):
    """Everything that goes in, in the order of the loader, or why nothing may."""

    placed: Tuple[Placed, ...]
    refused: Tuple[str, ...]
    remedy: str
    links: Tuple[PluginLink, ...] = ()
    hidden: Tuple[str, ...] = ()
    """Plugins of the image that compete with the one that is taken, and are not loaded any more."""
    variables: Tuple[Variable, ...] = ()
    warnings: Tuple[str, ...] = ()
    missing: Tuple[str, ...] = ()
    """Network libraries that the host does not have at all: each is a reason in `refused`, too."""


def facts_as_json(facts: ImageFacts) -> Dict[str, Any]:
    """Plain values that travel; `facts_from_json` reads them back."""
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
    """What of the host's closure goes into the image."""
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
            remedies.append("take an image for %s" % library.elf.machine)
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


_OTHER_IMAGE = "take an image with a newer base, or one that brings its own network libraries (`windlass image build`)"


def _glibc_remedy(glibc: str) -> str:
    return (
        "take an image whose glibc is as new as the host's (it has %s), build the network libraries into it "
        "(`windlass image build --with ofi`), or go on with the image's own: --host-libs none" % glibc
    )


def _wanted_versions(host: Closure) -> Dict[str, Tuple[str, ...]]:
    """Library to the symbol versions that the others of the closure ask of it."""
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
    """A sentence about the library that wants the newest glibc, where the image's is older."""
    if not image.glibc:
        return ""
    worst, need = "", ""
    for library in going:
        versions = [v for name, vs in library.elf.version_needs.items() if name in GLIBC for v in vs]
        wanted = newest(versions)
        if wanted and version_key(wanted) > version_key(need or image.glibc):
            worst, need = library.path, wanted
    return "%s needs glibc %s, the image has %s" % (worst, need, image.glibc) if worst else ""
