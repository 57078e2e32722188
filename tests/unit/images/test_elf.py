"""The ELF reader on this machine's own libraries, held against readelf, and on damaged files."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from looping import each
from requirements import missing_programs, require
from windlass.node.libs.elf import ElfError, parse_elf, read_elf

LIBRARIES = sorted(
    {
        path.resolve()
        for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
        for path in Path(folder).glob("lib[cgmpsz]*.so.*")
        if path.is_file()
    }
)[:40]


def _readelf(path: Path) -> str:
    argv = ["readelf", "-W", "-d", "-V", str(path)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, errors="replace").stdout


def test_it_reads_what_readelf_reads() -> None:
    require("compiler", not missing_programs("readelf"), missing_programs("readelf"))
    assert LIBRARIES
    for path in (*LIBRARIES, Path("/bin/ls")):
        elf, text = read_elf(str(path)), _readelf(path)
        assert list(elf.needed) == re.findall(r"\(NEEDED\).*\[(.*)\]", text), path
        assert [elf.soname] == (re.findall(r"\(SONAME\).*\[(.*)\]", text) or [""]), path
        assert [":".join(elf.runpath)] == (re.findall(r"\(RUNPATH\).*\[(.*)\]", text) or [""]), path
        needs = re.findall(r"Name: (\S+)\s+Flags: none", text.partition("Version needs section")[2])
        assert sorted(v for versions in elf.version_needs.values() for v in versions) == sorted(needs), path


def test_a_static_program_and_an_object_file_have_nothing_to_load(tmp_path: Path) -> None:
    require("compiler", not missing_programs("gcc"), missing_programs("gcc"))
    source = tmp_path / "x.c"
    source.write_text("int main(void) { return 0; }")
    subprocess.run(["gcc", "-c", "-o", str(tmp_path / "x.o"), str(source)], check=True, timeout=60)
    elf = read_elf(str(tmp_path / "x.o"))
    assert elf.needed == ()
    assert elf.version_needs == {}


@each("data", [b"", b"\x7fELF", b"#!/bin/sh\n", b"\x7fELF" + b"\xff" * 60, b"\x7fELF\2\1" + b"\0" * 58])
def test_what_is_no_elf_file_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    if data.endswith(b"\0" * 58):
        assert read_elf(str(path)).needed == ()
        return
    with pytest.raises(ElfError):
        read_elf(str(path))


def _parsed(data: bytes) -> None:
    try:
        parse_elf(data)
    except ElfError as error:
        assert str(error)


@each("seed", range(8))
def test_a_damaged_file_is_read_or_refused_and_never_crashes(seed: int) -> None:
    chance = random.Random(seed)
    path = LIBRARIES[seed % len(LIBRARIES)] if LIBRARIES else Path(sys.executable)
    sound = path.read_bytes()[: 256 << 10]
    for _ in range(120):
        data = bytearray(sound)
        for _ in range(chance.randint(1, 40)):
            at = chance.randrange(4096) if chance.random() < 0.7 else chance.randrange(len(data))
            data[min(at, len(data) - 1)] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        data[:4] = b"\x7fELF"
        _parsed(bytes(data[: chance.randrange(len(data))] if chance.random() < 0.3 else data))


@each("seed", range(2))
def test_noise_behind_a_sound_header_is_read_or_refused(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(300):
        _parsed(b"\x7fELF" + bytes((chance.choice((1, 2)), chance.choice((1, 2)))) + chance.randbytes(400))


def test_a_file_that_is_cut_anywhere_is_read_or_refused() -> None:
    sound = Path(shutil.which("ls") or "/bin/ls").resolve().read_bytes()
    for end in range(0, len(sound), 997):
        _parsed(sound[:end])
