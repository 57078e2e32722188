"""Open an image as a folder for reading, and inspect it.

An unpacked directory is read in place. From a squashfs, a SIF or an OCI image, only the relevant files are unpacked:
those that the loader reads (libraries, its configuration), and a few files that identify the image.

They are put into a temporary folder, which is removed afterwards. The folder may be in memory. Therefore only the names
of large libraries are kept, except for network libraries. The largest files are left out until the rest fits into
`MAX_TOTAL`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from windlass.base.procs.command import run_command, which
from windlass.build.images.facts import ImageReport, config_environment, directory_environment, image_root, read_image
from windlass.build.images.oci import (
    Blobs,
    BoundedMember,
    FolderBlobs,
    TarBlobs,
    image_parts,
    is_sif,
    refusing_damage,
    sif_partition,
)
from windlass.errors import CommandError, MachineError, UsageError, os_errors
from windlass.node.libs.closure import CostlyRootError, SystemRoot
from windlass.node.libs.decide import ImageFacts, is_network
from windlass.node.sys.atomic import replace_file, replacing
from windlass.node.sys.folders import temporary_folder
from windlass.node.sys.reading import open_plain

MAX_LIBRARY = 6 << 20
MAX_NETWORK_LIBRARY = 128 << 20
MAX_TOTAL = 1 << 30
MAX_MEMBERS = 2_000_000
MAX_READ = 64 << 30
"""Limits for members and uncompressed bytes of all layers together."""
_TIMEOUT_S = 900.0
_LIBRARY = re.compile(
    r"(usr/|usr/local/|container/hpc/|opt/[^/]+/(?:[^/]+/)?)?(lib|lib64)(/[\w.-]+-linux-gnu\w*)?(/[^/]+){0,2}/[^/]*\.so[^/]*\Z"
    r"|container/host-libs/[^/]*\.so[^/]*\Z|usr/local/cuda[^/]*/compat/(lib(\.real)?/)?libcuda\.so[^/]*\Z|lib/ld-musl-[^/]*\Z"
)
_OTHER = re.compile(
    r"etc/alternatives/[^/]+\Z|(usr/)?etc/(ld\.so\.conf(\.d/[^/]+)?|os-release)\Z|usr/lib/os-release\Z|(usr/)?bin/(sh|env|bash|dash|busybox)\Z"
    r"|ch/environment\Z|\.singularity\.d/env/[^/]+\Z"
)
_LISTED = re.compile(r"([-dlbcps])\S{9}\s+\S+\s+(\d+)\s+\S+\s+\S+\s+squashfs-root/(.*)\Z")


class OpenImage(NamedTuple):
    """An image that can be read as a folder."""

    folder: str
    kind: str
    environment: dict[str, str]
    names: tuple[str, ...] = ()
    """Paths of libraries that the image also has and that were not unpacked."""


@contextlib.contextmanager
def open_image(image: str, environ: Mapping[str, str]) -> Iterator[OpenImage]:
    """Provide the image as a folder inside the block.

    Raises `UsageError` if it is not an image, is damaged or cannot be read. Raises `MachineError` if a program to
    unpack it is missing.
    """
    path = Path(image).expanduser()
    if not path.exists():
        hint = (
            "`podman save --format oci-archive -o FILE NAME` writes an image of a registry or a local storage to a file"
        )
        hint = f"give a folder, a .sqfs, a .sif or an archive; {hint}"
        raise UsageError(f"{image}: there is no such image", hint=hint)
    if path.is_dir() and not (path / "oci-layout").is_file():
        _refuse_strange_folder(path)
        place = str(path.absolute())  # resolved, /proc/PID/root would be the root of this machine
        yield OpenImage(place, "directory", directory_environment(SystemRoot(place)))
        return
    with temporary_folder("windlass-image-") as folder:
        try:
            yield _unpacked(path, Path(folder) / "root", environ)
        finally:
            _make_removable(Path(folder))


def _refuse_strange_folder(path: Path) -> None:
    if not any((path / name).is_dir() or (path / name).is_symlink() for name in ("usr", "lib", "bin")):
        hint = "an unpacked image has usr, bin and lib in it, an OCI layout index.json"
        raise UsageError(f"{path}: a folder, but no image", hint=hint)


def _make_removable(folder: Path) -> None:
    for entry in folder.rglob("*"):
        if entry.is_dir() and not entry.is_symlink():
            entry.chmod(0o700)


def _unpacked(path: Path, target: Path, environ: Mapping[str, str]) -> OpenImage:
    if path.is_dir():
        target.mkdir()
        with refusing_damage(path):
            environment, names = _unpack_archive(FolderBlobs(path), path, target)
        return OpenImage(str(target), "oci-layout", environment, names)
    explained = os_errors(f"read the image {path}", hint="check its permissions", kind=UsageError)
    with explained, open_plain(path, follow=True) as stream:
        head = stream.read(512)
    if head[:4] == b"hsqs" or is_sif(head):
        kind = "squashfs" if head[:4] == b"hsqs" else "sif"
        names = _unsquash(path, target, sif_partition(str(path)).offset if kind == "sif" else 0, environ)
        return OpenImage(str(target), kind, directory_environment(SystemRoot(str(target))), names)
    if head[257:262] == b"ustar" or head[:2] == b"\x1f\x8b":
        target.mkdir()
        with refusing_damage(path), TarBlobs(path) as blobs:
            environment, names = _unpack_archive(blobs, path, target)
        return OpenImage(str(target), "oci-archive", environment, names)
    hint = "give a folder with an unpacked image, a .sqfs, a .sif, or what `podman save` writes"
    raise UsageError(f"{path}: not an image: neither squashfs, nor SIF, nor an OCI or Docker archive", hint=hint)


def _unsquash(path: Path, target: Path, offset: int, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Unpack the relevant files. Returns the libraries that were left out."""
    program = which("unsquashfs", environ)
    if program is None:
        hint = "install squashfs-tools, or look at an unpacked folder"
        raise MachineError(f"{path}: unsquashfs is needed to read it, and is not in PATH", hint=hint)
    _refuse_truncated(path, offset)
    at = ("-o", str(offset)) if offset else ()
    try:
        listed = run_command((program, *at, "-lln", str(path)), timeout_s=_TIMEOUT_S)
        chosen, left_out = _chosen(list(_parsed(listed.stdout)))
        listing = target.parent / "wanted"
        replace_file(listing, "".join(f"{_escaped(name)}\n" for name in chosen).encode("utf-8", "surrogateescape"))
        argv = (program, *at, "-q", "-n", "-no-xattrs", "-d", str(target), "-ef", str(listing), str(path))
        run_command(argv, timeout_s=_TIMEOUT_S)
        return left_out
    except CommandError as error:
        text = f"{path}: unsquashfs cannot read it: {error.output.strip().splitlines()[-1] if error.output else error}"
        hint = "the file is damaged or truncated: copy or build it again"
        raise UsageError(text, hint=hint) from error


