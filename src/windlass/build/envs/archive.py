"""Archives with fixed bytes: tar, tar.gz, tar.zst and squashfs from one list of members. Whole, or not there.

What to do where an environment or its archive cannot be written, by what the system answered.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, BinaryIO

import msgspec

from windlass.base.procs.command import run_command, which
from windlass.errors import CommandError, MachineError
from windlass.node.sys.atomic import replacing
from windlass.node.sys.folders import UntrustedError, temporary_folder
from windlass.node.sys.reading import open_plain

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)


def hint_for(error: OSError, folder: Path) -> str:
    """What to do about an error of writing into a folder that is there."""
    if error.errno in _NO_ROOM:
        return room_hint(folder)
    if error.errno in _NOT_ALLOWED:
        return f"you may not write to {folder}: choose another place"
    return f"{folder} takes no new files: choose another place"


def room_hint(folder: Path) -> str:
    """How much room is left."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return "make room, or choose another place"
    return f"{folder} has {free / 1e9:.1f} GB left (and perhaps a quota): make room, or choose another place"


_TAR_GZ, _TAR_ZST, _TAR = (".tar.gz", ".tgz"), (".tar.zst", ".tzst"), (".tar",)
SUFFIXES = (*_TAR_GZ, *_TAR_ZST, *_TAR, ".squashfs", ".sqfs", ".sqsh")
_PACK_S = 3600.0


class ArchiveMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member of the archive: a file (from disk, or with new content), a folder, or a link."""

    name: str
    path: str = ""
    data: bytes | None = None
    link: str = ""
    folder: bool = False
    mode: int
    mtime: int
    size: int = 0


def refuse_unreadable(error: OSError) -> None:
    """For `os.walk`, which would leave a folder out that it cannot read: half an environment must not look whole."""
    raise MachineError(f"{error.filename} cannot be read: {error.strerror}", hint="nothing was written") from error


def write_archive(entries: list[ArchiveMember], final: Path, environ: Mapping[str, str]) -> None:
    """Write the members in the form that the name's ending says. Raises `MachineError` without a program or room."""
    write = _writer(final, environ)
    try:
        with replacing(final, 0o644) as stream:
            write(entries, stream)
    except OSError as error:
        text = f"cannot write {final}: {error.strerror or error}"
        raise MachineError(text, hint=f"{hint_for(error, final.parent)}; nothing was left there") from error


Writer = Callable[[list[ArchiveMember], BinaryIO], None]


def _writer(final: Path, environ: Mapping[str, str]) -> Writer:
    name = final.name
    if name.endswith(_TAR_GZ):
        return _write_gzip
    if name.endswith(_TAR):
        return _write_tar
    program = which("zstd" if name.endswith(_TAR_ZST) else "mksquashfs", environ)
    if program is None:
        missing = "zstd" if name.endswith(_TAR_ZST) else "mksquashfs (squashfs-tools)"
        raise MachineError(f"{name}: no {missing} on this machine", hint="write a .tar.gz, which needs nothing")
    if name.endswith(_TAR_ZST):
        argv: tuple[str, ...] = ("sh", "-c", 'exec "$0" -q -3 -T0 -f -o "$2" "$1"', program)
    else:
        argv = ("sh", "-c", 'exec "$0" - "$2" -tar -quiet -noappend -no-progress -all-root -mkfs-time 0 <"$1"', program)

    def through(entries: list[ArchiveMember], stream: BinaryIO) -> None:
        """A plain archive in a folder of ours, then the program that makes the final form of it."""
        with temporary_folder(f".{name}.", final.parent) as work:
            with replacing(work / "plain") as plain:
                _write_tar(entries, plain)
            try:
                run_command((*argv, str(work / "plain"), str(work / "packed")), timeout_s=_PACK_S, env=environ)
            except CommandError as error:
                hint = "write a .tar.gz, which needs nothing"
                raise MachineError(f"cannot pack: {error.message}", hint=hint) from error
            with open_plain(work / "packed") as packed:
                if os.fstat(packed.fileno()).st_uid != os.geteuid():
                    raise UntrustedError(work, "was replaced by another user")
                shutil.copyfileobj(packed, stream, 1 << 20)

    return through


def _write_gzip(entries: list[ArchiveMember], raw: BinaryIO) -> None:
    with gzip.GzipFile("", "wb", 6, raw, mtime=0) as stream:
        _write_tar(entries, stream)


def _write_tar(entries: list[ArchiveMember], stream: IO[bytes] | gzip.GzipFile) -> None:
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in sorted(entries, key=lambda entry: os.fsencode(entry.name)):
            info = tarfile.TarInfo(entry.name)
            info.mode, info.mtime = entry.mode, entry.mtime
            if entry.folder:
                info.type = tarfile.DIRTYPE
                archive.addfile(info)
            elif entry.link:
                info.type, info.linkname = tarfile.SYMTYPE, entry.link
                archive.addfile(info)
            else:
                info.size = entry.size
                with _content(entry) as content:
                    archive.addfile(info, content)


@contextlib.contextmanager
def _content(entry: ArchiveMember) -> Iterator[IO[bytes]]:
    if entry.data is not None:
        yield io.BytesIO(entry.data)
        return
    with open_plain(entry.path) as stream:
        yield stream
