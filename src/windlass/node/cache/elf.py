"""Shared libraries: which bytes of one the loader reads whenever it loads it, and which other libraries it needs.

The loader relocates a library before it runs a line of it: it reads the relocations, symbols and strings from end to
end and writes the whole of the data. Nothing of that depends on the program, so it can be fetched before it asks. Pure:
bytes in, ranges out; a file that is not what it says gives none.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

_HEAD = struct.Struct("<4sBB10xHH12xQ14xHH")
_SEGMENT = struct.Struct("<IIQQQQ16x")
_DYNAMIC = struct.Struct("<qQ")
_LOAD, _DYNAMIC_SEGMENT, _RELRO = 1, 2, 0x6474E552
_WRITABLE = 2
_NEEDED, _HASH, _STRTAB, _SYMTAB, _RELA, _RELASZ, _STRSZ, _INIT, _RPATH = 1, 4, 5, 6, 7, 8, 10, 12, 15
_JMPREL, _PLTRELSZ, _RUNPATH, _GNU_HASH, _VERSYM, _VERNEED = 23, 2, 29, 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFE
_TABLES = {_STRTAB: _STRSZ, _RELA: _RELASZ, _JMPREL: _PLTRELSZ}
_UNSIZED = (_HASH, _SYMTAB, _GNU_HASH, _VERSYM, _VERNEED)
_RELOCATION_BYTES, _JUMP_BYTES = 24, 16
_MAX_SEGMENTS = 64
_MAX_NEEDED = 64
_MAX_TEXT = 4096
_MAX_DATA_BYTES = 8 << 20
_BEHIND_BYTES = 256 << 10
_MAX_UNSIZED_BYTES = 8 << 20
HEAD_BYTES = 4096
"""The head and the table of segments lie in these first bytes, or the file is left to demand."""

Range = tuple[int, int]
"""Offset and length."""


class Segments(NamedTuple):
    """Parts of the file by where they lie in memory."""

    loads: tuple[tuple[int, int, int, bool], ...]
    """Offset, address, bytes in the file, and whether the program writes there."""
    dynamic: Range
    relocated: Range
    """The part of the data that is read-only once it is relocated; what is written later stands behind it."""


class Loading(NamedTuple):
    """What loading a library will read."""

    tables: tuple[Range, ...]
    needed: tuple[int, ...]
    search: tuple[int, ...]
    strings: Range


def parse_segments(head: bytes) -> Segments | None:
    """From the first `HEAD_BYTES` of a file; None where it is no 64-bit little-endian library."""
    if len(head) < _HEAD.size:
        return None
    magic, bits, order, kind, _, table, size, count = _HEAD.unpack_from(head)
    if magic != b"\x7fELF" or bits != 2 or order != 1 or kind not in (2, 3) or size < _SEGMENT.size:
        return None
    if count > _MAX_SEGMENTS or table + size * count > len(head):
        return None
    loads, dynamic, relocated = [], (0, 0), (0, 0)
    for index in range(count):
        kind, flags, offset, address, _, length = _SEGMENT.unpack_from(head, table + size * index)
        if kind == _LOAD:
            loads.append((offset, address, length, bool(flags & _WRITABLE)))
        elif kind == _DYNAMIC_SEGMENT:
            dynamic = (offset, min(length, 64 << 10))
        elif kind == _RELRO:
            relocated = (offset, length)
    return Segments(tuple(loads), dynamic, relocated)


def written(segments: Segments) -> tuple[Range, ...]:
    """The data that relocation writes. A large segment holds more than that, as code of devices: of one, what is marked
    as relocated and a little behind it."""
    found = []
    for offset, _, length, writable in segments.loads:
        if writable and 0 < length <= _MAX_DATA_BYTES:
            found.append((offset, length))
        elif writable:
            begin, size = segments.relocated
            if offset <= begin < offset + length and size <= _MAX_DATA_BYTES:
                found.append((begin, min(size + _BEHIND_BYTES, offset + length - begin)))
    return tuple(found)


def parse_dynamic(segments: Segments, section: bytes) -> Loading:
    """What the dynamic section says; `needed` and `search` are places in the strings, which `names_of` reads."""
    values: dict[int, int] = {}
    needed: list[int] = []
    search: list[int] = []
    for tag, value in _DYNAMIC.iter_unpack(section[: len(section) // _DYNAMIC.size * _DYNAMIC.size]):
        if tag == 0:
            break
        if tag == _NEEDED and len(needed) < _MAX_NEEDED:
            needed.append(value)
        elif tag in (_RPATH, _RUNPATH):
            search.append(value)
        values.setdefault(tag, value)
    return Loading(tuple(_tables(segments, values)), tuple(needed), tuple(search), _strings(segments, values))


def names_of(loading: Loading, read: Callable[[int, int], bytes]) -> tuple[list[bytes], list[bytes]]:
    """The libraries it needs and the folders to look for them in, `$ORIGIN` as it stands in the file. `read` gives so
    many bytes from an offset of the file on, fewer at its end."""

    def text(place: int) -> bytes:
        offset, length = loading.strings
        return read(offset + place, _MAX_TEXT).partition(b"\0")[0] if place < length else b""

    needed = [name for name in map(text, loading.needed) if name and b"/" not in name]
    return needed, [folder for place in loading.search for folder in text(place).split(b":") if folder]


def _strings(segments: Segments, values: dict[int, int]) -> Range:
    offset = _offset(segments, values.get(_STRTAB, 0))
    return (offset, min(values.get(_STRSZ, 0), 64 << 20)) if offset is not None else (0, 0)


def _tables(segments: Segments, values: dict[int, int]) -> list[Range]:
    starts = sorted(values[tag] for tag in (*_TABLES, *_UNSIZED, _INIT) if values.get(tag))
    found = []
    for tag, size_tag in _TABLES.items():
        found.append((values.get(tag, 0), values.get(size_tag, 0)))
    for tag in _UNSIZED:
        begin = values.get(tag, 0)
        end = next((start for start in starts if start > begin), begin + 1)
        found.append((begin, min(end - begin, _MAX_UNSIZED_BYTES)))
    # The table of jumps stands behind the code that runs first, an entry for each relocation of its own.
    jumps = values.get(_PLTRELSZ, 0) // _RELOCATION_BYTES * _JUMP_BYTES
    found.append((values.get(_INIT, 0), min(jumps, _MAX_UNSIZED_BYTES) + HEAD_BYTES))
    placed = ((_offset(segments, begin), length) for begin, length in found if begin and length > 0)
    return [(offset, length) for offset, length in placed if offset is not None]


def _offset(segments: Segments, address: int) -> int | None:
    for offset, begin, length, _ in segments.loads:
        if begin <= address < begin + length:
            return offset + address - begin
    return None