def _refuse_truncated(path: Path, offset: int) -> None:
    """Compare the file's size with the size in the superblock.

    unsquashfs detects a missing end only if it reads there.
    """
    with open_plain(path, follow=True) as stream:
        stream.seek(offset)
        head = stream.read(48)
    size = path.stat().st_size
    if int.from_bytes(head[4:8], "little") > MAX_MEMBERS:
        raise UsageError(f"{path}: an image of more than {MAX_MEMBERS} files", hint="look at an unpacked folder")
    if len(head) < 48 or head[:4] != b"hsqs" or offset + int.from_bytes(head[40:48], "little") > size:
        raise UsageError(f"{path}: a damaged or truncated squashfs ({size} bytes)", hint="copy or build it again")


def _parsed(listing: str) -> Iterator[tuple[str, int, str]]:
    for line in listing.splitlines():
        found = _LISTED.match(line)
        if found:
            yield found[1], int(found[2]), found[3].split(" -> ", 1)[0] if found[1] == "l" else found[3]


def _chosen(entries: list[tuple[str, int, str]]) -> tuple[list[str], tuple[str, ...]]:
    """Return the names to unpack, and the libraries of which only the name is kept."""
    wanted = {name: size for kind, size, name in entries if _is_wanted(kind, size, name)}
    total = sum(wanted.values())
    for name in sorted(wanted, key=lambda name: (is_network(name.rpartition("/")[2]), -wanted[name])):
        if total <= MAX_TOTAL:
            break
        total -= wanted.pop(name)
    left_out = (f"/{name}" for kind, _, name in entries if kind in "-l" and name not in wanted and _LIBRARY.match(name))
    return list(wanted), tuple(left_out)


def _is_wanted(kind: str, size: int, name: str) -> bool:
    if kind == "l" and name.count("/") == 0:
        return True  # lib -> usr/lib
    if not (_LIBRARY.match(name) or _OTHER.match(name)):
        return False
    most = MAX_NETWORK_LIBRARY if is_network(name.rpartition("/")[2]) else MAX_LIBRARY
    return kind == "l" or (kind == "-" and size <= most)


