"""Read snapshots with `torch.distributed.checkpoint` without running code of other users.

Other users may write into the folder. Every file is judged by the opened file, not by its name. A file that only this
user could have written is read as torch reads it. Any other file is read with `weights_only` and the table of plain
values (see `unpickle`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from windlass.errors import MachineError, WindlassError
from windlass.node.sys.folders import is_own
from windlass.node.sys.reading import UnreadableError, open_plain
from windlass.runtime.one_pass import read_in_one_pass
from windlass.runtime.run import first_line
from windlass.runtime.store import INDEX, CorruptError, FileEntry, disk_error
from windlass.runtime.unpickle import ForeignCodeError, foreign, load_plain

_MAX_INDEX = 2 << 30
Agree = Callable[[list[str], WindlassError | None], None]
Fetch = Callable[[set[str]], None]


class SnapshotFiles:
    """The files of one snapshot, and how far their content is trusted."""

    def __init__(self, snapshot: Path) -> None:
        self.snapshot = snapshot
        self.all_own = True
        """Whether only this user could have written every file that was opened so far."""

    @contextlib.contextmanager
    def open(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        target = Path(path)
        if mode != "rb" or target.parent != self.snapshot:
            raise CorruptError(f"{self.snapshot}: its index refers to {target}, outside the snapshot")
        try:
            stream = open_plain(target)
        except UnreadableError as error:
            raise CorruptError(str(error)) from None
        with stream:
            if not is_own(os.fstat(stream.fileno())):
                self.all_own = False  # never reset, because several threads open files
            yield stream

    def read_index(self) -> Any:
        """Return torch's index: the location of each value."""
        with self.open(self.snapshot / INDEX, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > _MAX_INDEX:
                raise CorruptError(f"{self.snapshot}: its index has {size} bytes, more than {_MAX_INDEX}")
            return self.unpickle(stream.read(size))

    def unpickle(self, data: bytes) -> Any:
        if self.all_own:
            return pickle.loads(data)
        try:
            return load_plain(data)
        except ForeignCodeError as error:
            raise foreign(self.snapshot, error.message) from None

    def unpickle_file(self, stream: Any) -> Any:
        """Return a value that `torch.save` wrote."""
        import torch

        try:
            return torch.load(stream, weights_only=not self.all_own)
        except pickle.UnpicklingError:
            raise foreign(self.snapshot, "it contains more than tensors and plain values") from None


def make_reader(snapshot: Path, entries: Sequence[FileEntry], agree: Agree, fetch: Fetch = lambda _: None) -> Any:
    """Return torch's reader of one snapshot. Its `unpickle(bytes)` reads a value from these files.

    `entries` are the files that this rank checks while it reads them. `agree` sends the problems of files and errors of
    this rank to all ranks, and raises on every rank if there are any. Before it, no value is unpickled. `fetch` gets
    the named files onto this node.
    """
    from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader
    from torch.distributed.checkpoint.metadata import StorageMeta

    files = SnapshotFiles(snapshot)

    class OwnFileSystem(FileSystem):  # type: ignore[misc]
        def create_stream(self, path: str | os.PathLike[str], mode: str) -> Any:
            return files.open(path, mode)

    class Reader(FileSystemReader):  # type: ignore[misc]
        unpickle = staticmethod(files.unpickle)
        unpickle_file = staticmethod(files.unpickle_file)

        def __init__(self) -> None:
            super().__init__(snapshot)
            self.fs = OwnFileSystem()
            self.files = files
            self._dtypes: dict[str, Any] = {}

        def read_metadata(self, *_: Any, **__: Any) -> Any:
            metadata = files.read_index()
            if getattr(metadata, "storage_meta", None) is None and hasattr(metadata, "storage_meta"):
                metadata.storage_meta = StorageMeta()
            found = metadata.state_dict_metadata.items()
            self._dtypes = {name: meta.properties.dtype for name, meta in found if hasattr(meta, "properties")}
            if hasattr(self, "load_id") and getattr(metadata, "storage_meta", None) is not None:
                metadata.storage_meta.load_id = self.load_id
            return metadata

        def stored_dtype(self, index: Any) -> Any:
            return self._dtypes.get(index.fqn)

        def read_data(self, plan: Any, planner: Any) -> Any:
            """Check the files and load tensors in one pass, then let torch read the rest."""
            from torch.futures import Future

            problems, slow, fault = _try_one_pass(snapshot, plan.items, entries, self, planner, fetch)
            agree(problems, fault)
            if slow:
                super().read_data(dataclasses.replace(plan, items=slow), planner)
            done: Any = Future()
            done.set_result(None)
            return done

    return Reader()


def _try_one_pass(
    snapshot: Path, items: Sequence[Any], entries: Sequence[FileEntry], reader: Any, planner: Any, fetch: Fetch
) -> tuple[list[str], list[Any], WindlassError | None]:
    """Return the result of `read_in_one_pass` and its error. The other ranks wait for a result in any case."""
    try:
        try:
            fetch({reader.storage_data[item.storage_index].relative_path for item in items} | {e.name for e in entries})
        except CorruptError as error:
            return [error.message], [], None
        return *read_in_one_pass(snapshot, items, entries, reader, planner), None
    except WindlassError as error:
        return [], [], error
    except OSError as error:
        return [], [], disk_error(error, snapshot, "read")
    except Exception as error:
        hint = "use the torch that wrote it (see MANIFEST.json) or a newer one"
        text = f"cannot load {snapshot}: {type(error).__name__}: {first_line(error)}"
        return [], [], MachineError(text, hint=hint)


def make_load_planner(reader: Any) -> Any:
    """Return torch's planner, changed so that our reader reads the values that are not tensors."""
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
