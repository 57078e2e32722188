"""Read the facts of an unpacked image that matter for the network: machine, C library, libraries, plugins, MPI, CUDA.

The module reads files and runs nothing of the image.

It also collects the same facts from the inside, for images that are names in a storage and not files. A few lines of
`sh` run in the container. They use only the shell, because small images have no `ls`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator

import msgspec

from windlass.base.tables import packaged_text
from windlass.node.libs.closure import (
    FABRIC,
    GLIBC,
    ImagePlugin,
    SystemRoot,
    closure,
    newest,
    plugin_family,
    version_key,
)
from windlass.node.libs.decide import ImageFacts, ImageLibrary
from windlass.node.libs.elf import ElfError, is_elf, read_elf
from windlass.node.sys.reading import open_plain

PROVIDERS = ("cxi", "efa", "verbs", "opx", "psm3", "tcp", "shm", "sockets")
_SHELLS = ("/bin/sh", "/usr/bin/env", "/bin/bash", "/usr/bin/python3", "/bin/busybox")
_MPI = re.compile(r"libmpi(?:ch|_cray|_gnu_\d+)?\.so\.\d+\Z")
PLUGIN_FOLDERS = (
    "/container/hpc/lib",
    "/opt/amazon/ofi-nccl/lib",
    "/opt/amazon/efa/lib",
    "/opt/hpcx/nccl_rdma_sharp_plugin/lib",
    "/opt/nccl-plugin/lib",
    "/opt/rccl-plugin/lib",
    "/usr/local/lib",
    "/usr/local/mpi/lib",
    "/opt/ompi/lib",
)
"""Folders outside of the loader's folders where known images keep plugins and MPI."""
_COMPAT = ("/usr/local/cuda/compat/lib.real", "/usr/local/cuda/compat/lib", "/usr/local/cuda/compat")
_MAX_FILES = 20_000
LOADING = ("LD_LIBRARY_PATH", "FI_PROVIDER_PATH", "NCCL_NET_PLUGIN")
"""Variables of an image that decide which libraries are loaded."""


class ImageReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of `windlass image check` about an image, before it is checked for a site."""

    image: str
    kind: str
    machine: str = ""
    system: str = ""
    libc: str = ""
    glibc: str = ""
    libfabric: tuple[str, ...] = ()
    """Paths of libfabric.so.1. The first one is the one that the loader uses."""
    libfabric_version: str = ""
    providers: tuple[str, ...] = ()
    missing: dict[str, str] = {}
    """Libraries that the image's libfabric or plugin needs and that the image lacks. Maps a name to the library that
    needs it."""
    plugins: tuple[str, ...] = ()
    other_plugins: tuple[str, ...] = ()
    """Those of the plugins that are not linked with libfabric."""
    mpi: tuple[str, ...] = ()
    cuda_compat: str = ""
    environment: dict[str, str] = {}
    libraries: int = 0


def image_root(folder: str, environment: dict[str, str] | None = None) -> SystemRoot:
    """Return the image's file system, with the machine of its programs and the search path of its environment."""
    search = [path for path in (environment or {}).get("LD_LIBRARY_PATH", "").split(":") if path.startswith("/")]
    root = SystemRoot(folder, search=search)
    for path in _SHELLS:
        found = root.load(path)
        if found is not None:
            root.machine = found[1].machine
            break
    return root


def read_image(
    root: SystemRoot, image: str, kind: str, environment: dict[str, str], names: tuple[str, ...] = ()
) -> tuple[ImageReport, ImageFacts]:
    """Return the report for people, and the facts for the decision.

    `names` are libraries of the image that are not below the root. Only their paths are known.
    """
    libraries = _libraries(root)
    libc, glibc = _libc(root)
    fabric = tuple(path for name, path, _ in libraries if name == "libfabric.so.1")
    first = _first(root, libraries)
    searched = {root.inside(place) for folder in (*root.search, *root.folders()) if (place := root.place(folder))}
    left_out = [path for path in names if path.rpartition("/")[0] in searched]
    for path in (*left_out, *_links(root, searched, left_out)):
        first.setdefault(path.rpartition("/")[2], ImageLibrary(path, None))
    plugins = _plugins(root, libraries)
    compat, compat_folder = _cuda_compat(root)
    providers = _providers(root, first["libfabric.so.1"].path) if "libfabric.so.1" in first else ()
    report = ImageReport(
        image=image,
        kind=kind,
        machine=root.machine,
        system=_system(root),
        libc=libc,
        glibc=glibc,
        libfabric=_unique(root, fabric),
        libfabric_version=_file_version(root, fabric[0]) if fabric else "",
        providers=providers,
        missing=_missing(root, [*fabric[:1], *(plugin.paths[0] for plugin in plugins)]),
        plugins=tuple(plugin.paths[0] for plugin in plugins),
        other_plugins=tuple(plugin.paths[0] for plugin in plugins if plugin.uses_fabric is False),
        mpi=_unique(root, (path for name, path, _ in libraries if _MPI.match(name))),
        cuda_compat=compat,
        environment={k: v for k, v in environment.items() if k.startswith(("NCCL_", "FI_", "LD_", "CUDA_", "OMPI_"))},
        libraries=len(first),
    )
    facts = ImageFacts(
        root.machine,
        glibc,
        libc,
        first,
        providers,
        plugins=plugins,
        environment={name: environment[name] for name in LOADING if environment.get(name)},
        compat=compat,
        compat_folder=compat_folder,
    )
    return report, facts


