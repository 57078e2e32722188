"""Reading what pickle wrote without running it: plain values, tensors, arrays and torch's descriptions of them.

torch keeps its index of a snapshot as a pickle, and state dictionaries of loaders and schedulers may hold anything. A
file that only we could have written is read as it is; in every other one, whatever is not of this table is refused.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

from windlass.errors import WindlassError

_TABLE = {
    "builtins": {"set", "frozenset", "complex", "bytearray", "slice", "range"},
    "collections": {"OrderedDict", "deque", "defaultdict", "Counter"},
    "pathlib": {"PosixPath", "PurePosixPath"},
    "pathlib._local": {"PosixPath", "PurePosixPath"},
    "numpy": {"ndarray", "dtype"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy.core.multiarray": {"_reconstruct", "scalar"},
    "torch": {"Size", "device"},
    "torch._utils": {"_rebuild_tensor_v2"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
}


class ForeignCodeError(WindlassError):
    """A file that another user could have written needs more than plain values to be read."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        import torch

        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return lambda data: torch.load(io.BytesIO(data), weights_only=True)
        found = getattr(torch, name, None) if module == "torch" and name.isidentifier() else None
        if isinstance(found, torch.dtype):
            return found
        if name in _TABLE.get(module, ()):
            return super().find_class(module, name)
        raise ForeignCodeError(f"it wants to call {module}.{name}")


def load_plain(data: bytes) -> Any:
    """The value, where it is made of what the table names; else `ForeignCodeError`, and nothing of it was run."""
    return _PlainUnpickler(io.BytesIO(data)).load()


def foreign(path: object, why: str) -> ForeignCodeError:
    """What to tell a person about a snapshot that is not read."""
    return ForeignCodeError(
        f"{path} could have been written by another user and is not loaded: {why}",
        hint="if you trust it: make a copy of it that only you can write (cp -r, chmod -R go-w), and load that",
    )
