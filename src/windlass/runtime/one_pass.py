"""Read, check and load the files of a snapshot in one pass: each byte is read once, by several threads.

A rank checks some of the files. While it computes the digest of a file, it copies the tensors in it to their places.
Tensors in other files are read without a check, because another rank checks those files.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.runtime.staging import HostBlock
from windlass.runtime.store import CorruptError, FileEntry, check_file, io_threads
from windlass.runtime.tensor_file import HEAD_BYTES, data_offset

_PIECE_BYTES = 8 << 20
_SLOTS = 4
"""Pieces of one thread that may be in transfer to a device."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Span:
    """A tensor that is stored in a file as plain data."""

    file: str
    start: int
    target: Any
    """The tensor as bytes."""

    @property
    def end(self) -> int:
        return self.start + int(self.target.numel())


def read_in_one_pass(
    snapshot: Path, items: Sequence[Any], entries: Sequence[FileEntry], reader: Any, planner: Any
) -> tuple[list[str], list[Any]]:
    """Check `entries`, and load all items that the files contain as plain data.

    Returns the problems of the files, and the items that need torch's own reader.
    """
    import torch

    slow: list[Any] = []
    spans: list[_Span] = []
    for item in items:
        span = None if item.type.name == "BYTE_IO" else _find_span(snapshot, item, reader, planner)
        (slow.append(item) if span is None else spans.append(span))
    devices = {span.target.device for span in spans if span.target.device.type == "cuda"}
    for device in devices:
        torch.cuda.synchronize(device)  # earlier operations on a tensor must end before it is loaded
    checked, apart = _by_file(spans, entries)
    with _Lanes(io_threads(), next(iter(devices), None)) as lanes:

        def check(entry: FileEntry) -> str | None:
            def digest(path: Path) -> str:
                with reader.fs.create_stream(path, "rb") as stream:
                    return _read_whole(stream.fileno(), checked[entry.name], lanes.mine())

            return check_file(snapshot / entry.name, entry, digest)

        def read(span: _Span) -> None:
            with reader.fs.create_stream(snapshot / span.file, "rb") as stream:
                for _ in lanes.mine().load(stream.fileno(), span):
                    pass

        # The largest files first, so that no thread starts one at the end.
        checks = lanes.run(check, sorted(entries, key=lambda entry: -entry.size_bytes))
        problems = [problem for problem in checks if problem is not None]
        if not problems:
            lanes.run(read, apart)
    return problems, slow


def _find_span(snapshot: Path, item: Any, reader: Any, planner: Any) -> _Span | None:
    """Return the position of the whole tensor in its file. None if the file has it in another form or size."""
    import torch

    place = reader.storage_data[item.storage_index]
    target = planner.resolve_tensor(item).detach()
    whole = target.is_contiguous() and target.numel() > 0 and not any(item.storage_offsets)
    if not whole or place.transform_descriptors or reader.stored_dtype(item.storage_index) != target.dtype:
        return None
    size = target.numel() * target.element_size()
    try:
        with reader.fs.create_stream(snapshot / place.relative_path, "rb") as stream:
            head = os.pread(stream.fileno(), min(HEAD_BYTES, place.length), place.offset)
    except OSError:  # the rank that checks the file reports the problem
        return None
    start = data_offset(head, size)
    if start is None or start + size > place.length:
        return None
    return _Span(file=place.relative_path, start=place.offset + start, target=target.view(-1).view(torch.uint8))


def _by_file(spans: Sequence[_Span], entries: Sequence[FileEntry]) -> tuple[dict[str, list[_Span]], list[_Span]]:
    """Return the spans of each checked file, in order and without overlaps, and all other spans."""
    checked: dict[str, list[_Span]] = {entry.name: [] for entry in entries}
    apart: list[_Span] = []
    for span in sorted(spans, key=lambda span: span.start):
        inside = checked.get(span.file)
        if inside is None or (inside and inside[-1].end > span.start):
            apart.append(span)
        else:
            inside.append(span)
    return checked, apart


