"""`torch.distributed.checkpoint` reading a folder in which other users may write: nothing of theirs is run.

Every file is judged by what was opened, not by its name: a file that only we could have written is read as torch does,
any other one with `weights_only` and our table of plain values (see `unpickle`).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from windlass.node.sys.folders import is_own
from windlass.runtime.store import CorruptError
from windlass.runtime.unpickle import ForeignCodeError, foreign, load_plain


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
            opened = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(opened, "rb") as stream:
                status = os.fstat(opened)
                if not stat.S_ISREG(status.st_mode):
                    raise CorruptError(f"{target} is not a plain file")
                self.all_own = self.all_own and is_own(status)
                yield stream

    class Reader(FileSystemReader):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(snapshot)
            self.fs = OwnFileSystem()

        def read_metadata(self, *_: Any, **__: Any) -> Any:
            from torch.distributed.checkpoint.metadata import StorageMeta

            with self.fs.create_stream(snapshot / ".metadata", "rb") as stream:
                metadata = self.unpickle(stream.read())
            if getattr(metadata, "storage_meta", None) is None and hasattr(metadata, "storage_meta"):
                metadata.storage_meta = StorageMeta()
            if hasattr(self, "load_id") and getattr(metadata, "storage_meta", None) is not None:
                metadata.storage_meta.load_id = self.load_id
            return metadata

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


def make_load_planner(reader: Any) -> Any:
    """torch's planner, which leaves the reading of values that are no tensors to our reader."""
    from torch.distributed.checkpoint import DefaultLoadPlanner

    class Planner(DefaultLoadPlanner):  # type: ignore[misc]
        def load_bytes(self, read_item: Any, value: Any) -> None:
            from torch.distributed.checkpoint._nested_dict import set_element

            found = reader.unpickle_file(value)
            name = read_item.dest_index.fqn
            if self.flatten_state_dict:
                set_element(self.original_state_dict, self.mappings[name], found)
            else:
                self.state_dict[name] = found

    return Planner()
