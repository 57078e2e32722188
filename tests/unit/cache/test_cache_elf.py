"""What the loader will read of a library is known from its head, and fetched with the libraries that it needs."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from fuse.caches import peers, wait_for
from windlass.node.cache.elf import names_of, parse_dynamic, parse_segments, written
from windlass.node.cache.keys import HEAD_BYTES, Pin, chunk_key, directory_key, runs
from windlass.node.cache.listing import Listing, attr_pin

CHUNK = 4096
NO_LIBRARIES = [b"", b"\x7fELF", b"#!/bin/sh\n" * 50, b"\x7fELF" + bytes(4092), b"\x7fELF\x02\x01" + b"\xff" * 4090]


@pytest.mark.parametrize("head", NO_LIBRARIES)
def test_what_is_no_library_has_no_segments(head: bytes) -> None:
    found = parse_segments(head)
    assert found is None or not found.loads


def library(folder: Path, name: str, needs: str = "", *, relocations: int = 3000) -> Path:
    """A real shared library with many relocations, linked against another one in the folder beside it."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / f"{name}.c"
    names = "".join(f"int {name}_{n}(void) {{ return {n}; }}\n" for n in range(relocations))
    table = ", ".join(f"{name}_{n}" for n in range(relocations))
    # Code that the loader does not look at, and that must not be fetched.
    unused = f"static const char filler[{4 << 20}] = {{1}}; const char *{name}_filler(int i) {{ return filler + i; }}\n"
    source.write_text(f"{names}int (*{name}_table[])(void) = {{ {table} }};\n{unused}")
    made = folder / f"lib{name}.so"
    argv = ["cc", "-shared", "-fPIC", "-O0", "-o", str(made), str(source), "-Wl,-rpath,$ORIGIN/../other"]
    if needs:
        argv += ["-Wl,--no-as-needed", f"-L{folder}/../other", f"-l{needs}"]
    subprocess.run(argv, check=True, timeout=60)
    source.unlink()
    return made


def test_tables_and_needed_libraries_are_those_that_readelf_tells(tmp_path: Path) -> None:
    library(tmp_path / "other", "b")
    data = library(tmp_path / "lib", "a", "b").read_bytes()
    segments = parse_segments(data[:4096])
    assert segments is not None and written(segments)
    offset, length = segments.dynamic
    loading = parse_dynamic(segments, data[offset : offset + length])
    needed, search = names_of(loading, lambda offset, length: data[offset : offset + length])
    assert b"libb.so" in needed and b"$ORIGIN/../other" in search
    if shutil.which("readelf") is None:
        return
    shown = subprocess.run(
        ["readelf", "-SW", str(tmp_path / "lib" / "liba.so")], capture_output=True, text=True, timeout=30, check=True
    ).stdout
    hot = {n // CHUNK for begin, size in (*written(segments), *loading.tables) for n in range(begin, begin + size)}
    for line in shown.replace("[ ", "[").splitlines():
        fields = line.split()
        if len(fields) > 6 and fields[1] in {".rela.dyn", ".dynsym", ".dynstr", ".gnu.hash", ".data.rel.ro", ".got"}:
            begin, size = int(fields[4], 16), int(fields[5], 16)
            assert {begin // CHUNK, (begin + size - 1) // CHUNK} <= hot, fields[1]


def test_a_damaged_dynamic_section_gives_no_range_outside_the_segments(tmp_path: Path) -> None:
    data = library(tmp_path / "lib", "a", relocations=5).read_bytes()
    segments = parse_segments(data[:4096])
    assert segments is not None
    wild = struct.pack("<qQqQqQqQ", 5, 1 << 60, 10, 1 << 62, 1, 1 << 50, 7, 0)
    loading = parse_dynamic(segments, wild + b"cut")
    assert loading.tables == () and loading.strings == (0, 0)
    assert names_of(loading, lambda offset, length: data[offset : offset + length]) == ([], [])


def test_opening_a_library_brings_its_tables_and_those_of_what_it_needs_and_not_the_rest(tmp_path: Path) -> None:
    root = tmp_path / "shared"
    other = library(root / "other", "b")
    first = library(root / "lib", "a", "b")
    with peers(tmp_path / "c", 2, root, chunk_bytes=CHUNK) as nodes:
        outcome = nodes[1].fetcher.wait(directory_key(os.fsencode(first.parent)), 15.0)
        assert outcome.error is None
        listing = Listing(nodes[1]._store.read(directory_key(os.fsencode(first.parent))) or b"")
        place = listing.place(b"liba.so")
        assert place is not None
        pin = attr_pin(listing.attr_at(place))
        assert nodes[1].fetcher.wait(chunk_key(os.fsencode(first), pin, 0), 15.0).error is None

        def chunks(path: Path) -> set[int]:
            held = list(nodes[1]._store._held)
            return {int.from_bytes(key[1:5], "little") for key in held if key[HEAD_BYTES:] == os.fsencode(path)}

        for path in (first, other):
            data = path.read_bytes()
            segments = parse_segments(data[:4096])
            assert segments is not None
            section = data[segments.dynamic[0] : sum(segments.dynamic)]
            ranges = (*written(segments), *parse_dynamic(segments, section).tables)
            hot = {index for begin, size in ranges for index in range(begin // CHUNK, -(-(begin + size) // CHUNK))}
            wait_for(lambda path=path, hot=hot: hot <= chunks(path), 20.0, f"tables of {path.name} on the other node")  # type: ignore[misc]
            assert len(chunks(path)) < len(data) // CHUNK / 2, "what the loader does not read is not fetched"
        assert nodes[1].status()["source_bytes"] == 0


def test_runs_are_neighbouring_chunks_of_one_version_of_one_file(tmp_path: Path) -> None:
    one, other = Pin(100, 1, 2), Pin(100, 9, 2)
    keys = [chunk_key(b"/a", one, n) for n in (0, 1, 2, 4, 5)]
    keys += [chunk_key(b"/a", other, 6), chunk_key(b"/b", other, 7), directory_key(b"/c"), directory_key(b"/d")]
    assert [len(run) for run in runs(keys, 8)] == [3, 2, 1, 1, 1, 1]
    assert [len(run) for run in runs(keys[:3], 2)] == [2, 1]
    assert [key for run in runs(keys, 8) for key in run] == keys
