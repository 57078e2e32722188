"""Find the files that the loader would load on a root: a closure over NEEDED, RUNPATH and search paths.

A root is a host (`/`) or an unpacked image. Links are followed inside the root, as a process in it would see them. This
module reads libraries and never loads them.

It also finds the network plugin of NCCL or RCCL that a rank loads. NCCL opens `libnccl-net.so` (RCCL `librccl-net.so`)
by name, so the first directory of the search path determines the plugin. Images contain other plugins with the same
name (HPC-X, a vendor's cloud), and some set NCCL_NET_PLUGIN. A link of that name in the job's directory hides all of
them, because that directory is first in the search path.

Runs on nodes: standard library, Python 3.9.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections import deque
from typing import Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from windlass.node.libs.elf import Elf, ElfError, read_elf

_TRIPLES = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu", "ppc64le": "powerpc64le-linux-gnu"}
_DEFAULT = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")
_MAX_LINKS = 40
_MAX_CONFIGS = 200
_MAX_LIBRARIES = 2000
_MAX_LOOKUPS = 300_000
"""Limit for paths in an image. No regular image needs more."""

GLIBC = frozenset(
    (
        *("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libresolv.so.2", "libutil.so.1"),
        *("libnsl.so.1", "libanl.so.1", "libmvec.so.1", "libcrypt.so.1", "libthread_db.so.1", "linux-vdso.so.1"),
        *("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "ld64.so.2", "ld-linux.so.2"),
    )
)
"""The C library and its loader belong together and to the image. A foreign one crashes every program."""


class CostlyRootError(ValueError):
    """An image whose names and directories need too many lookups."""


class Library(NamedTuple):
    """A library as the loader would find it."""

    name: str
    path: str
    """Path on the root, with links followed."""
    elf: Elf
    needed_by: str


class Closure(NamedTuple):
    """The libraries that the loader would load, and those that it would not find."""

    libraries: Dict[str, Library]
    missing: Dict[str, str]
    """Maps each name to the library that needs it."""


class SystemRoot:
    """A file system as seen from `folder`. `/` is this machine itself."""

    def __init__(self, folder: str = "/", machine: str = "", search: Iterable[str] = ()) -> None:
        self.folder = folder.rstrip("/") or "/"
        self.machine = machine
        self.search = tuple(search)
        self._configured: Optional[Tuple[str, ...]] = None
        self._lookups = 0

    def place(self, path: str) -> Optional[str]:
        """Return the file's path on this machine, or None if there is no file.

        Every link is followed inside the root.
        """
        self._lookups += 1
        if self._lookups > _MAX_LOOKUPS and self.folder != "/":
            raise CostlyRootError("more than %d lookups of libraries" % _MAX_LOOKUPS)
        parts = [part for part in path.split("/") if part not in ("", ".")][::-1]
        current: List[str] = []
        links = 0
        while parts:
            part = parts.pop()
            if part == "..":
                current = current[:-1]
                continue
            full = self._join("/".join([*current, part]))
            try:
                target = os.readlink(full)
            except OSError:
                current.append(part)
                continue
            links += 1
            if links > _MAX_LINKS:
                return None
            if target.startswith("/"):
                current = []
            parts += [piece for piece in target.split("/") if piece not in ("", ".")][::-1]
        full = self._join("/".join(current))
        return full if os.path.lexists(full) else None

    def _join(self, inside: str) -> str:
        return "/" + inside if self.folder == "/" else self.folder + "/" + inside

    def inside(self, place: str) -> str:
        """Return the path inside the root for a path on this machine."""
        return place if self.folder == "/" else place[len(self.folder) :] or "/"

    def read(self, path: str, most: int = 1 << 20) -> str:
        """Return the text of a small file of the root. Empty if there is no file."""
        place = self.place(path)
        try:
            if place is None or not os.path.isfile(place):
                return ""
            with open(place, "rb") as stream:
                return stream.read(most).decode("utf-8", "replace")
        except OSError:
            return ""

    def names(self, folder: str) -> Tuple[str, ...]:
        """Return the names in a directory of the root, sorted. Empty if there is no such directory."""
        place = self.place(folder)
        try:
            return tuple(sorted(os.listdir(place))) if place else ()
        except OSError:
            return ()

    def folders(self) -> Tuple[str, ...]:
        """Return the loader's default directories: ld.so.conf, then the system directories."""
        if self._configured is None:
            triple = _TRIPLES.get(self.machine)
            own = tuple("%s/%s" % (base, triple) for base in ("/lib", "/usr/lib")) if triple else ()
            configured = _configured(self, "/etc/ld.so.conf", [])
            self._configured = tuple(dict.fromkeys((*configured, *own, *_DEFAULT)))
        return self._configured

    def find(self, name: str, first: Iterable[str] = ()) -> Optional[Tuple[str, Elf]]:
        """Find a library in `first`, in the root's search path or in the default directories.

        Returns its path and its ELF data. Skips a library of another architecture, as the loader does.
        """
        if "/" in name:
            return self.load(name)
        for folder in (*first, *self.search, *self.folders()):
            found = self.load(folder.rstrip("/") + "/" + name)
            if found is not None:
                return found
        return None

    def load(self, path: str) -> Optional[Tuple[str, Elf]]:
        place = self.place(path)
        if place is None or not os.path.isfile(place):
            return None
        try:
            elf = read_elf(place)
        except (ElfError, OSError):
            return None
        return None if self.machine and elf.machine != self.machine else (place, elf)


