"""Read pickles without running their code: plain values, tensors, arrays and torch's descriptions of them.

torch stores its index of a snapshot as a pickle, and state dictionaries of loaders and schedulers may contain any
object. A file that only this user could have written is read normally. In every other file, names outside of this table
are refused.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Sized
from typing import Any

from windlass.errors import WindlassError

_TABLE = {
    "builtins": {"complex", "slice", "range"},
    "pathlib": {"PosixPath", "PurePosixPath"},
    "pathlib._local": {"PosixPath", "PurePosixPath"},
    "torch": {"device"},
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


_COPYING = {
    "builtins": {"set", "frozenset", "bytearray"},
    "collections": {"OrderedDict", "deque", "defaultdict", "Counter"},
    "torch": {"Size"},
}
"""Classes that copy their arguments. A few bytes of a pickle can request repeated copies of everything before them."""
_FREE_BYTES = 1 << 20
_ARRAY_KINDS = "biufcSU"


class ForeignCodeError(WindlassError):
    """A file that another user could have written needs more than plain values to be read."""


class _CopyBudget:
    """The bytes that the values of one pickle may still copy: about as many as the pickle has."""

    def __init__(self, size_bytes: int) -> None:
        self._left = size_bytes + _FREE_BYTES

    def spend(self, amount: int) -> None:
        self._left -= amount
        if self._left < 0:
            raise ForeignCodeError("its values need far more memory than the file")


class _Copying:
    """Calls a class of `_COPYING` within the budget."""

    def __init__(self, made: Any, budget: _CopyBudget) -> None:
        self._made, self._budget = made, budget

    def __call__(self, *given: Any) -> Any:
        given = tuple(one._made if isinstance(one, _Copying) else one for one in given)  # a defaultdict's factory
        for one in given:
            if isinstance(one, range) or (self._made is bytearray and isinstance(one, int)):
                raise ForeignCodeError(f"it makes a {self._made.__name__} of {one!r}")
            self._budget.spend(len(one) if isinstance(one, Sized) else 1)
        return self._made(*given)


class _DType:
    """The type of an array, as its pickle describes it. numpy's own code trusts every number in it."""

    def __init__(self, code: object, *_: object) -> None:
        import numpy

        if not isinstance(code, str) or len(code) > 12:
            raise ForeignCodeError("it describes an array in a form that is not supported")
        self.dtype, self.used = numpy.dtype(code), False
        if self.dtype.kind not in _ARRAY_KINDS:
            raise ForeignCodeError(f"it holds an array of {code[:12]!r}, not of numbers or text")

    def __setstate__(self, state: object) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else None
        if not isinstance(order, str) or order not in ("<", ">", "=", "|"):
            raise ForeignCodeError("it describes an array in a form that is not supported")
        self.dtype = self.dtype.newbyteorder(order)  # type: ignore[arg-type]


class _ArrayName:
    """Replaces `numpy.ndarray` in a pickle, which only names it."""


def _array_class(budget: _CopyBudget) -> Any:
    import numpy

    class PlainArray(numpy.ndarray):
        """An array whose description was checked against its bytes."""

        def __setstate__(self, state: Any) -> None:
            _, shape, kind, fortran, raw = state
            if not isinstance(kind, _DType) or not isinstance(raw, bytes) or not isinstance(shape, tuple):
                raise ForeignCodeError("it holds an array of other things than numbers or text")
            if not all(isinstance(n, int) and n >= 0 for n in shape):
                raise ForeignCodeError("an array in it has a shape that is none")
            if math.prod(shape) * kind.dtype.itemsize != len(raw):
                raise ForeignCodeError("an array in it has another size than its bytes")
            budget.spend(len(raw))
            kind.used = True
            super().__setstate__((1, shape, kind.dtype, bool(fortran), raw))  # type: ignore[arg-type]

        def __reduce_ex__(self, protocol: Any) -> Any:
            return self.view(numpy.ndarray).__reduce_ex__(protocol)

    def reconstruct(name: object, *_: object) -> Any:
        if name is not _ArrayName:
            raise ForeignCodeError("it makes an array of another class")
        return PlainArray((0,), "b")

    return reconstruct


def _scalar(kind: object, raw: object) -> Any:
    import numpy

    if not isinstance(kind, _DType) or not isinstance(raw, bytes) or len(raw) != kind.dtype.itemsize:
        raise ForeignCodeError("a number in it has another size than its bytes")
    kind.used = True
    return numpy.frombuffer(raw, kind.dtype)[0] if raw else kind.dtype.type()


class _PlainUnpickler(pickle.Unpickler):
    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._budget = _CopyBudget(len(data))
        self._dtypes: list[_DType] = []

    def load(self) -> Any:
        found = super().load()
        if not all(kind.used for kind in self._dtypes):
            raise ForeignCodeError("it holds the type of an array without the array")
        return found

    def find_class(self, module: str, name: str) -> Any:
        import torch

        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return self._tensor
        found = getattr(torch, name, None) if module == "torch" and name.isidentifier() else None
        if isinstance(found, torch.dtype):
            return found
        if module in ("numpy._core.multiarray", "numpy.core.multiarray") and name in ("_reconstruct", "scalar"):
            return _array_class(self._budget) if name == "_reconstruct" else _scalar
        if module == "numpy" and name in ("ndarray", "dtype"):
            return _ArrayName if name == "ndarray" else self._dtype
        if name in _COPYING.get(module, ()):
            return _Copying(super().find_class(module, name), self._budget)
        if name in _TABLE.get(module, ()):
            return super().find_class(module, name)
        raise ForeignCodeError(f"it would call {module}.{name}")

    def _dtype(self, *given: Any) -> _DType:
        self._dtypes.append(_DType(*given))
        return self._dtypes[-1]

    def _tensor(self, data: bytes) -> Any:
        import torch

        self._budget.spend(len(data))
        return torch.load(io.BytesIO(data), weights_only=True)


def load_plain(data: bytes) -> Any:
    """Return the value if the table allows all its parts.

    Otherwise raise `ForeignCodeError` without running any of it.
    """
    try:
        return _PlainUnpickler(data).load()
    except (MemoryError, OverflowError) as error:
        raise ForeignCodeError(f"a value in it is too large: {error}") from None


def foreign(path: object, why: str) -> ForeignCodeError:
    """Return the error for a snapshot that is not read, for people."""
    return ForeignCodeError(
        f"{path} could have been written by another user and is not loaded: {why}",
        hint="if you trust it, copy it so that only you can write it (cp -r, chmod -R go-w), and load the copy",
    )
