"""The pack beside a trace: what is believed of it, and what is read from the files after all."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fuse.caches import peers, wait_for
from windlass.node.cache.config import read_key
from windlass.node.cache.keys import chunk_key, digest, directory_key
from windlass.node.cache.listing import Listing, attr_pin
from windlass.node.cache.pack import BadPackError, PackObject, drop_old_packs, open_pack, pack_path, write_pack
from windlass.node.cache.peer import Peer
from windlass.node.wire import wire
from windlass.node.wire.link import open_local_link
from windlass.node.wire.proof import NO_NODE

CHUNK = 16 << 10
NAMES = [f"f{number}" for number in range(12)]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "shared"
    root.mkdir()
    for number, name in enumerate(NAMES):
        (root / name).write_bytes(os.urandom(3 * CHUNK + number))
    return root


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[list[PackObject]]:
    data = os.urandom(3000)
    (tmp_path / "segment").write_bytes(data)
    fd = os.open(tmp_path / "segment", os.O_RDONLY)
    parts = [(b"key%d" % place, data[place * 1000 : place * 1000 + 1000]) for place in range(3)]
    yield [PackObject(key, digest(key, part), 7, fd, place * 1000, 1000) for place, (key, part) in enumerate(parts)]
    os.close(fd)


def soon() -> float:
    return time.monotonic() + 60.0


def test_what_is_packed_is_found_by_its_key(tmp_path: Path, stored: list[PackObject]) -> None:
    path = str(tmp_path / "a.pack")
    assert write_pack(path, stored, CHUNK, 1 << 20, soon) == 3
    pack = open_pack(path, CHUNK)
    found = pack.index[b"key1"]
    data = memoryview(bytearray(found.size))
    pack.read_into(found.offset, data)
    pack.close()
    assert (found.size, found.ctime_ns, found.digest) == (1000, 7, stored[1].digest)
    assert digest(b"key1", data) == found.digest
    assert Path(path).stat().st_mode & 0o777 == 0o600


def test_a_pack_ends_at_its_limit_and_in_time(tmp_path: Path, stored: list[PackObject]) -> None:
    path = str(tmp_path / "a.pack")
    assert write_pack(path, stored, CHUNK, 2100, soon) == 2
    assert list(open_pack(path, CHUNK).index) == [b"key0", b"key1"]
    assert write_pack(path, stored, CHUNK, 1 << 20, lambda: time.monotonic() - 1.0, more_than=2000) == 0
    assert list(open_pack(path, CHUNK).index) == [b"key0", b"key1"], "a better one is not replaced by what was cut off"
    assert [each.name for each in tmp_path.glob("*.pack*")] == ["a.pack"]


def test_chunks_of_another_size_are_never_taken_for_those_of_today(tmp_path: Path, stored: list[PackObject]) -> None:
    path = str(tmp_path / "a.pack")
    write_pack(path, stored, CHUNK, 1 << 20, soon)
    with pytest.raises(BadPackError, match="chunks of 16384 bytes, not 32768"):
        open_pack(path, 2 * CHUNK)


def test_a_pack_that_others_could_have_written_is_refused(tmp_path: Path, stored: list[PackObject]) -> None:
    folder = tmp_path / "traces"
    folder.mkdir(mode=0o700)
    path = folder / "a.pack"
    write_pack(str(path), stored, CHUNK, 1 << 20, soon)
    path.chmod(0o620)
    with pytest.raises(BadPackError, match="written by others"):
        open_pack(str(path), CHUNK)
    path.chmod(0o600)
    folder.chmod(0o770)
    with pytest.raises(BadPackError, match="written by others"):
        open_pack(str(path), CHUNK)
    folder.chmod(0o700)
    (folder / "link.pack").symlink_to(path)
    with pytest.raises(OSError):
        open_pack(str(folder / "link.pack"), CHUNK)


@pytest.mark.parametrize("damage", ["cut off", "index", "empty"])
def test_a_damaged_pack_is_none(tmp_path: Path, stored: list[PackObject], damage: str) -> None:
    path = tmp_path / "a.pack"
    write_pack(str(path), stored, CHUNK, 1 << 20, soon)
    data = bytearray(path.read_bytes())
    if damage == "index":
        data[3100] ^= 1
    path.write_bytes({"cut off": data[:-5], "index": data, "empty": b""}[damage])
    with pytest.raises(BadPackError):
        open_pack(str(path), CHUNK)


def test_the_oldest_packs_go_when_there_are_too_many(tmp_path: Path) -> None:
    for age, name in enumerate(("new.pack", "middle.pack", "old.pack")):
        (tmp_path / name).write_bytes(bytes(1000))
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    (tmp_path / "killed.pack.17").write_bytes(b"x")
    os.utime(tmp_path / "killed.pack.17", (1000, 1000))
    (tmp_path / "a.trace.json").write_text("{}")
    drop_old_packs(str(tmp_path), str(tmp_path / "old.pack"), 2000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.trace.json", "new.pack", "old.pack"]


# With nodes


def keys_of(peer: Peer, path: Path) -> list[bytes]:
    folder = directory_key(os.fsencode(path.parent))
    assert peer.fetcher.wait(folder, 15.0).error is None
    listing = Listing(peer._store.read(folder) or b"")
    place = listing.place(os.fsencode(path.name))
    assert place is not None
    pin = attr_pin(listing.attr_at(place))
    return [chunk_key(os.fsencode(path), pin, index) for index in range(-(-pin.size // CHUNK))]


def record(folder: Path, tree: Path) -> Path:
    """Trace and pack of a run that read all files."""
    trace = folder / "traces" / "t.trace.json"
    with peers(folder / "r", 1, tree, trace_out=str(trace), chunk_bytes=CHUNK) as (peer,):
        peer._saver.fresh_s = -3600.0
        keys = [key for name in NAMES for key in keys_of(peer, tree / name)]
        assert all(peer.fetcher.wait(key, 15.0).error is None for key in keys)
        identity = peer.config.identity(read_key(peer.config.key_file))._replace(node=NO_NODE)
        link = open_local_link(peer.config.socket, identity, 0, 30.0)
        link.tell(wire.TOUCH, b"{}\n" + wire.join_keys([directory_key(os.fsencode(tree)), *keys]))
        wait_for(lambda: len(peer._saver._chunks) == len(keys))
        link.close()
    return trace


@contextmanager
def pushed(folder: Path, tree: Path, trace: Path, count: int = 3) -> Iterator[list[Peer]]:
    with peers(folder, count, tree, trace_in=str(trace), chunk_bytes=CHUNK, fanout=1) as nodes:
        wait_for(lambda: all(peer.status()["push"]["ended"] for peer in nodes))
        yield nodes


def has_all(peer: Peer, tree: Path) -> bool:
    found = {name: [peer._store.read(key) for key in keys_of(peer, tree / name)] for name in NAMES}
    return all(b"".join(part or b"" for part in found[name]) == (tree / name).read_bytes() for name in NAMES)


def test_a_start_reads_the_pack_and_not_the_files(tmp_path: Path, tree: Path) -> None:
    trace = record(tmp_path, tree)
    with pushed(tmp_path / "c", tree, trace) as nodes:
        assert all(has_all(peer, tree) for peer in nodes)
        assert nodes[0].status()["source_calls"] <= 4 + len(NAMES) + 4, "a listing with its looks, and few large reads"
        assert sum(peer.status()["source_calls"] for peer in nodes[1:]) == 0


def test_a_file_that_changed_is_read_itself_and_the_rest_from_the_pack(tmp_path: Path, tree: Path) -> None:
    trace = record(tmp_path, tree)
    (tree / "f3").write_bytes(os.urandom(2 * CHUNK))
    before = (tree / "f5").stat()
    with (tree / "f5").open("r+b") as file:  # in place, and the date set back: only the ctime tells
        file.write(b"another")
    os.utime(tree / "f5", ns=(before.st_atime_ns, before.st_mtime_ns))
    with pushed(tmp_path / "c", tree, trace) as nodes:
        assert all(has_all(peer, tree) for peer in nodes)


def test_a_pack_with_wrong_bytes_costs_only_the_reading(tmp_path: Path, tree: Path) -> None:
    trace = record(tmp_path, tree)
    with Path(pack_path(str(trace))).open("r+b") as file:
        file.seek(5000)
        file.write(b"bit rot")
    with pushed(tmp_path / "c", tree, trace) as nodes:
        assert all(has_all(peer, tree) for peer in nodes)
        assert [peer.status()["corrupt"] for peer in nodes] == [0, 0, 0], "nobody is blamed for it"


def test_files_that_changed_just_now_are_not_packed(tmp_path: Path, tree: Path) -> None:
    trace = tmp_path / "traces" / "t.trace.json"
    with peers(tmp_path / "r", 1, tree, trace_out=str(trace), chunk_bytes=CHUNK) as (peer,):
        keys = keys_of(peer, tree / "f0")
        assert peer.fetcher.wait(keys[0], 15.0).error is None
        peer._saver.touched(keys[0])
    assert not Path(pack_path(str(trace))).exists()


def touch_again(folder: Path, tree: Path, trace: Path) -> None:
    """A second run, which reads and touches what the first did."""
    with peers(folder, 1, tree, trace_in=str(trace), trace_out=str(trace), chunk_bytes=CHUNK) as (peer,):
        peer._saver.fresh_s = -3600.0
        wait_for(lambda: peer.status()["push"]["ended"])
        for key in (key for name in NAMES for key in keys_of(peer, tree / name)):
            assert peer.fetcher.wait(key, 15.0).error is None
            peer._saver.touched(key)


def test_a_pack_that_no_longer_fits_is_written_anew(tmp_path: Path, tree: Path) -> None:
    trace = record(tmp_path, tree)
    path = pack_path(str(trace))
    for name in NAMES:
        (tree / name).chmod(0o640)  # another ctime, the same content
    before = {packed.ctime_ns for packed in open_pack(path, CHUNK).index.values()}
    touch_again(tmp_path / "c", tree, trace)
    after = open_pack(path, CHUNK).index
    assert len(after) == 4 * len(NAMES) - 1 and not before & {packed.ctime_ns for packed in after.values()}


def test_a_damaged_pack_is_replaced_by_the_run_that_meets_it(tmp_path: Path, tree: Path) -> None:
    trace = record(tmp_path, tree)
    path = Path(pack_path(str(trace)))
    sound = path.read_bytes()
    path.write_bytes(sound[:5000] + b"bit rot" + sound[5007:])
    touch_again(tmp_path / "c", tree, trace)
    assert path.read_bytes()[5000:5007] != b"bit rot" and open_pack(str(path), CHUNK).index


def test_nothing_is_packed_where_others_can_write(tmp_path: Path, tree: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces").chmod(0o770)
    record(tmp_path, tree)
    assert not list((tmp_path / "traces").glob("*.pack*")) and "written by others" in caplog.text