def _links(root: SystemRoot, folders: Iterable[str], left_out: Iterable[str]) -> list[str]:
    """Return the links to libraries that are not below the root: their other names, such as libcuda.so.1."""
    targets = {path.rpartition("/")[2] for path in left_out}
    paths = (f"{root.folder}{folder}/{name}" for folder in folders for name in root.names(folder) if ".so" in name)
    return [root.inside(p) for p in paths if os.path.islink(p) and os.readlink(p).rpartition("/")[2] in targets]  # noqa: PTH114, PTH115


def _libraries(root: SystemRoot) -> list[tuple[str, str, tuple[str, ...] | None]]:
    """Return every library in the loader's folders, in the loader's order: name, path, symbol versions."""
    found: list[tuple[str, str, tuple[str, ...] | None]] = []
    seen: dict[str, tuple[str, ...] | None] = {}
    for folder in dict.fromkeys((*root.search, *root.folders(), *PLUGIN_FOLDERS)):
        for name in root.names(folder):
            if ".so" not in name or len(found) >= _MAX_FILES:
                continue
            place = root.place(f"{folder}/{name}")
            if place is None or not os.path.isfile(place) or not is_elf(place):  # noqa: PTH113
                continue
            if place not in seen:
                seen[place] = _versions(place, root.machine)
            found.append((name, f"{folder}/{name}", seen[place]))
    return found


def _versions(place: str, machine: str) -> tuple[str, ...] | None:
    try:
        elf = read_elf(place)
    except (ElfError, OSError):
        return None
    return elf.version_defs if not machine or elf.machine == machine else None


def _first(root: SystemRoot, libraries: list[tuple[str, str, tuple[str, ...] | None]]) -> dict[str, ImageLibrary]:
    """Map each name to the library that the loader uses.

    Folders of plugins are excluded, unless the image's search path or its ld.so.conf contains them.
    """
    searched = {*root.search, *root.folders(), "/usr/local/lib"}
    made: dict[str, ImageLibrary] = {}
    for name, path, versions in libraries:
        if name not in made and path.rpartition("/")[0] in searched:
            made[name] = ImageLibrary(path, versions)
    return made


def _libc(root: SystemRoot) -> tuple[str, str]:
    found = root.find("libc.so.6")
    if found is not None:
        return "glibc", newest(found[1].version_defs)
    if any(name.startswith("ld-musl-") for name in root.names("/lib")):
        return "musl", ""
    return "", ""


def _unique(root: SystemRoot, paths: Iterable[str]) -> tuple[str, ...]:
    """Return one path for each file: libnccl-net.so is often a link to libnccl-net-ofi.so."""
    by_place: dict[str, str] = {}
    for path in paths:
        by_place.setdefault(root.place(path) or path, path)
    return tuple(by_place.values())


def _plugins(root: SystemRoot, libraries: list[tuple[str, str, tuple[str, ...] | None]]) -> tuple[ImagePlugin, ...]:
    """Return each plugin once, with all its names, and whether it is for libfabric."""
    by_place: dict[str, list[str]] = {}
    for name, path, _ in libraries:
        if plugin_family(name):
            by_place.setdefault(root.place(path) or path, []).append(path)
    return tuple(_plugin(root, place, paths) for place, paths in by_place.items())


def _plugin(root: SystemRoot, place: str, paths: list[str]) -> ImagePlugin:
    try:
        elf = read_elf(place)
    except (ElfError, OSError):
        return ImagePlugin(tuple(paths), None)
    before = () if elf.runpath else elf.rpath  # RPATH precedes LD_LIBRARY_PATH, but RUNPATH disables RPATH
    own = [folder for folder in before if folder.startswith("/") and root.place(f"{folder}/{FABRIC}")]
    return ImagePlugin(tuple(paths), FABRIC in elf.needed, own[0] if own else "")


def _providers(root: SystemRoot, path: str) -> tuple[str, ...]:
    """Return the providers that libfabric can use.

    A provider is linked in if its name is a separate string in the file. Otherwise it is a plugin in the folder
    `libfabric` next to the file.
    """
    place = root.place(path)
    if place is None:
        return ()
    try:
        with open_plain(place) as stream:
            data = stream.read(64 << 20)
    except OSError:
        return ()
    beside = root.names(path.rpartition("/")[0] + "/libfabric")
    return tuple(
        name for name in PROVIDERS if f"\0{name}\0".encode() in data or any(f"lib{name}-fi.so" in n for n in beside)
    )


def _file_version(root: SystemRoot, path: str) -> str:
    place = root.place(path) or path
    return place.rsplit(".so.", 1)[1] if ".so." in place else ""


