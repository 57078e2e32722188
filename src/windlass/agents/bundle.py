"""The file that travels: the agent, the services' packages, what they are told, and the job's key. One file, read once
by each node, so that N nodes make a few calls each and not one for every module.

It holds the key, so it is as closed as a key file: mode 0600, in the run folder, removed after the run.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType

import msgspec

import windlass.node
from windlass.errors import ConfigError
from windlass.model.jsontext import to_json
from windlass.node.sys.reading import read_bytes

MANIFEST = "manifest.json"
KEY = "key"
_NODE = Path(windlass.node.__path__[0])


class ServiceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A service to host: `entry` is `package.module:function` of a package in the file."""

    name: str
    entry: str
    settings: dict[str, object] = {}


class BundleManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What the agents are told; the same on all nodes, and no secret in it."""

    version: int = 1
    run_id: str
    hosts: tuple[str, ...]
    addresses: tuple[str, ...] = ()
    """Where they are reached, if not by these names."""
    node_variables: tuple[str, ...]
    """Variables in which the launcher tells an agent its place among the hosts."""
    folder: str
    """Folder of this user's agents on a node; `${NAME}` is expanded there."""
    until: str = "stdin"
    """`stdin`: the agents end when their standard input does. `signal`: only when asked."""
    stop_signal: int = 15
    """What asks them, beside SIGTERM, SIGINT and SIGHUP."""
    cpus: tuple[int, ...] = ()
    services: tuple[ServiceSpec, ...] = ()


def bundle_bytes(manifest: BundleManifest, key: bytes, packages: Mapping[str, Path] = MappingProxyType({})) -> bytes:
    """Return the zip: all of `windlass.node`, and `packages`, which are folders of modules by their full names. Parents
    of packages are empty on the node."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        parents: dict[str, None] = {}
        node = ((_dotted(folder), folder) for folder in sorted({file.parent for file in _NODE.rglob("*.py")}))
        for name, folder in (*node, *sorted(packages.items())):
            path = name.replace(".", "/")
            files = sorted(folder.glob("*.py"))
            if not files:
                raise ConfigError(f"{folder} has no modules", hint="windlass is not installed as a whole")
            for file in files:
                archive.writestr(_entry(f"{path}/{file.name}"), read_bytes(file, follow=True))
            parents |= dict.fromkeys(str(parent) for parent in PurePosixPath(path).parents if parent.name)
            if all(file.name != "__init__.py" for file in files):
                parents[path] = None
        inits = {f"{parent}/__init__.py" for parent in parents}
        for name in sorted(inits - set(archive.namelist())):
            archive.writestr(_entry(name), b"")
        archive.writestr(_entry(MANIFEST), to_json(manifest))
        archive.writestr(_entry(KEY), key)
    return stream.getvalue()


def _dotted(folder: Path) -> str:
    return ".".join(("windlass", "node", *folder.relative_to(_NODE).parts))


def _entry(name: str) -> zipfile.ZipInfo:
    """An entry without the time of day: the same sources give the same file."""
    made = zipfile.ZipInfo(name)
    made.compress_type = zipfile.ZIP_DEFLATED
    return made
