"""Read manifest, configuration and layers of an OCI or Docker image, and locate the root file system of a SIF file.

An OCI or Docker image is in an archive or in a folder. Names in it are not trusted. A part is only opened by a digest
or by one of two fixed names. Damaged data raises only `UsageError` (`refusing_damage`).

For a SIF file, the module reads the header and the descriptors, and checks the bounds of every number.
"""

from __future__ import annotations

import contextlib
import json
import lzma
import os
import platform
import re
import struct
import tarfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from windlass.errors import UsageError
from windlass.node.sys.reading import open_plain

_MAX_TEXT = 16 << 20
_MAX_BLOBS, _MAX_LAYERS = 10_000, 1000
_MAX_HEADER = 1 << 20
_LONG_HEADERS = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE),
    tarfile.SOLARIS_XHDTYPE,
)
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_DAMAGE = (
    *(tarfile.TarError, EOFError, OSError, ValueError, LookupError, TypeError, AttributeError),
    *(OverflowError, RecursionError, zlib.error, lzma.LZMAError),
)
"""Exceptions that Python's readers raise for inconsistent bytes."""


class Blobs(ABC):
    """The parts of an image by their names."""

    @abstractmethod
    def has(self, name: str) -> bool:
        """Return whether this part exists."""

    @abstractmethod
    def open(self, name: str) -> IO[bytes]:
        """Open a part for reading. Raises `KeyError` if it does not exist."""

    def text(self, name: str) -> str:
        with self.open(name) as stream:
            return stream.read(_MAX_TEXT).decode()


class BoundedMember(tarfile.TarInfo):
    """A member of an archive with a limit for its name and attributes, because Python reads them into memory."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _LONG_HEADERS and self.size > _MAX_HEADER:
            raise tarfile.ReadError(f"a name or an attribute of {self.size} bytes")
        return super()._proc_member(archive)  # type: ignore[misc, no-any-return]


class TarBlobs(Blobs, contextlib.AbstractContextManager["TarBlobs"]):
    """An archive that `podman save` or `docker save` wrote."""

    def __init__(self, path: Path) -> None:
        self._archive = tarfile.open(path, tarinfo=BoundedMember)  # noqa: SIM115
        self._names: dict[str, tarfile.TarInfo] = {}
        for number, member in enumerate(self._archive):
            if number >= _MAX_BLOBS:
                raise ValueError(f"more than {_MAX_BLOBS} parts")
            if member.isreg():
                self._names[str(PurePosixPath(member.name))] = member

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    def has(self, name: str) -> bool:
        return name in self._names

    def open(self, name: str) -> IO[bytes]:
        stream = self._archive.extractfile(self._names[name]) if name in self._names else None
        if stream is None:
            raise KeyError(f"{name} is not in it")
        return stream


class FolderBlobs(Blobs):
    """An OCI layout: the same parts in a folder, as `skopeo copy … oci:DIR` writes them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, name: str) -> bool:
        return ".." not in PurePosixPath(name).parts and not name.startswith("/") and (self._folder / name).is_file()

    def open(self, name: str) -> IO[bytes]:
        if not self.has(name):
            raise KeyError(f"{name} is not in it")
        return open_plain(self._folder / name, follow=True)


@contextlib.contextmanager
def refusing_damage(path: Path) -> Iterator[None]:
    """Convert exceptions of damaged bytes into a `UsageError` with the next step."""
    try:
        yield
    except _DAMAGE as error:
        hint = "write it again: podman save --format oci-archive"
        raise UsageError(f"{path}: a damaged or truncated archive: {error}", hint=hint) from error


def image_parts(blobs: Blobs, path: Path) -> tuple[list[str], str]:
    """Return the names of the layers, lowest first, and of the configuration.

    Raises `UsageError` if it is not an image.
    """
    layers, config = _named_parts(blobs, path)
    if len(layers) > _MAX_LAYERS:
        raise ValueError(f"{len(layers)} layers, more than {_MAX_LAYERS}")
    return layers, config


