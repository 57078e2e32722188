"""Write snapshots with `torch.distributed.checkpoint`, and compute a SHA-256 of every file while writing it.

torch's planner and storage writer are called step by step, not through `async_save`. In `async_save`, a background
thread communicates with other ranks. If a rank dies meanwhile, that thread blocks in C++ and nothing can end it. A
mistake in the user's code then ends in an abort instead of a traceback. Here the ranks plan and commit on the main
thread. The background thread only writes this rank's files, and it can be cancelled.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import io
import math
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from windlass.errors import MachineError, WindlassError
from windlass.runtime.peers import Peers
from windlass.runtime.run import first_line
from windlass.runtime.staging import Staged, Stager
from windlass.runtime.store import FileEntry, disk_error, io_threads, open_closed
from windlass.runtime.tensor_file import frame

_PIECE_BYTES = 32 << 20
_FILE_BYTES = 256 << 20
"""A rank writes one file per thread, but at most one file for this many bytes."""
_VALUE_BYTES = 1 << 10
"""Approximate size of a value that is not a tensor. There may be thousands, and each takes time."""
_UNCHANGING = (bool, int, float, str, bytes, type(None))


class _DigestStream(io.RawIOBase):
    """A file for writing that computes a digest. `close_checked` raises the error of a failed write.

    If "no space left" is raised inside torch's C++ serializer, the message is unreadable or the process ends.
    """

    def __init__(self, path: Path, cancelled: threading.Event) -> None:
        super().__init__()
        self._cancelled = cancelled
        self._file = os.fdopen(open_closed(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb", buffering=1 << 16)
        self._digest = hashlib.sha256()
        self._size = 0
        self._error: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Write in pieces, between which a save can be cancelled.

        Pieces are large, because after each one this thread waits for the interpreter's lock, and training waits too.
        """
        view = memoryview(data).cast("B")
        self._size += len(view)
        for start in range(0, len(view), _PIECE_BYTES):
            if self._cancelled.is_set():
                self._error = self._error or InterruptedError(errno.EINTR, "the save was cancelled")
            if self._error is not None:
                break
            try:
                piece = view[start : start + _PIECE_BYTES]
                self._file.write(piece)
                self._digest.update(piece)
            except OSError as error:
                self._error = error
        return len(view)

    def tell(self) -> int:
        return self._size

    def fileno(self) -> int:
        self.flush()
        return self._file.fileno()

    def flush(self) -> None:
        if self._error is None and not self._file.closed:
            try:
                self._file.flush()
            except OSError as error:
                self._error = error

    def sync(self) -> None:
        """Sync the written data to the disk."""
        self.flush()
        if self._error is None:
            try:
                os.fsync(self._file.fileno())
            except OSError as error:
                self._error = error

    def close_checked(self, name: str) -> FileEntry:
        """Close the file, raise the stored error, and return the entry of the file."""
        self.flush()
        try:
            self._file.close()
        except OSError as error:
            self._error = self._error or error
        self.close()
        if self._error is not None:
            raise self._error
        return FileEntry(name=name, size_bytes=self._size, sha256=self._digest.hexdigest())


@dataclasses.dataclass(frozen=True, kw_only=True)
class WritePlan:
    """Which rank writes which items. All ranks make it once. It is valid while names and shapes stay the same."""

    local: Any
    mine: Any
    metadata: Any
    """On the main rank only."""


