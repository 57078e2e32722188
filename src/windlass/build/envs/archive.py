"""Write archives with reproducible bytes: tar, tar.gz, tar.zst and squashfs from one list of members.

An archive is complete or does not exist. If an environment or its archive cannot be written, the module selects a hint
by the system's error.

It also changes scripts so that an unpacked environment works in another folder.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import shutil
import stat
import tarfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import msgspec

from windlass.base.procs.command import feed_command, which
from windlass.errors import CommandError, MachineError
from windlass.node.sys.atomic import replace_file, replacing
from windlass.node.sys.folders import UntrustedError, temporary_folder
from windlass.node.sys.reading import open_plain, read_bytes

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)


def hint_for(error: OSError, folder: Path) -> str:
    """Return the hint for an error of writing into an existing folder."""
    if error.errno in _NO_ROOM:
        return room_hint(folder)
    if error.errno in _NOT_ALLOWED:
        return f"you may not write to {folder}: choose another place"
    return f"{folder} takes no new files: choose another place"


def room_hint(folder: Path) -> str:
    """Return a hint with the free space."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return "make room, or choose another place"
    return f"{folder} has {free / 1e9:.1f} GB left (and perhaps a quota): make room, or choose another place"


_TAR_GZ, _TAR_ZST, _TAR = (".tar.gz", ".tgz"), (".tar.zst", ".tzst"), (".tar",)
SUFFIXES = (*_TAR_GZ, *_TAR_ZST, *_TAR, ".squashfs", ".sqfs", ".sqsh")
_PACK_S = 3600.0
_BLOCK_BYTES = 1 << 20
_WINDOW_BYTES = 1 << 15
_GZIP_LEVEL = 4


class ArchiveMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member of the archive: a file (from disk, or with new content), a folder, or a link."""

    name: str
    path: str = ""
    data: bytes | None = None
    link: str = ""
    folder: bool = False
    inode: tuple[int, int] | None = None
    """Device and inode of a file with several names. Its content is stored once."""
    mode: int
    mtime: int
    size: int = 0


def refuse_unreadable(error: OSError) -> None:
    """Raise an error for `os.walk`, which would otherwise skip an unreadable folder.

    An incomplete environment must not look complete.
    """
    raise MachineError(f"{error.filename} cannot be read: {error.strerror}", hint="nothing was written") from error


def write_archive(entries: list[ArchiveMember], final: Path, environ: Mapping[str, str]) -> None:
    """Write the members in the format of the name's suffix.

    Raises `MachineError` if a program or disk space is missing.
    """
    write = _writer(final, environ)
    try:
        with replacing(final, 0o644) as stream:
            write(entries, stream)
    except OSError as error:
        text = f"cannot write {final}: {error.strerror or error}"
        raise MachineError(text, hint=f"{hint_for(error, final.parent)}; the incomplete file was removed") from error


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
        hint = "write a .tar.gz, which needs no other program"
        raise MachineError(f"{name}: no {missing} on this machine", hint=hint)

    def through(entries: list[ArchiveMember], stream: BinaryIO) -> None:
        """Send a plain archive to the program, which writes the final format."""
        # mksquashfs gives no file a later time, so that the root directory does not get the present one.
        newest = {"SOURCE_DATE_EPOCH": str(max((entry.mtime for entry in entries), default=0))}

        def feed(argv: tuple[str, ...], output: BinaryIO | None = None) -> None:
            write = partial(_write_tar, entries)
            try:
                feed_command(argv, write, output=output, timeout_s=_PACK_S, env={**environ, **newest})
            except CommandError as error:
                hint = "write a .tar.gz, which needs no other program"
                raise MachineError(f"cannot pack: {error.message}", hint=hint) from error

        if name.endswith(_TAR_ZST):
            feed((program, "-q", "-3", "-T0", "-c"), output=stream)
            return
        with temporary_folder(f".{name}.", final.parent) as work:
            packed = work / "packed"
            options = ("-tar", "-quiet", "-noappend", "-no-progress", "-all-root")
            feed((program, "-", str(packed), *options))
            with open_plain(packed) as written:
                if os.fstat(written.fileno()).st_uid != os.geteuid():
                    raise UntrustedError(work, "was replaced by another user")
                shutil.copyfileobj(written, stream, 1 << 20)

    return through


class _Sink:
    """A stream that only takes bytes, as a pipe does. tarfile asks for the position."""

    def __init__(self, write: Callable[[Any], Any]) -> None:
        self._write, self._position = write, 0

    def write(self, data: Any) -> None:
        self._write(data)
        self._position += len(data)

    def tell(self) -> int:
        return self._position


class _ParallelGzip:
    """A gzip stream whose blocks are compressed by several threads. The bytes do not depend on their number."""

    def __init__(self, raw: BinaryIO, level: int) -> None:
        self._raw, self._level = raw, level
        self._threads = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
        self._waiting: deque[Future[bytes]] = deque()
        self._block = bytearray()
        self._before = b""
        self._sum, self._size = 0, 0
        raw.write(b"\x1f\x8b\x08\0\0\0\0\0\0\xff")

    def write(self, data: Any) -> None:
        self._block += data
        while len(self._block) >= _BLOCK_BYTES:
            block = bytes(self._block[:_BLOCK_BYTES])
            del self._block[:_BLOCK_BYTES]
            self._send(block)

    def _send(self, block: bytes, last: bool = False) -> None:
        self._sum, self._size = zlib.crc32(block, self._sum), self._size + len(block)
        self._waiting.append(self._threads.submit(_deflate, block, self._before, self._level, last))
        self._before = block[-_WINDOW_BYTES:]
        while len(self._waiting) > (0 if last else 2 * len(os.sched_getaffinity(0))):
            self._raw.write(self._waiting.popleft().result())

    def close(self) -> None:
        try:
            self._send(bytes(self._block), last=True)
            self._raw.write(self._sum.to_bytes(4, "little") + (self._size & 0xFFFFFFFF).to_bytes(4, "little"))
        finally:
            self._threads.shutdown(cancel_futures=True)


def _deflate(block: bytes, before: bytes, level: int, last: bool) -> bytes:
    """Compress a block that continues `before`."""
    packer = zlib.compressobj(level, zlib.DEFLATED, -15, 9, zlib.Z_DEFAULT_STRATEGY, before)
    return packer.compress(block) + packer.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)


def _write_gzip(entries: list[ArchiveMember], raw: BinaryIO) -> None:
    with contextlib.closing(_ParallelGzip(raw, _GZIP_LEVEL)) as stream:
        _write_tar(entries, stream)


def _write_tar(entries: list[ArchiveMember], stream: BinaryIO | _ParallelGzip) -> None:
    stored: dict[tuple[int, int], str] = {}
    with tarfile.open(fileobj=cast(BinaryIO, _Sink(stream.write)), mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.copybufsize = _BLOCK_BYTES  # type: ignore[attr-defined]  # the default is 16 kB
        for entry in sorted(entries, key=lambda entry: os.fsencode(entry.name)):
            info = tarfile.TarInfo(entry.name)
            info.mode, info.mtime = entry.mode, entry.mtime
            if entry.folder:
                info.type = tarfile.DIRTYPE
                archive.addfile(info)
            elif entry.link:
                info.type, info.linkname = tarfile.SYMTYPE, entry.link
                archive.addfile(info)
            elif entry.inode in stored:
                info.type, info.linkname = tarfile.LNKTYPE, stored[entry.inode]
                archive.addfile(info)
            else:
                if entry.inode is not None:
                    stored[entry.inode] = entry.name
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


MAX_TEXT = 1 << 20
_PYTHON_LINE = re.compile(rb"#!\s*(\S*/bin/python[\d.]*)([^\n]*)\n")
_EXEC_LINE = re.compile(rb"#!/bin/sh\n'''exec' \"?(\S*/bin/python[\d.]*)\"? \"\$0\" \"\$@\"\n' '''\n")


def own_files(root: Path) -> Iterator[Path]:
    """Return the files that contain the environment's own path: of a venv all of them, of conda those of Python."""
    yield from _files(root / "bin")
    if (root / "pyvenv.cfg").is_file():
        yield root / "pyvenv.cfg"
    for packages in site_packages(root):
        for path in _files(packages):
            if path.suffix in (".pth", ".egg-link") or path.name.startswith("__editable__"):
                yield path