def _configured(root: SystemRoot, path: str, seen: List[str]) -> List[str]:
    """Return the directories in an ld.so.conf and its includes."""
    if path in seen or len(seen) > _MAX_CONFIGS:
        return []
    seen.append(path)
    found: List[str] = []
    for raw in root.read(path).splitlines():
        line = raw.split("#", 1)[0].strip()
        if line.startswith("include "):
            pattern = line.split(None, 1)[1]
            if not pattern.startswith("/"):
                pattern = os.path.dirname(path) + "/" + pattern
            folder, _, glob = pattern.rpartition("/")
            for name in fnmatch.filter(root.names(folder), glob):
                found += _configured(root, folder + "/" + name, seen)
        elif line.startswith("/"):
            found.append(line.split("=", 1)[0].rstrip("/"))
    return found


def closure(root: SystemRoot, names: Iterable[str], first: Iterable[str] = ()) -> Closure:
    """Return all libraries that these libraries need on the root, breadth first like the loader.

    A name that does not exist at all is in `missing`.
    """
    first = tuple(first)
    libraries: Dict[str, Library] = {}
    missing: Dict[str, str] = {}
    waiting = deque((name, "", first) for name in names)
    while waiting and len(libraries) < _MAX_LIBRARIES:
        name, by, folders = waiting.popleft()
        if name in libraries or name in missing:
            continue
        found = root.find(name, folders)
        if found is None:
            missing[name] = by
            continue
        place, elf = found
        libraries[name] = Library(name, place, elf, by)
        own = _own_folders(root, place, elf) + first
        waiting.extend((needed, name, own) for needed in elf.needed)
    return Closure(libraries, missing)


def _own_folders(root: SystemRoot, place: str, elf: Elf) -> Tuple[str, ...]:
    origin = os.path.dirname(root.inside(place))
    paths = elf.runpath or elf.rpath
    lib = "lib64" if elf.bits == 64 else "lib"
    found = (re.sub(r"\$(ORIGIN\b|\{ORIGIN\})", lambda _: origin, path) for path in paths)
    return tuple(re.sub(r"\$(LIB\b|\{LIB\})", lib, path) for path in found if path.startswith(("/", "$")))