class ShardWriter:
    """One save of this rank's part of `state` into `path`: `plan` and `finish` with all ranks, `write` alone."""

    def __init__(self, path: Path, state: dict[str, Any]) -> None:
        from torch.distributed.checkpoint import FileSystemWriter

        self.path = path
        self.files: dict[str, FileEntry] = {}
        self.cancelled = threading.Event()
        self._storage = FileSystemWriter(path, sync_files=True, overwrite=True)
        self._storage.fs = _make_file_system(self.files, self.cancelled)
        self._planner = _make_planner()
        self._state = state
        self._plan: WritePlan | None = None
        self._values: dict[Any, Any] = {}
        self._staged: Staged | None = None
        self._numbers: dict[Any, int] = {}
        self.results: list[Any] = []

    def plan(self, peers: Peers, former: WritePlan | None) -> WritePlan:
        """Agree with all ranks on which rank writes which items. `former` is reused if nothing changed on any rank."""
        planner, storage = self._planner, self._storage
        planner.set_up_planner(self._state, storage.storage_meta(), peers.is_main)
        storage.set_up_storage_writer(peers.is_main)
        local = planner.create_local_plan()
        same = former is not None and former.local == local
        if former is not None and peers.largest([int(not same)])[0] == 0:
            self._plan = former
            return former
        parts = peers.collect(local)
        answers: list[Any] = []
        metadata: Any = None
        if peers.is_main:
            failed: WindlassError | None = None
            try:
                plans, metadata = planner.create_global_plan(parts)
                answers = [(plan, None) for plan in storage.prepare_global_plan(plans)]
            except Exception as error:  # for any error, because the other ranks wait for a result
                failed = MachineError(
                    f"torch cannot plan the snapshot: {type(error).__name__}: {first_line(error)}",
                    hint="check that torch.distributed.checkpoint can save every value of the state",
                )
            if failed is not None:
                answers = [(None, failed)] * peers.world_size
        mine, failed = peers.deal(answers)
        if failed is not None:
            raise failed
        self._plan = WritePlan(local=local, mine=planner.finish_plan(mine), metadata=metadata)
        return self._plan

    def tensors(self) -> list[Any]:
        """Return the tensors that this rank writes, with their current values."""
        return [self._planner.resolve_data(item) for item in self._items(tensors=True)]

    def stage(self, stager: Stager) -> bool:
        """Copy the data of this rank, so that training may change it.

        Returns False if the node has no memory for it.
        """
        staged = stager.stage(self.tensors())
        if staged is None:
            return False
        self._staged = staged
        self._numbers = {item.index: number for number, item in enumerate(self._items(tensors=True))}
        for item in self._items(tensors=False):
            if not isinstance(self._planner.lookup_object(item.index), _UNCHANGING):
                self._values[item.index] = self._planner.resolve_data(item)
        return True

    def _items(self, *, tensors: bool) -> list[Any]:
        assert self._plan is not None
        return [item for item in self._plan.mine.items if (item.tensor_data is not None) == tensors]

    def write(self) -> None:
        """Write this rank's files. No other rank is needed."""
        assert self._plan is not None
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.results = self._write_files()
        except OSError as error:
            raise disk_error(error, self.path, "write") from error
        except RuntimeError as error:
            raise MachineError(
                f"cannot write {self.path}: {first_line(error)}",
                hint="check free space and write access; the last complete snapshot still exists",
            ) from error

    def _write_files(self) -> list[Any]:
        """Write all items, in one thread per file."""
        assert self._plan is not None
        files = shared_out(self._plan.mine.items)
        prefix = self._plan.mine.storage_data.prefix
        with ThreadPoolExecutor(len(files), thread_name_prefix="windlass-write") as pool:
            work = [pool.submit(self._write_file, f"{prefix}{n}.distcp", items) for n, items in enumerate(files)]
            return [result for written in work for result in written.result()]

    def _write_file(self, name: str, items: Sequence[Any]) -> list[Any]:
        from torch.distributed.checkpoint.filesystem import _StorageInfo
        from torch.distributed.checkpoint.storage import WriteResult

        results = []
        with self._storage.fs.create_stream(self.path / name, "wb") as stream:
            for item in items:
                start = stream.tell()
                _write_item(stream, self._data_of(item))
                size = stream.tell() - start
                place = _StorageInfo(name, start, size)
                results.append(WriteResult(index=item.index, size_in_bytes=size, storage_data=place))
            stream.sync()
        return results

    def _data_of(self, item: Any) -> Any:
        """Return the copy of a tensor or a value if one exists, otherwise the original."""
        if self._staged is not None and item.index in self._numbers:
            number = self._numbers[item.index]
            self._staged.wait(number)
            return self._staged.tensors[number]
        data = self._values.get(item.index)
        return self._planner.resolve_data(item) if data is None else data

    def cancel(self) -> None:
        """Make a running `write` end soon, with an error."""
        self.cancelled.set()

    def finish(self, results: list[list[Any]]) -> FileEntry:
        """Write torch's own index of all shards. Called on the main rank, after all ranks have written."""
        assert self._plan is not None
        before = set(self.files)
        self._storage.finish(self._plan.metadata, results)
        return next(entry for name, entry in self.files.items() if name not in before)


