"""Read the loader's data of an ELF file: machine, SONAME, NEEDED, RPATH and RUNPATH, symbol versions.

The numbers in the file are untrusted. All reads stay inside the file and below fixed limits. A damaged file raises only
`ElfError`. This module reads files and never loads them. Runs on nodes: standard library, Python 3.9.
"""

from __future__ import annotations

import os
import struct
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

MAX_HEADERS = 512
MAX_DYNAMIC = 8192
MAX_VERSIONS = 8192
MAX_NAME = 4096

_PT_LOAD, _PT_DYNAMIC = 1, 2
_NEEDED, _STRTAB, _STRSZ, _SONAME, _RPATH, _RUNPATH = 1, 5, 10, 14, 15, 29
_VERDEF, _VERDEFNUM, _VERNEED, _VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
_WEAK, _BASE = 2, 1

MACHINES = {3: "i386", 21: "ppc64le", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64", 22: "s390x"}


class ElfError(ValueError):
    """Not an ELF file, or an inconsistent one. The message has the reason."""


class Elf(NamedTuple):
    """The loader's data of the file."""

    machine: str
    bits: int
    soname: str
    needed: Tuple[str, ...]
    rpath: Tuple[str, ...]
    runpath: Tuple[str, ...]
    version_needs: Dict[str, Tuple[str, ...]]
    """Maps a library to the versions that are needed of it. Weak needs are omitted, because the loader ignores them."""
    version_defs: Tuple[str, ...]
    """Versions that this library offers."""


class _ElfSegment(NamedTuple):
    kind: int
    offset: int
    address: int
    size: int


def read_elf(path: str) -> Elf:
    """Read a file. Raises `ElfError` if it is not a valid ELF file, `OSError` if it cannot be read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        # Not mapped: if a mapped file is truncated, the kernel kills its reader.
        return _ElfReader(lambda start, size: os.pread(descriptor, size, start), os.fstat(descriptor).st_size).elf()
    finally:
        os.close(descriptor)


def is_elf(path: str) -> bool:
    """Return whether the file begins like an ELF file."""
    try:
        with open(path, "rb") as stream:
            return stream.read(4) == b"\x7fELF"
    except OSError:
        return False


def parse_elf(data: bytes) -> Elf:
    """Parse the bytes of an ELF file. See `read_elf`."""
    return _ElfReader(lambda start, size: data[start : start + size], len(data)).elf()


class _ElfReader:
    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read = read
        self._size = size
        head = read(0, 16)
        if len(head) < 16 or head[:4] != b"\x7fELF":
            raise ElfError("not an ELF file")
        kind, order = head[4], head[5]
        if kind not in (1, 2) or order not in (1, 2):
            raise ElfError("an ELF file of an unknown class or byte order")
        self._wide = kind == 2
        self._order = "<" if order == 1 else ">"
        self._segments: List[_ElfSegment] = []

    def elf(self) -> Elf:
        machine = self._unpack("HH", 16)[1]
        self._segments = self._read_segments()
        dynamic = self._dynamic()
        strings = self._strings(dynamic)
        one = dict(reversed(dynamic))
        name = self._name
        return Elf(
            machine=MACHINES.get(machine, "machine %d" % machine),
            bits=64 if self._wide else 32,
            soname=name(strings, one[_SONAME]) if _SONAME in one else "",
            needed=tuple(name(strings, value) for tag, value in dynamic if tag == _NEEDED),
            rpath=_paths(name(strings, one[_RPATH])) if _RPATH in one else (),
            runpath=_paths(name(strings, one[_RUNPATH])) if _RUNPATH in one else (),
            version_needs=self._needs(strings, one.get(_VERNEED), one.get(_VERNEEDNUM, 0)),
            version_defs=self._defs(strings, one.get(_VERDEF), one.get(_VERDEFNUM, 0)),
        )

    def _unpack(self, form: str, offset: int) -> Tuple[int, ...]:
        size = struct.calcsize(self._order + form)
        found = self._read(offset, size) if offset + size <= self._size else b""
        if len(found) < size:
            raise ElfError("it ends at %d bytes, before the data that it refers to" % self._size)
        return struct.unpack(self._order + form, found)

    def _read_segments(self) -> List[_ElfSegment]:
        if self._wide:
            offset, (entry, count) = self._unpack("Q", 32)[0], self._unpack("HH", 54)
            sections, (width, number) = self._unpack("Q", 40)[0], self._unpack("HH", 58)
        else:
            offset, (entry, count) = self._unpack("I", 28)[0], self._unpack("HH", 42)
            sections, (width, number) = self._unpack("I", 32)[0], self._unpack("HH", 46)
        if sections + width * number > self._size:
            raise ElfError("it ends at %d bytes, before its section headers" % self._size)
        if count > MAX_HEADERS:
            raise ElfError("%d program headers" % count)
        if count and entry < (56 if self._wide else 32):
            raise ElfError("program headers of %d bytes" % entry)
        found = []
        for number in range(count):
            at = offset + number * entry
            if self._wide:
                kind, _, start, address, _, size = self._unpack("IIQQQQ", at)
            else:
                kind, start, address, _, size = self._unpack("IIIII", at)
            found.append(_ElfSegment(kind, start, address, size))
        return found

    def _offset_of(self, address: int) -> int:
        """Return the file offset of the data that the loader finds at this address."""
        for segment in self._segments:
            if segment.kind == _PT_LOAD and segment.address <= address < segment.address + segment.size:
                return segment.offset + address - segment.address
        raise ElfError("address %#x lies in no segment" % address)

    def _dynamic(self) -> List[Tuple[int, int]]:
        table = next((segment for segment in self._segments if segment.kind == _PT_DYNAMIC), None)
        if table is None:
            return []  # a static program
        form, width = ("QQ", 16) if self._wide else ("II", 8)
        entries = []
        for number in range(min(table.size // width, MAX_DYNAMIC)):
            tag, value = self._unpack(form, table.offset + number * width)
            if tag == 0:
                break
            entries.append((tag, value))
        return entries

    def _strings(self, dynamic: List[Tuple[int, int]]) -> Optional[Tuple[int, int]]:
        """Return offset and end of the string table."""
        one = dict(dynamic)
        if _STRTAB not in one:
            return None
        start = self._offset_of(one[_STRTAB])
        return start, min(start + one.get(_STRSZ, 0), self._size)

    def _name(self, strings: Optional[Tuple[int, int]], index: int) -> str:
        if strings is None or strings[0] + index >= strings[1]:
            raise ElfError("a name lies outside of the string table")
        start = strings[0] + index
        name, end, _ = self._read(start, min(MAX_NAME, strings[1] - start)).partition(b"\0")
        if not end:
            raise ElfError("a name without an end")
        return os.fsdecode(name)

    def _needs(
        self, strings: Optional[Tuple[int, int]], address: Optional[int], count: int
    ) -> Dict[str, Tuple[str, ...]]:
        if address is None:
            return {}
        found: Dict[str, List[str]] = {}
        at, left = self._offset_of(address), MAX_VERSIONS
        for _ in range(min(count, MAX_VERSIONS)):
            _, entries, library, first, step = self._unpack("HHIII", at)
            versions = found.setdefault(self._name(strings, library), [])
            inner = at + first
            for _ in range(entries):
                left -= 1
                if left < 0:
                    raise ElfError("more than %d symbol versions" % MAX_VERSIONS)
                _, flags, _, version, inner_step = self._unpack("IHHII", inner)
                if not flags & _WEAK:
                    versions.append(self._name(strings, version))
                if not inner_step:
                    break
                inner += inner_step
            if not step:
                break
            at += step
        return {library: tuple(dict.fromkeys(versions)) for library, versions in found.items()}

    def _defs(self, strings: Optional[Tuple[int, int]], address: Optional[int], count: int) -> Tuple[str, ...]:
        if address is None:
            return ()
        found = []
        at = self._offset_of(address)
        for _ in range(min(count, MAX_VERSIONS)):
            _, flags, _, _, _, first, step = self._unpack("HHHHIII", at)
            if not flags & _BASE:
                found.append(self._name(strings, self._unpack("I", at + first)[0]))
            if not step:
                break
            at += step
        return tuple(found)


def _paths(text: str) -> Tuple[str, ...]:
    return tuple(path for path in text.split(":") if path)