def version_key(version: str) -> Tuple[int, ...]:
    """Return `GLIBC_2.31` as (2, 31), for comparison."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def newest(versions: Iterable[str], prefix: str = "GLIBC_") -> str:
    """Return the highest version with this prefix, without the prefix. Empty if there is no version."""
    found = [v[len(prefix) :] for v in versions if re.match(re.escape(prefix) + r"\d[\d.]*\Z", v)]
    return max(found, key=version_key) if found else ""


FABRIC = "libfabric.so.1"
_FAMILIES = ("nccl", "rccl")
_PLUGIN = re.compile(r"lib(nccl|rccl)-net(?:-[\w-]+)?\.so(?:\.\d+)*\Z")


class ImagePlugin(NamedTuple):
    """A plugin of the image: one file, which may have several names."""

    paths: Tuple[str, ...]
    """Its paths in the image, in the loader's order."""
    uses_fabric: Optional[bool]
    """Whether it is linked with libfabric. None if unreadable."""
    own_fabric: str = ""
    """Directory of a libfabric in its RPATH. The loader uses that one before any search path."""


class PluginLink(NamedTuple):
    """A name in the job's directory that links to a file of the image or of the same directory."""

    name: str
    target: str
    because: str


class PluginChoice(NamedTuple):
    links: Tuple[PluginLink, ...] = ()
    hidden: Tuple[str, ...] = ()
    """Plugins of the image that are no longer loaded."""
    warnings: Tuple[str, ...] = ()


def plugin_family(name: str) -> str:
    """Return `nccl` or `rccl` for the file name of a plugin, or an empty string for other names."""
    found = _PLUGIN.match(name)
    return found.group(1) if found else ""


def choose_plugins(
    from_host: Iterable[str], of_image: Tuple[ImagePlugin, ...], found_first: Iterable[str], over_fabric: bool
) -> PluginChoice:
    """Choose the plugins that ranks load.

    `from_host`: names of the host's plugins that go into the container. `found_first`: paths of the libraries that the
    image's loader finds. `over_fabric`: the site's network is reached through libfabric.
    """
    links: List[PluginLink] = []
    hidden: List[str] = []
    warnings: List[str] = []
    first = set(found_first)
    for family in _FAMILIES:
        host = [name for name in from_host if plugin_family(name) == family]
        own = [plugin for plugin in of_image if plugin_family(plugin.paths[0].rpartition("/")[2]) == family]
        if host:
            links += _host_link(family, host)
            hidden += [plugin.paths[0] for plugin in own]
        elif own and over_fabric:
            made = _image_link(family, own, first)
            links += made.links
            hidden += made.hidden
            warnings += made.warnings
    return PluginChoice(tuple(links), tuple(hidden), tuple(warnings))


def _host_link(family: str, names: List[str]) -> List[PluginLink]:
    plain = "lib%s-net.so" % family
    if plain in names:
        return []
    return [PluginLink(plain, names[0], "the collective library opens its plugin by this name")]


def _image_link(family: str, own: List[ImagePlugin], first: Set[str]) -> PluginChoice:
    plain = "lib%s-net.so" % family
    fitting = [plugin for plugin in own if plugin.uses_fabric]
    if not fitting:
        if any(plugin.uses_fabric is None for plugin in own):
            return PluginChoice()
        names = ", ".join(plugin.paths[0] for plugin in own)
        text = "no plugin of the image uses libfabric (%s): %s cannot reach the fabric with it" % (
            names,
            family.upper(),
        )
        return PluginChoice(warnings=(text,))
    chosen = fitting[0]
    others = tuple(plugin.paths[0] for plugin in own if plugin is not chosen)
    taken = [path for path in chosen.paths if path in first and path.endswith("/" + plain)]
    warnings: Tuple[str, ...] = ()
    if chosen.own_fabric:
        warnings = (
            "%s takes the libfabric in %s by its RPATH, whatever the search path says"
            % (chosen.paths[0], chosen.own_fabric),
        )
    if taken and not others:
        return PluginChoice(warnings=warnings)
    because = "the image's plugin for libfabric, found by the name that the collective library opens"
    return PluginChoice((PluginLink(plain, chosen.paths[0], because),), others, warnings)
