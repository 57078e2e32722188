"""The accesses of a run, in order: the directories that it opened and the parts of files that it read.

A trace contains paths and byte ranges, but no versions. It predicts what the next run needs. The next run pins the
versions that exist then. So a trace of an environment that changed a little is still almost right, and it can never
make a view wrong.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, NamedTuple

from windlass.node.cache.keys import check_path
from windlass.node.sys.atomic import replace_file
from windlass.node.sys.reading import UnreadableError, loads, read_bytes

VERSION = 1
_MAX_FILE_BYTES = 256 << 20
_MAX_END = 1 << 47
"""No file is that large. A trace with a larger offset is damaged or malicious."""


class Touch(NamedTuple):
    """A directory (`length` -1) or a range of a file."""

    path: bytes
    offset: int
    length: int

    @property
    def is_directory(self) -> bool:
        return self.length < 0


class BadTraceError(ValueError):
    """A file that is not a trace of this version."""


@dataclass(frozen=True)
class Trace:
    identity: str
    roots: tuple[bytes, ...]
    touches: tuple[Touch, ...]

    @property
    def file_bytes(self) -> int:
        return sum(touch.length for touch in self.touches if not touch.is_directory)

    def within(self, limit_bytes: int) -> Trace:
        """Return the trace without the touches that exceed the limit. The other touches may still be right."""
        kept, left = [], limit_bytes
        for touch in self.touches:
            if touch.is_directory or touch.length <= left:
                kept.append(touch)
                left -= max(0, touch.length)
        return Trace(self.identity, self.roots, tuple(kept))


def directory_touch(path: bytes) -> Touch:
    return Touch(path, 0, -1)


class TouchRecorder:
    """Collect the touches of one run. Contiguous chunks of a file become one range."""

    def __init__(self, chunk_bytes: int, limit_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._limit_bytes = limit_bytes
        self._seen: set[tuple[bytes, int]] = set()
        self._touches: list[Touch] = []
        self._bytes = 0
        self.changes = 0

    def directory(self, path: bytes) -> None:
        self._add(path, -1)

    def chunk(self, path: bytes, index: int, file_size: int) -> None:
        if self._bytes < self._limit_bytes:
            self._add(path, index, file_size)

    def _add(self, path: bytes, index: int, file_size: int = 0) -> None:
        if (path, index) in self._seen:
            return
        self._seen.add((path, index))
        self.changes += 1
        if index < 0:
            self._touches.append(directory_touch(path))
            return
        start = index * self._chunk_bytes
        length = min(self._chunk_bytes, file_size - start)
        self._bytes += length
        last = self._touches[-1] if self._touches else None
        if last is not None and last.path == path and not last.is_directory and last.offset + last.length == start:
            self._touches[-1] = Touch(path, last.offset, last.length + length)
        else:
            self._touches.append(Touch(path, start, length))

    def trace(self, identity: str, roots: tuple[bytes, ...], before: Trace | None = None) -> Trace:
        """Return all touches so far. Touches of an earlier trace that this run did not make follow at the end."""
        touches = list(self._touches)
        if before is not None:
            touches += [t for t in before.touches if not self._covers(t)]
        return Trace(identity, roots, tuple(touches))

    def _covers(self, touch: Touch) -> bool:
        if touch.is_directory:
            return (touch.path, -1) in self._seen
        first = touch.offset // self._chunk_bytes
        last = (touch.offset + touch.length - 1) // self._chunk_bytes
        return all((touch.path, index) in self._seen for index in range(first, last + 1))


def dump_trace(trace: Trace) -> str:
    """Serialize to JSON. Bytes of a path that are not UTF-8 become escaped surrogates."""
    values: dict[str, Any] = {
        "version": VERSION,
        "identity": trace.identity,
        "roots": [os.fsdecode(r) for r in trace.roots],
        "touches": [[os.fsdecode(t.path), t.offset, t.length] for t in trace.touches],
    }
    return json.dumps(values, separators=(",", ":"))


def parse_trace(text: str) -> Trace:
    try:
        values = loads(text)
        if values["version"] > VERSION:
            raise BadTraceError("trace of version %s, this code knows %d" % (values["version"], VERSION))
        touches = tuple(_touch(os.fsencode(p), int(o), int(n)) for p, o, n in values["touches"])
        return Trace(str(values["identity"]), tuple(os.fsencode(r) for r in values["roots"]), touches)
    except BadTraceError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadTraceError("not a trace: %s" % error) from error


def _touch(path: bytes, offset: int, length: int) -> Touch:
    check_path(path)
    if offset < 0 or length < -1 or offset + length > _MAX_END:
        raise BadTraceError("bytes %d to %d of %r" % (offset, offset + length, path[:80]))
    return Touch(path, offset, length)


def read_trace(path: str) -> Trace:
    """Read a trace. Raise `BadTraceError` for a file that is not a trace, `OSError` for one that cannot be read."""
    try:
        return parse_trace(read_bytes(path, _MAX_FILE_BYTES, follow=True).decode("ascii"))
    except UnreadableError as error:
        raise BadTraceError(error.strerror) from None
    except UnicodeDecodeError as error:
        raise BadTraceError("not a trace: %s" % error) from error


def write_trace(path: str, trace: Trace) -> None:
    """Replace the file atomically. A reader sees the old trace or the new one."""
    os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
    replace_file(path, dump_trace(trace).encode("ascii"))
