"""`torch.distributed.checkpoint` writing into a folder, with a SHA-256 of every file made on the way to the disk.

The digest is of the bytes that were meant, not of what a later read gives back. torch is imported here on first use.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from windlass.errors import MachineError
from windlass.runtime.run import first_line
from windlass.runtime.store import FileEntry, disk_error


class _DigestStream(io.RawIOBase):
    """A file for writing that digests what passes. A failed write is kept and raised by `close_checked`:

    raised inside torch's C++ serializer, "no space left" turns into an unreadable message or ends the process.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("wb", buffering=1 << 20)
        self._digest = hashlib.sha256()
        self._size = 0
        self._error: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._size += len(view)
        if self._error is None:
            try:
                self._file.write(view)
                self._digest.update(view)
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

    def close_checked(self, name: str) -> FileEntry:
        """Close, raise what went wrong, and say what was written."""
        self.flush()
        try:
            self._file.close()
        except OSError as error:
            self._error = self._error or error
        self.close()
        if self._error is not None:
            raise self._error
        return FileEntry(name=name, size_bytes=self._size, sha256=self._digest.hexdigest())


def make_writer(path: Path) -> tuple[Any, dict[str, FileEntry]]:
    """A storage writer for `torch.distributed.checkpoint` and the table of files it fills."""
    from torch.distributed.checkpoint import FileSystemWriter
    from torch.distributed.checkpoint.filesystem import FileSystem

    files: dict[str, FileEntry] = {}

    class DigestFileSystem(FileSystem):  # type: ignore[misc]
        @contextmanager
        def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
            target = Path(path)
            if mode != "wb":
                with target.open(mode) as plain:
                    yield plain
                return
            stream = _DigestStream(target)
            try:
                yield stream
            finally:
                files[target.name] = stream.close_checked(target.name)

        def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
            Path(path).rename(new_path)
            entry = files.pop(Path(path).name)
            name = Path(new_path).name
            files[name] = FileEntry(name=name, size_bytes=entry.size_bytes, sha256=entry.sha256)

    writer = FileSystemWriter(path, sync_files=True, overwrite=True)
    writer.fs = DigestFileSystem()
    return writer, files


def write_shards(state: dict[str, Any], path: Path, group: Any, *, alone: bool) -> tuple[FileEntry, ...]:
    """Write this rank's part of `state` into `path`; all ranks call it. Returns the files this rank wrote.

    A failure of any rank raises `MachineError` on every rank and names the first one that failed.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    if alone:
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # meant so, and said at every save
    writer, files = make_writer(path)
    try:
        dcp.save(state, storage_writer=writer, planner=_make_planner(), process_group=group, no_dist=alone)
    except CheckpointException as error:
        raise _explain(error, path) from error
    return tuple(files.values())


def _make_planner() -> Any:
    """torch's planner, which spreads replicated tensors over the ranks, except for buffers.

    Parameters are equal on all replicas, buffers are not: each rank has its own batch statistics, and the model that
    counts (the one DDP broadcasts from) is the first rank's.
    """
    from torch.distributed.checkpoint import DefaultSavePlanner

    class Planner(DefaultSavePlanner):  # type: ignore[misc]
        def create_global_plan(self, all_plans: list[Any]) -> Any:
            seen: set[Any] = set()
            kept = []
            for plan in all_plans:
                items = [i for i in plan.items if not (i.index.fqn.startswith("buffer/") and i.index in seen)]
                seen.update(i.index for i in items)
                kept.append(dataclasses.replace(plan, items=items))
            return super().create_global_plan(kept)

    return Planner()


def _explain(error: Any, path: Path) -> MachineError:
    """The first rank's own error out of torch's bundle of tracebacks."""
    rank, (cause, _) = min(error.failures.items())
    while cause is not None and not isinstance(cause, OSError) and cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(cause, OSError):
        known = disk_error(cause, path, "write")
        return MachineError(f"rank {rank}: {known.message}", hint=known.hint)
    return MachineError(f"rank {rank}: cannot write {path}: {type(cause).__name__}: {first_line(cause)}")