def site_packages(root: Path) -> tuple[Path, ...]:
    """Return the package folders of a prefix."""
    found = sorted(root.glob("lib/python3*/site-packages")) + sorted(root.glob("lib/python3*/dist-packages"))
    return tuple(path for path in found if path.is_dir() and not path.is_symlink())


def _files(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink())
    return []


def read_text_file(path: Path) -> bytes | None:
    """Return the bytes of a small text file. None for programs, large files and unreadable files."""
    try:
        data = read_bytes(path, MAX_TEXT)
    except OSError:
        return None
    return None if b"\0" in data else data


def move_names(root: Path, old: str, new: str) -> int:
    """Replace `old` by `new` in all files that contain the environment's path. Returns the number of changed files."""
    before, after = os.fsencode(old), os.fsencode(new)
    whole = re.compile(re.escape(before) + rb"(?![\w.-])")
    count = 0
    for path in own_files(root):
        data = read_text_file(path)
        if data is None or before not in data:
            continue
        mode = stat.S_IMODE(path.stat().st_mode)
        replace_file(path, whole.sub(lambda _: after, data))
        path.chmod(mode)
        count += 1
    return count


def interpreter_of(data: bytes) -> str | None:
    """Return the Python in the first line of a script, in either of pip's forms."""
    found = _PYTHON_LINE.match(data) or _EXEC_LINE.match(data)
    return os.fsdecode(found[1]) if found else None


def portable_script(data: bytes) -> bytes:
    """Change a script's first line so that it uses the Python next to it. Other files do not change."""
    found = _PYTHON_LINE.match(data) or _EXEC_LINE.match(data)
    if found is None:
        return data
    name = found[1].rsplit(b"/", 1)[1]
    options = found[2].strip() if found.re is _PYTHON_LINE else b""
    words = b" " + options if options else b""
    # sh reads the second line as a command. Python reads the second and third lines as a string.
    head = (
        b'#!/bin/sh\n\'\'\'exec\' "$(dirname "$(readlink -f "$0")")/'
        + name
        + b'"'
        + words
        + b' "$0" "$@"\n'
        + b"' '''\n"
    )
    return head + data[found.end() :]
