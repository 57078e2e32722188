"""Write one tensor as the bytes that `torch.save` writes, without copying its data.

`torch.distributed.checkpoint` stores each tensor as a separate zip archive. `torch.save` computes a checksum over it
and copies it several times. Here the archive is a head, the tensor's own memory, and a tail.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any, NamedTuple

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR64 = struct.Struct("<4sIQI")
_MAX32 = 0xFFFFFFFF
_ALIGN_BYTES = 64
_FOLDER = "archive"
HEAD_BYTES = 4096
"""The data of a tensor written here begins within this many bytes."""


class Framed(NamedTuple):
    """The three parts of an archive. Write `head`, `data`, `tail` in this order."""

    head: bytes
    data: memoryview
    tail: bytes


class _Records:
    """Replaces torch's zip writer and keeps the records that torch writes."""

    def __init__(self) -> None:
        self.small: list[tuple[str, bytes]] = []
        self.storages: list[tuple[str, Any]] = []

    def write_record(self, name: str, data: Any, size: int) -> None:
        if isinstance(data, (bytes, str)):
            self.small.append((name, data.encode() if isinstance(data, str) else data))
        else:
            self.storages.append((name, data))


def frame(tensor: Any) -> Framed | None:
    """Return the archive of a contiguous tensor on the CPU. None if this torch pickles tensors in another way."""
    import torch

    records = _Records()
    try:
        torch.serialization._save(tensor, records, pickle, 2, False)
    except (AttributeError, TypeError):
        return None
    if len(records.storages) != 1 or not tensor.is_contiguous():
        return None
    (name, storage) = records.storages[0]
    size = storage.nbytes()
    if size == 0 or size != tensor.numel() * tensor.element_size():
        return None
    small = [*records.small, ("version", b"3\n")]
    archive = _Archive()
    for record, content in small:
        archive.add(record, content)
    head = archive.data_head(name, size)
    if len(head) > HEAD_BYTES:
        return None
    data = memoryview(tensor.reshape(-1).view(torch.uint8).numpy())
    return Framed(head, data, archive.tail(len(head) + size))


def data_offset(head: bytes, size: int) -> int | None:
    """Return the offset of the data of `size` bytes in an archive that starts with `head`.

    None if windlass did not write the archive.
    """
    place = 0
    while place + _LOCAL.size <= len(head):
        magic, *_, length, _, name_size, extra_size = _LOCAL.unpack_from(head, place)
        if magic != b"PK\x03\x04":
            return None
        name = head[place + _LOCAL.size : place + _LOCAL.size + name_size]
        begin = place + _LOCAL.size + name_size + extra_size
        if name.startswith(f"{_FOLDER}/data/".encode()):
            known = length == size or (length == _MAX32 and size >= _MAX32)
            return begin if known and begin <= len(head) else None
        place = begin + length
    return None


class _Archive:
    """A zip archive without compression and without checksums, which torch does not read."""

    def __init__(self) -> None:
        self._bytes = b""
        self._central: list[bytes] = []

    def add(self, name: str, content: bytes) -> None:
        self._enter(name, len(content), align=False)
        self._bytes += content

    def data_head(self, name: str, size: int) -> bytes:
        """Return all bytes before the data of the last entry."""
        self._enter(name, size, align=True)
        return self._bytes

    def tail(self, end: int) -> bytes:
        """Return all bytes after the data. `end` is the offset at which they begin."""
        central = b"".join(self._central)
        count = len(self._central)
        if end < _MAX32:
            return central + _END.pack(b"PK\x05\x06", 0, 0, count, count, len(central), end, 0)
        end64 = _END64.pack(b"PK\x06\x06", _END64.size - 12, 45, 45, 0, 0, count, count, len(central), end)
        locator = _LOCATOR64.pack(b"PK\x06\x07", 0, end + len(central), 1)
        last = _END.pack(b"PK\x05\x06", 0, 0, count, count, len(central), _MAX32, 0)
        return central + end64 + locator + last

    def _enter(self, name: str, size: int, *, align: bool) -> None:
        path = f"{_FOLDER}/{name}".encode()
        large = size >= _MAX32
        shown = _MAX32 if large else size
        extra = struct.pack("<HHQQ", 1, 16, size, size) if large else b""
        start = len(self._bytes)
        self._central.append(
            _CENTRAL.pack(
                *(b"PK\x01\x02", 45, 45 if large else 20, 0, 0, 0, 0, 0, shown, shown),
                *(len(path), len(extra), 0, 0, 0, 0, start),
            )
            + path
            + extra
        )
        if align:
            unaligned = start + _LOCAL.size + len(path) + len(extra) + 4
            padding = -unaligned % _ALIGN_BYTES
            extra += struct.pack("<HH", 0x4246, padding) + b"Z" * padding
        version = 45 if large else 20
        header = _LOCAL.pack(b"PK\x03\x04", version, 0, 0, 0, 0, 0, shown, shown, len(path), len(extra))
        self._bytes += header + path + extra
