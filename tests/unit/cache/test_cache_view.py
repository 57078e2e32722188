"""The file system's behaviour without a mount: a view over a local folder, fed from a dictionary."""

from __future__ import annotations

import errno
import os
import stat
import struct
from pathlib import Path

import pytest

from fuse.caches import make_tree
from windlass.node.cache.fuse import (
    CACHE_SYMLINKS,
    DO_READDIRPLUS,
    MAX_PAGES,
    NO_OPEN_SUPPORT,
    NO_OPENDIR_SUPPORT,
    negotiate,
    statfs_reply,
)
from windlass.node.cache.keys import parse_key
from windlass.node.cache.listing import ATTR, Listing
from windlass.node.cache.roots import declare_roots
from windlass.node.cache.source import Source
from windlass.node.cache.view import NO_SUCH_FILE, ROOT_ID, Miss, View, split_batch_forget

CHUNK = 4096


class Shelf:
    """What is on the node: nothing, until it was fetched."""

    def __init__(self, root: Path) -> None:
        self.source = Source(declare_roots([str(root)]), CHUNK)
        self.objects: dict[bytes, bytes] = {}
        self.hints: list[tuple[int, int]] = []

    def listing(self, path: bytes) -> Listing | None:
        from windlass.node.cache.keys import directory_key

        blob = self.objects.get(directory_key(path))
        return Listing(blob) if blob is not None else None

    def read_into(self, key: bytes, offset: int, target: memoryview) -> int:
        data = self.objects.get(key)
        if data is None:
            return -1
        part = data[offset : offset + len(target)]
        target[: len(part)] = part
        return len(part)

    def will_want(self, key: bytes, count: int) -> None:
        self.hints.append((parse_key(key).chunk, count))

    def fetch(self, miss: Miss) -> None:
        for key in miss.keys:
            self.objects[key] = bytes(self.source.read(key))


class Seen:
    """A view that fetches what it misses, as the FUSE skin does."""

    def __init__(self, root: Path) -> None:
        self.shelf = Shelf(root)
        self.view = View(self.shelf, CHUNK)
        self.misses = 0

    def ask(self, call: str, *arguments: object, **more: object) -> bytes | int:
        while True:
            try:
                found: bytes | int = getattr(self.view, call)(*arguments, **more)
                return found
            except Miss as miss:
                self.misses += 1
                self.shelf.fetch(miss)

    def walk(self, path: Path) -> int:
        """The node number of a path."""
        ident = ROOT_ID
        for part in path.parts[1:]:
            entry = self.ask("lookup", ident, os.fsencode(part))
            assert isinstance(entry, bytes)
            ident = struct.unpack_from("<Q", entry)[0]
            assert ident, f"{path}: no {part}"
        return ident

    def read(self, ident: int, offset: int, size: int) -> bytes:
        target = memoryview(bytearray(size))
        got = self.ask("read", ident, offset, target)
        assert isinstance(got, int)
        return bytes(target[:got])

    def names(self, ident: int, size: int, plus: bool) -> list[bytes]:
        offset, found = 0, []
        while True:
            data = self.ask("readdir", ident, offset, size, plus=plus)
            assert isinstance(data, bytes)
            assert len(data) <= size
            if not data:
                return found
            while data:
                data = data[128:] if plus else data
                _, offset, length, _ = struct.unpack_from("<QQII", data)
                found.append(data[24 : 24 + length])
                data = data[24 + length + (-length % 8) :]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "root")


def test_every_file_reads_as_in_the_source(tree: Path) -> None:
    seen = Seen(tree)
    for path in sorted(tree.rglob("*")):
        if path.is_file() and not path.is_symlink():
            want = path.read_bytes()
            ident = seen.walk(path)
            assert seen.read(ident, 0, len(want) + 100) == want
            assert seen.read(ident, CHUNK - 10, 3 * CHUNK) == want[CHUNK - 10 : 4 * CHUNK - 10]
            assert seen.read(ident, len(want), 10) == b""


def test_attributes_are_those_of_the_source(tree: Path) -> None:
    seen = Seen(tree)
    for path in tree.rglob("*"):
        status = path.lstat()
        reply = seen.ask("getattr", seen.walk(path))
        assert isinstance(reply, bytes)
        ino, size, _, _, mtime, _, _, mtime_rest, _, mode, nlink, uid, gid, *_ = ATTR.unpack(reply[16:])
        assert (ino, mode, nlink, uid, gid) == (
            status.st_ino,
            status.st_mode,
            status.st_nlink,
            status.st_uid,
            status.st_gid,
        )
        assert mtime * 10**9 + mtime_rest == status.st_mtime_ns
        if not stat.S_ISLNK(mode):
            assert size == status.st_size


def test_a_missing_name_is_answered_locally_and_for_ever(tree: Path) -> None:
    seen = Seen(tree)
    ident = seen.walk(tree / "d0")
    seen.ask("lookup", ident, b"e0")
    before = seen.misses
    for number in range(100):
        assert seen.ask("lookup", ident, b"nothing%d" % number) == NO_SUCH_FILE
    assert seen.misses == before


