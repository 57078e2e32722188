from __future__ import annotations

import os
from pathlib import Path

from fuse.caches import peers, wait_for
from windlass.node.cache.keys import directory_key, parse_key
from windlass.node.cache.listing import Listing
from windlass.node.cache.read_ahead import follow
from windlass.node.cache.roots import declare_roots
from windlass.node.cache.source import Source

CHUNK = 4096


def listing(folder: Path) -> Listing:
    source = Source(declare_roots((str(folder),)), CHUNK)
    return Listing(bytes(source.read(directory_key(os.fsencode(folder)))))


def package(folder: Path, code: dict[str, int]) -> Path:
    """A package whose byte code has these names and sizes."""
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    for name, size in code.items():
        (folder / "__pycache__" / name).write_bytes(os.urandom(size))
    return folder


def names(keys: list[bytes]) -> list[str]:
    return [Path(os.fsdecode(parse_key(key).path)).name for key in keys]


def test_a_folder_with_byte_code_is_followed_by_it(tmp_path: Path) -> None:
    folder = package(tmp_path / "p", {"a.cpython-311.pyc": 10, "b.cpython-311.pyc": 9000})
    path = os.fsencode(folder)
    assert follow(path, listing(folder), CHUNK) == [directory_key(path + b"/__pycache__")]
    code = folder / "__pycache__"
    wanted = follow(os.fsencode(code), listing(code), CHUNK)
    assert names(wanted) == ["a.cpython-311.pyc"] + ["b.cpython-311.pyc"] * 3
    assert [parse_key(key).chunk for key in wanted] == [0, 0, 1, 2]


def test_a_folder_without_byte_code_is_followed_by_nothing(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.bin").write_bytes(b"x")
    assert follow(os.fsencode(tmp_path / "data"), listing(tmp_path / "data"), CHUNK) == []


def test_byte_code_of_two_interpreters_waits_for_whoever_asks(tmp_path: Path) -> None:
    code = package(tmp_path / "p", {"a.cpython-311.pyc": 10, "a.cpython-312.pyc": 10}) / "__pycache__"
    assert follow(os.fsencode(code), listing(code), CHUNK) == []


def test_much_byte_code_waits_for_whoever_asks(tmp_path: Path) -> None:
    code = package(tmp_path / "p", {f"m{n}.cpython-311.pyc": 1_000_000 for n in range(5)}) / "__pycache__"
    assert follow(os.fsencode(code), listing(code), CHUNK) == []


def test_byte_code_arrives_everywhere_although_nobody_asked_for_it(tmp_path: Path) -> None:
    folder = package(tmp_path / "shared" / "p", {f"m{n}.cpython-311.pyc": 6000 for n in range(8)})
    with peers(tmp_path / "c", 3, tmp_path / "shared", fanout=1, chunk_bytes=CHUNK) as nodes:
        assert nodes[2].fetcher.wait(directory_key(os.fsencode(folder)), 15.0).error is None
        wait_for(lambda: all(len(node._store) == 2 + 16 for node in nodes), 15.0)
        assert [len(node._store) for node in nodes] == [18, 18, 18]
        assert [node.status()["source_bytes"] > 0 for node in nodes] == [True, False, False]


def test_packages_below_are_listed_and_their_code_comes_when_somebody_looks_into_them(tmp_path: Path) -> None:
    root = tmp_path / "shared"
    top = package(root / "p", {"a.cpython-311.pyc": 10})
    below = package(top / "sub", {"b.cpython-311.pyc": 10})
    (top / "include").mkdir()
    with peers(tmp_path / "c", 2, root, chunk_bytes=CHUNK) as nodes:
        assert nodes[1].fetcher.wait(directory_key(os.fsencode(top)), 15.0).error is None
        listed = directory_key(os.fsencode(below))
        code = directory_key(os.fsencode(below / "__pycache__"))
        wait_for(lambda: all(listed in node._store and len(node._store) == 5 for node in nodes), 15.0)
        assert all(code in node._store for node in nodes), "the code of the package below is listed and not read"
        assert directory_key(os.fsencode(top / "include")) not in nodes[0]._store
        nodes[0]._streams.looked_into(os.fsencode(below))
        wait_for(lambda: all(len(node._store) == 6 for node in nodes), 15.0)


def test_a_look_into_two_distributions_brings_the_entry_points_of_all(tmp_path: Path) -> None:
    root = tmp_path / "shared"
    for number in range(5):
        (root / f"d{number}.dist-info").mkdir(parents=True)
        (root / f"d{number}.dist-info" / "entry_points.txt").write_text("[console_scripts]")
        (root / f"d{number}.dist-info" / "METADATA").write_text("long")
    with peers(tmp_path / "c", 1, root, chunk_bytes=CHUNK) as (peer,):
        for number in range(2):
            folder = os.fsencode(root / f"d{number}.dist-info")
            assert peer.fetcher.wait(directory_key(folder), 15.0).error is None
        wait_for(lambda: len(peer._store) == 1 + 5 + 5, 15.0, "five listings, theirs above, five files")