def _missing(root: SystemRoot, paths: Iterable[str]) -> dict[str, str]:
    missing: dict[str, str] = {}
    for path in paths:
        for name, by in closure(root, [path], root.search).missing.items():
            if name not in GLIBC:
                missing.setdefault(name, by or path)
    return missing


def _system(root: SystemRoot) -> str:
    pairs = dict(line.split("=", 1) for line in root.read("/etc/os-release").splitlines() if "=" in line)
    return pairs.get("PRETTY_NAME", "").strip("\"'")


def _cuda_compat(root: SystemRoot) -> tuple[str, str]:
    """Return the version of the driver library that the image may put in front of the host's, and its folder."""
    found = []
    for folder in _COMPAT:
        for name in root.names(folder):
            match = re.match(r"libcuda\.so\.(\d+\.\d+(?:\.\d+)?)\Z", name)
            if match:
                found.append((match[1], folder))
    return max(found, key=lambda pair: version_key(pair[0])) if found else ("", "")


def directory_environment(root: SystemRoot) -> dict[str, str]:
    """Return variables of an unpacked image, if charliecloud or apptainer stored them there."""
    environment: dict[str, str] = {}
    for line in root.read("/ch/environment").splitlines():
        name, equals, value = line.partition("=")
        if equals and re.match(r"[A-Za-z_]\w*\Z", name):
            environment[name] = value.strip("'")
    for name in root.names("/.singularity.d/env"):
        if name.endswith(".sh"):
            environment |= _exported(root.read(f"/.singularity.d/env/{name}"))
    return environment


def _exported(text: str) -> dict[str, str]:
    """Return plain values that a script of apptainer exports. A value that only a shell can evaluate is left out."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        default = re.match(r'\s*export ([A-Za-z_]\w*)="?\$\{\1:-"?([^"}]*)', line)  # of an image from a registry
        if default:
            found[default[1]] = default[2]
        elif line.lstrip().startswith("export "):
            found |= {name: value for name, value in _assignments(line) if "$" not in value and "`" not in value}
    return found


def _assignments(line: str) -> Iterator[tuple[str, str]]:
    try:
        words = shlex.split(line, comments=True)[1:]
    except ValueError:
        return
    for word in words:
        name, equals, value = word.partition("=")
        if equals and re.match(r"[A-Za-z_]\w*\Z", name):
            yield name, value


def config_environment(text: str) -> dict[str, str]:
    """Return the variables of an OCI image's configuration."""
    try:
        entries = json.loads(text).get("config", {}).get("Env") or []
    except (ValueError, AttributeError):
        return {}
    return {name: value for name, equals, value in (str(e).partition("=") for e in entries) if equals}


MARK = "windlass-image"
_GLIBC = re.compile(r"GNU C Library .*?version (\d+\.\d+)")


def probe_text() -> str:
    """Return the lines of `sh` that inspect an image from the inside."""
    variables = "\n".join(f'echo "{MARK} variable {name}=${{{name}-}}"' for name in LOADING)
    text = packaged_text(__file__, "probe.sh")
    return "\n" + text.replace("@plugin_folders@", ":".join(PLUGIN_FOLDERS)).replace("@variables@", variables)


def parse_probe(text: str, machine: str) -> ImageFacts | None:
    """Return the facts in the probe's output, or None if the probe did not finish."""
    lines = text.splitlines()
    if f"{MARK} end" not in lines:
        return None
    libraries: dict[str, ImageLibrary] = {}
    variables: dict[str, str] = {}
    for line in lines:
        if line.startswith(f"{MARK} library /"):
            path = line[len(f"{MARK} library ") :]
            libraries.setdefault(path.rpartition("/")[2], ImageLibrary(path, None))
        elif line.startswith(f"{MARK} variable "):
            name, _, value = line[len(f"{MARK} variable ") :].partition("=")
            variables |= {name: value} if value else {}
    found = _GLIBC.search(text)
    has_fabric = {"libfabric.so.1", "libcxi.so.1"} <= libraries.keys()
    return ImageFacts(
        machine=machine,
        glibc=found[1] if found else "",
        libc="musl" if f"{MARK} musl" in lines and not found else "glibc" if found else "",
        libraries=libraries,
        providers=("cxi",) if has_fabric else (),
        plugins=_probed_plugins(lines),
        environment=variables,
    )


def _probed_plugins(lines: list[str]) -> tuple[ImagePlugin, ...]:
    """Return each plugin file once, with all its names.

    The number is grep's exit code: 0 uses libfabric, 1 does not. For images without grep, the name decides, because
    aws-ofi-nccl has `-ofi` in its name.
    """
    names: dict[str, list[str]] = {}
    uses: dict[str, bool | None] = {}
    for line in lines:
        parts = line.split(" ")
        if parts[:2] == [MARK, "plugin"] and len(parts) == 5 and plugin_family(parts[4].rpartition("/")[2]):
            names.setdefault(parts[3], []).append(parts[4])
            by_name = True if "-ofi." in parts[3] or "-ofi." in parts[4] else None
            uses[parts[3]] = {"0": True, "1": False}.get(parts[2], by_name)
    return tuple(ImagePlugin(tuple(dict.fromkeys(paths)), uses[real]) for real, paths in names.items())