def shared_out(items: Sequence[Any]) -> list[list[Any]]:
    """Return the items for each file: as many files as threads, of about the same size. At least one file."""
    sizes = [_size_of(item) for item in items]
    count = max(1, min(io_threads(), sum(sizes) // _FILE_BYTES))
    files: list[list[Any]] = [[] for _ in range(count)]
    filled = [0] * count
    for size, _, item in sorted(
        zip(sizes, range(len(items)), items, strict=True), key=lambda known: (-known[0], known[1])
    ):
        smallest = filled.index(min(filled))
        files[smallest].append(item)
        filled[smallest] += size
    return files


def _size_of(item: Any) -> int:
    if item.tensor_data is None:
        return _VALUE_BYTES
    return int(math.prod(item.tensor_data.chunk.sizes) * item.tensor_data.properties.dtype.itemsize)


def _write_item(stream: _DigestStream, data: Any) -> None:
    """Write a tensor in the format of `torch.save`, or the bytes of another value."""
    import torch

    if isinstance(data, io.BytesIO):
        stream.write(data.getbuffer())
        return
    tensor = data.detach().cpu().contiguous()
    if tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size():
        tensor = tensor.clone()
    framed = frame(tensor)
    if framed is None:
        torch.save(tensor, stream)
        return
    for part in framed:
        stream.write(part)


def first_failure(problems: list[WindlassError | None]) -> MachineError | None:
    """Return the error of the lowest rank that has one, with its number."""
    for rank, problem in enumerate(problems):
        if problem is not None:
            return MachineError(f"rank {rank}: {problem.message}", hint=problem.hint)
    return None


def _make_file_system(files: dict[str, FileEntry], cancelled: threading.Event) -> Any:
    """Return torch's interface to the file system, which adds every written file to `files`."""
    from torch.distributed.checkpoint.filesystem import FileSystem

    class DigestFileSystem(FileSystem):  # type: ignore[misc]
        @contextmanager
        def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
            target = Path(path)
            if mode != "wb":
                with target.open(mode) as plain:
                    yield plain
                return
            stream = _DigestStream(target, cancelled)
            try:
                yield stream
            finally:
                files[target.name] = stream.close_checked(target.name)

        def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
            Path(path).rename(new_path)
            entry = files.pop(Path(path).name)
            name = Path(new_path).name
            files[name] = FileEntry(name=name, size_bytes=entry.size_bytes, sha256=entry.sha256)

    return DigestFileSystem()


def _make_planner() -> Any:
    """Return torch's planner, which distributes replicated tensors over the ranks, except for buffers.

    Parameters are equal on all replicas. Buffers are not: each rank has its own batch statistics. The first rank's
    model counts, because DDP broadcasts from it.
    """
    from torch.distributed.checkpoint import DefaultSavePlanner

    class SavePlanner(DefaultSavePlanner):  # type: ignore[misc]
        def create_global_plan(self, all_plans: list[Any]) -> Any:
            seen: set[Any] = set()
            kept = []
            for plan in all_plans:
                items = [i for i in plan.items if not (i.index.fqn.startswith("buffer/") and i.index in seen)]
                seen.update(i.index for i in items)
                kept.append(dataclasses.replace(plan, items=items))
            return super().create_global_plan(kept)

    return SavePlanner()
