"""Read files that another user may have written: plain files only, never through a link, up to a size limit.

A pipe, a device, a link and a file over the limit raise `UnreadableError`, which names the file. No call blocks.
Node code and the user's process import this module: standard library, Python 3.9.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from typing import Any, BinaryIO

MAX_BYTES = 16 << 20
MAX_LINE = 64 << 10
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class UnreadableError(OSError, ValueError):
    """A file of the wrong type or size. The message has the path and the reason."""

    def __init__(self, path: str | os.PathLike[str], why: str) -> None:
        super().__init__(errno.EINVAL, why, os.fspath(path))

    def __str__(self) -> str:
        return "%s: %s" % (self.filename, self.strerror)


def open_plain(
    path: str | os.PathLike[str], *, within: str | os.PathLike[str] | None = None, follow: bool = False
) -> BinaryIO:
    """Return `plain_descriptor` as a file object."""
    return open(plain_descriptor(path, within=within, follow=follow), "rb")


def plain_descriptor(
    path: str | os.PathLike[str], *, within: str | os.PathLike[str] | None = None, follow: bool = False
) -> int:
    """Open a plain file for reading.

    Does not follow a link at `path`, unless `follow` is true because the user chose the path. Then the path may also
    name a pipe that the user's shell opened for this process, as `<(zcat log.gz)` does. With `within`, a directory
    above the file, no link between the two is followed either. Raises `UnreadableError` for a link and for a file that
    is not plain, and the usual `OSError` if the file is missing or not readable.
    """
    given = _given_descriptor(os.fspath(path)) if follow else None
    try:
        if given is not None:
            opened = os.dup(given)
        else:
            opened = _open(os.fspath(path), within, _FLAGS if follow else _FLAGS | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise UnreadableError(path, "is a link, which windlass does not follow here") from None
        if error.errno == errno.ENXIO:  # a socket, or a device without a driver
            raise UnreadableError(path, "is not a plain file") from None
        if error.errno == errno.ENOTDIR and within is not None:
            raise UnreadableError(path, "is in a folder that is a link or a file") from None
        raise
    mode = os.fstat(opened).st_mode
    if not (stat.S_ISREG(mode) or (given is not None and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)))):
        os.close(opened)
        raise UnreadableError(path, "is not a plain file")
    return opened


def read_bytes(
    path: str | os.PathLike[str],
    limit: int = MAX_BYTES,
    *,
    within: str | os.PathLike[str] | None = None,
    follow: bool = False,
) -> bytes:
    """Return the content of a plain file of at most `limit` bytes. See `plain_descriptor`."""
    with open_plain(path, within=within, follow=follow) as file:
        if os.fstat(file.fileno()).st_size <= limit:
            data = file.read(limit + 1)
            if len(data) <= limit:
                return data
    raise UnreadableError(path, "is larger than %d bytes" % limit)


def read_text(
    path: str | os.PathLike[str],
    limit: int = MAX_BYTES,
    *,
    within: str | os.PathLike[str] | None = None,
    follow: bool = False,
    errors: str = "strict",
) -> str:
    """Return the text of a UTF-8 file with all line ends as newlines. See `read_bytes`."""
    try:
        text = read_bytes(path, limit, within=within, follow=follow).decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise UnreadableError(path, "is not UTF-8 text (byte %d)" % error.start) from None
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def read_object(
    path: str | os.PathLike[str],
    limit: int = MAX_BYTES,
    *,
    within: str | os.PathLike[str] | None = None,
    follow: bool = False,
) -> dict[str, Any]:
    """Return the object of a JSON file. All its numbers are finite. See `read_bytes`."""
    data = read_bytes(path, limit, within=within, follow=follow)
    try:
        found = loads(data)
    except ValueError as error:
        raise UnreadableError(path, "is not valid JSON: %s" % error) from None
    if not isinstance(found, dict):
        raise UnreadableError(path, "is not a JSON object")
    return found


def loads(text: str | bytes) -> Any:
    """Return the value of a JSON text with finite numbers.

    Raises `ValueError` for all other text, and for text that is nested too deeply.
    """
    import json  # imported here because programs that only write do not need it

    try:
        return json.loads(text, parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_tail(path: str | os.PathLike[str], size: int, *, within: str | os.PathLike[str] | None = None) -> bytes:
    """Return the last `size` bytes of a plain file of any size."""
    with open_plain(path, within=within) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - size))
        return file.read(size)


def read_lines(
    path: str | os.PathLike[str],
    max_line: int = MAX_LINE,
    *,
    within: str | os.PathLike[str] | None = None,
    follow: bool = False,
) -> Iterator[bytes]:
    """Yield the lines of a plain file of any size, with their ends, in constant memory. Cut longer lines."""
    with open_plain(path, within=within, follow=follow) as file:
        yield from cut_lines(file, max_line)


def cut_lines(file: BinaryIO, max_line: int = MAX_LINE) -> Iterator[bytes]:
    """Yield the lines from the current position to the end of a file, with their ends. Cut longer lines."""
    cut = False
    for piece in iter(lambda: file.readline(max_line), b""):
        if not cut:
            yield piece
        cut = not piece.endswith(b"\n")


def _given_descriptor(path: str) -> int | None:
    """Return the descriptor of this process that a path names."""
    folder, _, name = path.rpartition("/")
    if path == "/dev/stdin":
        return 0
    return int(name) if folder in ("/dev/fd", "/proc/self/fd") and name.isdecimal() and len(name) < 8 else None


def _finite(text: str) -> float:
    value = float(text)
    if not abs(value) < float("inf"):  # false for NaN too
        raise ValueError("%s is not a finite number" % text[:40])
    return value


def _open(path: str, within: str | os.PathLike[str] | None, flags: int) -> int:
    if within is None:
        return os.open(path, flags)
    *folders, name = os.path.relpath(path, within).split(os.sep)
    folder = os.open(within, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for step in folders:
            if step == os.pardir:
                raise UnreadableError(path, "is not below %s" % os.fspath(within))
            inner = os.open(step, _FOLDER_FLAGS, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(name, flags, dir_fd=folder)
    finally:
        os.close(folder)
