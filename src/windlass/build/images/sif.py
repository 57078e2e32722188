"""Where a SIF file has its root file system. Reads the header and the descriptors, every number within bounds."""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from windlass.errors import UsageError
from windlass.node.sys.reading import open_plain

MAGIC_AT, MAGIC = 32, b"SIF_MAGIC\0"
_HEADER = struct.Struct("<32s10s3s3s16s8q")
_DESCRIPTOR = struct.Struct("<i?IIIqqqqqqq128s384s")
_PARTITION, _SQUASHFS, _PRIMARY = 0x4004, 1, 2
_MAX_DESCRIPTORS = 1024


class Partition(NamedTuple):
    """A file system in the file."""

    offset: int
    size: int


def is_sif(head: bytes) -> bool:
    return head[MAGIC_AT : MAGIC_AT + len(MAGIC)] == MAGIC


def sif_partition(path: str) -> Partition:
    """The primary partition, which must be squashfs. Raises `UsageError` for a damaged file or another file system."""
    with open_plain(path, follow=True) as stream:
        size = os.fstat(stream.fileno()).st_size
        head = stream.read(_HEADER.size)
        if len(head) < _HEADER.size or not is_sif(head):
            raise UsageError(f"{path}: a damaged SIF file: its header is cut off", hint="copy or pull it again")
        fields = _HEADER.unpack(head)
        total, start = fields[8], fields[9]
        for number in range(max(0, min(total, _MAX_DESCRIPTORS))):
            stream.seek(min(max(0, start), size) + number * _DESCRIPTOR.size)
            raw = stream.read(_DESCRIPTOR.size)
            if len(raw) < _DESCRIPTOR.size:
                break
            kind, used, _, _, _, offset, length, *_, extra = _DESCRIPTOR.unpack(raw)
            file_system, part = struct.unpack_from("<ii", extra)
            if kind != _PARTITION or not used or part != _PRIMARY:
                continue
            if file_system != _SQUASHFS:
                raise UsageError(
                    f"{path}: its file system is not squashfs (encrypted, or ext3)",
                    hint="look at a sandbox instead: apptainer build --sandbox DIR IMAGE",
                )
            if offset < 0 or length <= 0 or offset + length > size:
                raise UsageError(
                    f"{path}: a truncated SIF file: its file system ends at byte {offset + length}, the file at {size}",
                    hint="copy or pull it again",
                )
            return Partition(offset, length)
    raise UsageError(f"{path}: a SIF file without a root file system", hint="copy or pull it again")