def _escaped(name: str) -> str:
    return re.sub(r"([\\*?\[\]()|+@!])", r"\\\1", name)


def _unpack_archive(blobs: Blobs, path: Path, target: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """Unpack the layers of an OCI or Docker image on top of each other.

    Returns the variables of its configuration, and the libraries that were left out.
    """
    layers, config = image_parts(blobs, path)
    budget = _Budget()
    for layer in layers:
        with blobs.open(layer) as stream:
            _apply_layer(stream, target, budget)
    return config_environment(blobs.text(config)), tuple(budget.left_out)


class _Budget:
    """The remaining budget for the layers of an image. Raises if there are too many members or bytes to read."""

    def __init__(self) -> None:
        self.write_bytes, self.members, self.read_bytes = MAX_TOTAL, MAX_MEMBERS, MAX_READ
        self.left_out: dict[str, None] = {}

    def spend(self, member: tarfile.TarInfo) -> None:
        self.members -= 1
        self.read_bytes -= member.size
        if self.members < 0:
            raise ValueError(f"more than {MAX_MEMBERS} files")
        if self.read_bytes < 0:
            raise ValueError(f"more than {MAX_READ} bytes in its layers")


def _apply_layer(stream: IO[bytes], target: Path, budget: _Budget) -> None:
    """Put the wanted files of a layer over those of the layers below it."""
    if stream.read(4) == b"\x28\xb5\x2f\xfd":
        raise ValueError("a layer is compressed with zstd; save the image uncompressed or with gzip")
    stream.seek(0)
    with tarfile.open(fileobj=stream, mode="r|*", tarinfo=BoundedMember) as layer:
        for member in layer:
            layer.members.clear()  # type: ignore[attr-defined]  # tarfile would keep all members in memory
            budget.spend(member)
            name = str(PurePosixPath(member.name.lstrip("/")))
            parts = PurePosixPath(name).parts
            if ".." in parts or not parts:
                continue
            if parts[-1].startswith(".wh."):
                _white_out(target, name)
                continue
            kind = "l" if member.issym() else "-" if member.isreg() or member.islnk() else "?"
            if kind == "?" or not _is_wanted(kind, member.size, name) or member.size > budget.write_bytes:
                if kind != "?" and _LIBRARY.match(name):
                    budget.left_out[f"/{name}"] = None
                continue
            budget.write_bytes -= member.size
            _put(layer, member, target, name)


def _inside(target: Path, name: str) -> Path | None:
    """Return the target path of a member. A link of an earlier member must not lead out of the folder."""
    place = target
    for part in PurePosixPath(name).parts[:-1]:
        place = place / part
        if place.is_symlink():
            return None  # /lib -> usr/lib: the image itself names the file by its real path
        place.mkdir(exist_ok=True)
    return place / PurePosixPath(name).name


def _put(layer: tarfile.TarFile, member: tarfile.TarInfo, target: Path, name: str) -> None:
    place = _inside(target, name)
    if place is None or (place.is_dir() and not place.is_symlink()):
        return
    place.unlink(missing_ok=True)
    if member.issym():
        place.symlink_to(member.linkname)
    elif member.islnk():
        source = target / member.linkname.lstrip("/")
        inside = target.resolve() in source.resolve().parents
        if inside and source.is_file() and not source.is_symlink():
            os.link(source, place, follow_symlinks=False)  # copies could fill the disk
    else:
        stream = layer.extractfile(member)
        if stream is not None:
            with replacing(place) as out:
                shutil.copyfileobj(stream, out)


def _white_out(target: Path, name: str) -> None:
    place = _inside(target, name)
    if place is None:
        return
    gone = place.parent if place.name == ".wh..wh..opq" else place.with_name(place.name[len(".wh.") :])
    if gone.is_symlink() or gone.is_file():
        gone.unlink()
    elif gone.is_dir() and gone != target:
        shutil.rmtree(gone)


def inspect_image(image: str, environ: Mapping[str, str]) -> tuple[ImageReport, ImageFacts]:
    """Return the report for people and the facts for the decision. Raises the same errors as `open_image`."""
    try:
        with open_image(image, environ) as opened:
            root = image_root(opened.folder, opened.environment)
            return read_image(root, image, opened.kind, opened.environment, opened.names)
    except CostlyRootError as error:
        hint = "check that the image is from a trusted source"
        raise UsageError(f"{image}: reading stopped:  {error}", hint=hint) from error