def _named_parts(blobs: Blobs, path: Path) -> tuple[list[str], str]:
    if blobs.has("manifest.json") and not blobs.has("index.json"):  # Docker's format
        entry = json.loads(blobs.text("manifest.json"))[0]
        return [str(PurePosixPath(layer)) for layer in entry["Layers"]], str(PurePosixPath(entry["Config"]))
    if not blobs.has("index.json"):
        hint = "unpack a plain root file system into a folder and give that"
        raise UsageError(f"{path}: a tar file, but no image: it has no index.json and no manifest.json", hint=hint)
    manifest = json.loads(blobs.text("index.json"))
    for _ in range(3):  # an index may contain an index: one for each machine
        if "manifests" not in manifest:
            break
        manifest = json.loads(blobs.text(_blob(_for_this_machine(manifest["manifests"])["digest"])))
    return [_blob(layer["digest"]) for layer in manifest["layers"]], _blob(manifest["config"]["digest"])


def _for_this_machine(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    """Select the image for this machine from images for several machines.

    Builders also list attestations, with an unknown machine.
    """
    wanted = _ARCHITECTURES.get(platform.machine(), platform.machine())
    named = [(entry.get("platform") or {}).get("architecture", "") for entry in manifests]
    return manifests[named.index(wanted)] if wanted in named else manifests[0]


def _blob(digest: str) -> str:
    kind, _, value = digest.partition(":")
    if not re.fullmatch(r"[a-z0-9]+", kind) or not re.fullmatch(r"[a-f0-9]+", value):
        raise ValueError(f"a strange digest {digest!r}")
    return f"blobs/{kind}/{value}"


MAGIC_AT, MAGIC = 32, b"SIF_MAGIC\0"
_HEADER = struct.Struct("<32s10s3s3s16s8q")
_DESCRIPTOR = struct.Struct("<i?IIIqqqqqqq128s384s")
_PARTITION, _SQUASHFS, _PRIMARY = 0x4004, 1, 2
_MAX_DESCRIPTORS = 1024


class Partition(NamedTuple):
    """A file system in the SIF file."""

    offset: int
    size: int


def is_sif(head: bytes) -> bool:
    return head[MAGIC_AT : MAGIC_AT + len(MAGIC)] == MAGIC


def sif_partition(path: str) -> Partition:
    """Return the primary partition, which must be squashfs.

    Raises `UsageError` for a damaged file or another file system.
    """
    with open_plain(path, follow=True) as stream:
        size = os.fstat(stream.fileno()).st_size
        head = stream.read(_HEADER.size)
        if len(head) < _HEADER.size or not is_sif(head):
            raise UsageError(f"{path}: a damaged SIF file: its header is cut off", hint="copy or pull it again")
        fields = _HEADER.unpack(head)
        total, start = fields[8], fields[9]
        for number in range(max(0, min(total, _MAX_DESCRIPTORS))):
            stream.seek(min(max(0, start), size) + number * _DESCRIPTOR.size)
            raw = stream.read(_DESCRIPTOR.size)
            if len(raw) < _DESCRIPTOR.size:
                break
            kind, used, _, _, _, offset, length, *_, extra = _DESCRIPTOR.unpack(raw)
            file_system, part = struct.unpack_from("<ii", extra)
            if kind != _PARTITION or not used or part != _PRIMARY:
                continue
            if file_system != _SQUASHFS:
                hint = "look at a sandbox instead: apptainer build --sandbox DIR IMAGE"
                raise UsageError(f"{path}: its file system is not squashfs (encrypted, or ext3)", hint=hint)
            if offset < 0 or length <= 0 or offset + length > size:
                raise UsageError(
                    f"{path}: a truncated SIF file: its file system ends at byte {offset + length}, the file at {size}",
                    hint="copy or pull it again",
                )
            return Partition(offset, length)
    raise UsageError(f"{path}: a SIF file without a root file system", hint="copy or pull it again")
