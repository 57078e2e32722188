"""`torch.distributed.checkpoint` reading a folder in which other users may write: nothing of theirs is run.

Every file is judged by what was opened, not by its name: a file that only we could have written is read as torch does,
any other one with `weights_only` and our table of plain values (see `unpickle`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from windlass.node.sys.folders import is_own
from windlass.node.sys.reading import UnreadableError, open_plain
from windlass.runtime.store import CorruptError, io_threads
from windlass.runtime.tensor_file import HEAD_BYTES, data_offset
from windlass.runtime.unpickle import ForeignCodeError, foreign, load_plain

_MAX_INDEX = 2 << 30
_READ_BYTES = 1 << 30
"""Linux reads less than 2 GiB in one call."""


def make_reader(snapshot: Path) -> Any:
    """torch's reader of one snapshot. `unpickle(bytes)` on it reads a value that came out of these files."""
    from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader

    class OwnFileSystem(FileSystem):  # type: ignore[misc]
        all_own = True
        """Whether every file that was opened so far could only have been written by us."""

        @contextlib.contextmanager
        def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
            target = Path(path)
            if mode != "rb" or target.parent != snapshot:
                raise CorruptError(f"{snapshot}: its index leads out of the snapshot, to {target}")
            try:
                stream = open_plain(target)
            except UnreadableError as error:
                raise CorruptError(str(error)) from None
            with stream:
                if not is_own(os.fstat(stream.fileno())):
                    self.all_own = False  # never set back: several threads open files
                yield stream

    class Reader(FileSystemReader):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(snapshot)
            self.fs = OwnFileSystem()
            self._dtypes: dict[str, Any] = {}

        def read_metadata(self, *_: Any, **__: Any) -> Any:
            from torch.distributed.checkpoint.metadata import StorageMeta

            with self.fs.create_stream(snapshot / ".metadata", "rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                if size > _MAX_INDEX:
                    raise CorruptError(f"{snapshot}: its index has {size} bytes, more than {_MAX_INDEX}")
                metadata = self.unpickle(stream.read(size))
            if getattr(metadata, "storage_meta", None) is None and hasattr(metadata, "storage_meta"):
                metadata.storage_meta = StorageMeta()
            self._dtypes = {
                name: meta.properties.dtype
                for name, meta in metadata.state_dict_metadata.items()
                if hasattr(meta, "properties")
            }
            if hasattr(self, "load_id") and getattr(metadata, "storage_meta", None) is not None:
                metadata.storage_meta.load_id = self.load_id
            return metadata

        def stored_dtype(self, index: Any) -> Any:
            return self._dtypes.get(index.fqn)

        def read_data(self, plan: Any, planner: Any) -> Any:
            """Read tensors with several threads, straight into their place where the file has them as they are."""
            from torch.futures import Future

            slow = read_tensors(snapshot, plan.items, self, planner)
            if slow:
                super().read_data(dataclasses.replace(plan, items=slow), planner)
            done: Any = Future()
            done.set_result(None)
            return done

        def unpickle(self, data: bytes) -> Any:
            if self.fs.all_own:
                return pickle.loads(data)
            try:
                return load_plain(data)
            except ForeignCodeError as error:
                raise foreign(snapshot, error.message) from None

        def unpickle_file(self, stream: Any) -> Any:
            """A value that `torch.save` wrote."""
            import torch

            try:
                return torch.load(stream, weights_only=not self.fs.all_own)
            except pickle.UnpicklingError:
                raise foreign(snapshot, "it holds more than tensors and plain values") from None

    return Reader()


def read_tensors(snapshot: Path, items: Sequence[Any], reader: Any, planner: Any) -> list[Any]:
    """Read whole tensors that lie in the files as plain data. Returns the items that need torch's own reader."""
    slow: list[Any] = []
    fast: list[tuple[Any, Any]] = []
    for item in items:
        target = None if item.type.name == "BYTE_IO" else planner.resolve_tensor(item).detach()
        plain = target is not None and target.is_contiguous() and target.numel() > 0 and not any(item.storage_offsets)
        (fast.append((item, target)) if plain else slow.append(item))
    with ThreadPoolExecutor(io_threads(), thread_name_prefix="windlass-read") as pool:
        for (item, target), done in zip(
            fast, pool.map(lambda job: _read_one(snapshot, reader, *job), fast), strict=True
        ):
            if done:
                planner.commit_tensor(item, target)
            else:
                slow.append(item)
    return slow


def _read_one(snapshot: Path, reader: Any, item: Any, target: Any) -> bool:
    """Fill `target` from the file. False where the file holds the tensor in another form or another size."""
    import torch

    place = reader.storage_data[item.storage_index]
    size = target.numel() * target.element_size()
    stored = reader.stored_dtype(item.storage_index)
    if place.transform_descriptors or stored != target.dtype:
        return False
    with reader.fs.create_stream(snapshot / place.relative_path, "rb") as stream:
        head = os.pread(stream.fileno(), min(HEAD_BYTES, place.length), place.offset)
        start = data_offset(head, size)
        if start is None or start + size > place.length:
            return False
        flat = target.view(-1).view(torch.uint8)
        if target.device.type == "cpu":
            _read_into(stream.fileno(), memoryview(flat.numpy()), place.offset + start)
            return True
        host = torch.empty(size, dtype=torch.uint8)
        _read_into(stream.fileno(), memoryview(host.numpy()), place.offset + start)
        flat.copy_(host)
    return True


def _read_into(fd: int, view: memoryview, offset: int) -> None:
    done = 0
    while done < len(view):
        count = os.preadv(fd, [view[done : done + _READ_BYTES]], offset + done)
        if count == 0:
            raise CorruptError("a file of the snapshot became shorter while it was read")
        done += count


def make_load_planner(reader: Any) -> Any:
    """torch's planner, which leaves the reading of values that are no tensors to our reader."""
    from torch.distributed.checkpoint import DefaultLoadPlanner

    class LoadPlanner(DefaultLoadPlanner):  # type: ignore[misc]
        def load_bytes(self, read_item: Any, value: Any) -> None:
            from torch.distributed.checkpoint._nested_dict import set_element

            found = reader.unpickle_file(value)
            name = read_item.dest_index.fqn
            if self.flatten_state_dict:
                set_element(self.original_state_dict, self.mappings[name], found)
            else:
                self.state_dict[name] = found

    return LoadPlanner()