def _read_whole(fd: int, spans: Sequence[_Span], lane: _Lane) -> str:
    """Read a whole file and load the spans during the read. Returns the SHA-256 of the file."""
    digest = hashlib.sha256()
    size = os.fstat(fd).st_size
    place = 0
    for span in (*spans, None):
        for piece in lane.skim(fd, place, size if span is None else min(span.start, size)):
            digest.update(piece)
        if span is not None:
            for piece in lane.load(fd, span):
                digest.update(piece)
            place = span.end
    return digest.hexdigest()


class _Lane:
    """The buffers of one thread. `slots` is pinned memory for data in transfer to a device."""

    def __init__(self, slots: Sequence[Any]) -> None:
        self._slots = slots
        self._events: list[Any] = [None] * len(slots)
        self._streams: dict[Any, Any] = {}
        self._next = 0

    def skim(self, fd: int, start: int, end: int) -> Iterator[memoryview]:
        """Yield the bytes from `start` to `end`, which belong to no tensor."""
        scratch = memoryview(bytearray(min(_PIECE_BYTES, max(0, end - start))))
        while start < end:
            piece = scratch[: end - start]
            _read_into(fd, piece, start)
            yield piece
            start += len(piece)

    def load(self, fd: int, span: _Span) -> Iterator[memoryview]:
        """Load one tensor, and yield its bytes piece by piece."""
        for done in range(0, span.target.numel(), _PIECE_BYTES):
            target = span.target[done : done + _PIECE_BYTES]
            if target.device.type == "cuda":
                yield from self._send(fd, span.start + done, target)
                continue
            host = target if target.device.type == "cpu" else target.cpu()
            piece = memoryview(host.numpy())
            _read_into(fd, piece, span.start + done)
            if host is not target:
                target.copy_(host)
            yield piece

    def _send(self, fd: int, start: int, target: Any) -> Iterator[memoryview]:
        import torch

        slot, self._next = self._next, (self._next + 1) % len(self._slots)
        if self._events[slot] is not None:
            self._events[slot].synchronize()
        host = self._slots[slot][: target.numel()]
        piece = memoryview(host.numpy())
        _read_into(fd, piece, start)
        stream = self._streams.get(target.device)
        if stream is None:
            stream = self._streams[target.device] = torch.cuda.Stream(target.device)
        with torch.cuda.stream(stream):
            target.copy_(host, non_blocking=True)
            self._events[slot] = torch.cuda.Event()
            self._events[slot].record()
        yield piece

    def finish(self) -> None:
        """Wait until all data has arrived."""
        for stream in self._streams.values():
            stream.synchronize()


class _Lanes:
    """Threads that read, each through a separate lane."""

    def __init__(self, threads: int, device: Any) -> None:
        self._lane_bytes = 0 if device is None else _SLOTS * _PIECE_BYTES
        self._block = None if device is None else HostBlock(threads * self._lane_bytes, device, threads=threads)
        self._lanes: list[_Lane] = []
        self._lock = threading.Lock()
        self._local = threading.local()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="windlass-read")

    def __enter__(self) -> _Lanes:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        for lane in self._lanes:
            lane.finish()

    def run(self, work: Any, things: Sequence[Any]) -> list[Any]:
        """Run `work` on each element, with all threads."""
        return list(self._pool.map(work, things))

    def mine(self) -> _Lane:
        """Return the lane of the calling thread."""
        if not hasattr(self._local, "lane"):
            with self._lock:
                first = len(self._lanes) * self._lane_bytes
                slots = [
                    self._block.bytes[start : start + _PIECE_BYTES]
                    for start in range(first, first + self._lane_bytes, _PIECE_BYTES)
                    if self._block is not None
                ]
                self._local.lane = _Lane(slots)
                self._lanes.append(self._local.lane)
        lane: _Lane = self._local.lane
        return lane


def _read_into(fd: int, view: memoryview, offset: int) -> None:
    done = 0
    while done < len(view):
        count = os.preadv(fd, [view[done:]], offset + done)
        if count == 0:
            raise CorruptError("a file of the snapshot is shorter than its index says")
        done += count