@pytest.mark.parametrize("plus", [True, False])
@pytest.mark.parametrize("size", [300, 4096, 1 << 20])
def test_a_directory_is_listed_completely_in_pieces_of_any_size(tree: Path, size: int, plus: bool) -> None:
    seen = Seen(tree)
    found = seen.names(seen.walk(tree), size, plus)
    assert sorted(found) == sorted([b".", b"..", *(os.fsencode(p.name) for p in tree.iterdir())])
    assert len(set(found)) == len(found)


def test_links_show_their_text_and_lengths_agree(tree: Path) -> None:
    seen = Seen(tree)
    for name, text in (
        ("link", b"d0/e0"),
        ("absolute", b"d1"),
        ("outside", b"/etc/hostname"),
        ("dangling", b"nowhere"),
    ):
        ident = seen.walk(tree / name)
        assert seen.ask("readlink", ident) == text
        reply = seen.ask("getattr", ident)
        assert isinstance(reply, bytes)
        assert ATTR.unpack(reply[16:])[1] == len(text)
    with pytest.raises(OSError) as caught:
        seen.ask("readlink", seen.walk(tree / "sparse"))
    assert caught.value.errno == errno.EINVAL


def test_reading_a_folder_or_an_unknown_node_is_an_error(tree: Path) -> None:
    seen = Seen(tree)
    with pytest.raises(OSError) as caught:
        seen.read(seen.walk(tree / "d0"), 0, 10)
    assert caught.value.errno == errno.EISDIR
    with pytest.raises(OSError) as caught:
        seen.read(999_999, 0, 10)
    assert caught.value.errno == errno.ESTALE


def test_forgotten_nodes_are_forgotten_and_come_back(tree: Path) -> None:
    seen = Seen(tree)
    ident = seen.walk(tree / "sparse")
    again = seen.walk(tree / "sparse")
    assert ident == again
    count = len(seen.view)
    seen.view.forget(ident, 1)
    assert len(seen.view) == count, "looked up twice"
    seen.view.forget(ident, 1)
    assert len(seen.view) == count - 1
    assert seen.walk(tree / "sparse") != ident
    seen.view.forget(ROOT_ID, 1000)
    assert seen.walk(tree)


def test_batch_forget_is_cut_into_pairs() -> None:
    body = struct.pack("<II", 2, 0) + struct.pack("<QQQQ", 5, 1, 6, 2)
    assert list(split_batch_forget(body)) == [(5, 1), (6, 2)]
    assert list(split_batch_forget(struct.pack("<II", 1000, 0))) == []


def test_a_straight_reader_gets_the_next_chunks_announced_and_a_random_one_does_not(tree: Path) -> None:
    seen = Seen(tree)
    ident = seen.walk(tree / "sparse")
    for index in range(40):
        seen.read(ident, index * CHUNK, CHUNK)
    announced = {i for first, count in seen.shelf.hints for i in range(first, first + count)}
    assert set(range(4, 60)) <= announced
    assert sum(count for _, count in seen.shelf.hints) == len(announced), "nothing is announced twice"
    assert len(seen.shelf.hints) < 15
    seen.shelf.hints.clear()
    for index in (500, 100, 300, 50, 400):
        seen.read(ident, index * CHUNK, CHUNK)
    assert seen.shelf.hints == []


def offer(flags: int, minor: int = 38) -> bytes:
    return struct.pack("<IIII", 7, minor, 131072, flags)


EVERYTHING = (1 << 32) - 1


def test_a_new_kernel_gets_open_without_messages_and_large_reads() -> None:
    answer, flags = negotiate(offer(EVERYTHING), EVERYTHING)
    assert len(answer) == 64
    for wanted in (NO_OPEN_SUPPORT, NO_OPENDIR_SUPPORT, MAX_PAGES, CACHE_SYMLINKS, DO_READDIRPLUS):
        assert flags & wanted
    assert struct.unpack_from("<IIIIHHIIHH", answer)[8] == 256


def test_a_flag_the_kernel_did_not_offer_is_never_taken() -> None:
    for missing in (NO_OPEN_SUPPORT, NO_OPENDIR_SUPPORT, MAX_PAGES, CACHE_SYMLINKS, DO_READDIRPLUS):
        assert not negotiate(offer(EVERYTHING & ~missing), EVERYTHING)[1] & missing
        assert not negotiate(offer(EVERYTHING), EVERYTHING & ~missing)[1] & missing


def test_an_ancient_kernel_is_refused_and_an_old_one_gets_the_short_answer() -> None:
    with pytest.raises(OSError):
        negotiate(offer(0, minor=8), EVERYTHING)
    assert len(negotiate(offer(EVERYTHING, minor=20), EVERYTHING)[0]) == 24


def test_statfs_is_plausible() -> None:
    blocks, free, available, files, _, block_size, name_length, _ = struct.unpack_from("<5Q3I", statfs_reply())
    assert blocks and files and block_size == 4096 and name_length == 255
    assert free == available == 0
