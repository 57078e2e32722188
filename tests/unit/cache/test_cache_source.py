from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from windlass.node.cache.keys import BadKeyError, Pin, chunk_key, directory_key
from windlass.node.cache.listing import BadListingError, Entry, Listing, attr_pin, folder_attr, pack_attr, pack_listing
from windlass.node.cache.roots import Root, declare_roots, link_text, names_above
from windlass.node.cache.source import ChangedError, Source, shares

CHUNK = 4096


def source_of(*roots: Path) -> Source:
    return Source(declare_roots([str(r) for r in roots]), CHUNK)


def listing(source: Source, path: Path) -> Listing:
    return Listing(bytes(source.read(directory_key(os.fsencode(path)))))


def pin_of(source: Source, path: Path) -> Pin:
    found = listing(source, path.parent)
    place = found.place(os.fsencode(path.name))
    assert place is not None
    return attr_pin(found.attr_at(place))


def read(source: Source, path: Path, pin: Pin, index: int = 0) -> bytes:
    return bytes(source.read(chunk_key(os.fsencode(path), pin, index)))


def test_a_listing_holds_names_attributes_and_link_texts(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_bytes(b"12345")
    (root / "relative").symlink_to("file")
    (root / "absolute").symlink_to(root / "file")
    Path(os.fsdecode(os.fsencode(root) + b"/odd\xff")).touch()
    found = listing(source_of(root), root)
    assert found.names == [b"absolute", b"file", b"odd\xff", b"relative"]
    assert attr_pin(found.attr_at(1)).size == 5
    assert found.target_at(3) == b"file"
    assert found.target_at(0) == b"file", "an absolute link inside the root stays inside the view"
    assert found.place(b"nothing") is None


def test_a_listing_survives_the_wire_and_rejects_damage() -> None:
    attr = folder_attr(5)
    blob = pack_listing(attr, [Entry(b"b", attr, None), Entry(b"a", attr, None)])
    assert Listing(blob).names == [b"a", b"b"]
    for damaged in (b"", blob[:-1], b"XXXX" + blob[4:], blob + b"x"):
        with pytest.raises(BadListingError):
            Listing(damaged)


def test_folders_above_the_roots_show_only_the_way_to_the_roots(tmp_path: Path) -> None:
    roots = (Root(b"/lus/flare/env", b"/r1"), Root(b"/lus/data", b"/r2"))
    assert names_above(b"/", roots) == {b"lus": None}
    assert names_above(b"/lus", roots) == {b"flare": None, b"data": roots[1]}
    assert names_above(b"/etc", roots) is None
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert listing(source_of(tmp_path / "a"), tmp_path).names == [b"a"]


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        (b"/lus/env/lib/x", b"../lib/x"),
        (b"/real/lib/x", b"../lib/x"),
        (b"/lus/env", b".."),
        (b"/lus/environment", b"/lus/environment"),
        (b"/usr/bin/python3", b"/usr/bin/python3"),
        (b"../lib/x", b"../lib/x"),
        (b"/lus/env/../../etc/passwd", b"/lus/env/../../etc/passwd"),
    ],
)
def test_link_texts(target: bytes, shown: bytes) -> None:
    assert link_text(b"/lus/env/bin/link", target, (Root(b"/lus/env", b"/real"),)) == shown


def test_a_root_that_is_a_symlink_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_bytes(b"x")
    (tmp_path / "alias").symlink_to("real")
    assert listing(source_of(tmp_path / "alias"), tmp_path / "alias").names == [b"file"]


def test_a_root_that_is_a_file_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "image.squashfs"
    file.write_bytes(b"z" * 5000)
    source = source_of(file)
    assert read(source, file, pin_of(source, file), 1) == b"z" * (5000 - CHUNK)


def test_nothing_outside_the_roots_can_be_named(tmp_path: Path) -> None:
    root, secret = tmp_path / "root", tmp_path / "secret"
    root.mkdir()
    secret.mkdir()
    (secret / "key").write_bytes(b"top")
    (root / "out").symlink_to(secret)
    (root / "file").symlink_to(secret / "key")
    source = source_of(root)
    pin = Pin(3, (secret / "key").stat().st_mtime_ns, (secret / "key").stat().st_ino)
    for path in (secret / "key", root / "out" / "key", root / "file"):
        with pytest.raises(OSError):
            read(source, path, pin)
    with pytest.raises(OSError):
        listing(source, secret)
    with pytest.raises(OSError):
        listing(source, root / "out")
    for crooked in (b"/../secret/key", b"/./x", b"/a\0b"):
        with pytest.raises(BadKeyError):
            source.read(chunk_key(os.fsencode(root) + crooked, pin, 0))


def test_a_symlink_swapped_in_for_a_folder_is_not_followed(tmp_path: Path) -> None:
    root, other = tmp_path / "root", tmp_path / "other"
    (root / "sub").mkdir(parents=True)
    other.mkdir()
    (other / "file").write_bytes(b"other")
    (root / "sub").rmdir()
    (root / "sub").symlink_to(other)
    status = (other / "file").stat()
    with pytest.raises(OSError):
        read(source_of(root), root / "sub" / "file", Pin(5, status.st_mtime_ns, status.st_ino))


def changed_by_truncation(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(CHUNK)


def changed_by_rewrite(path: Path) -> None:
    path.write_bytes(b"n" * path.stat().st_size)
    os.utime(path, ns=(1, 1))


def changed_by_replacement(path: Path) -> None:
    status = path.stat()
    new = path.with_name("new")
    new.write_bytes(b"n" * status.st_size)
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
    new.rename(path)


def changed_by_removal(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    "change", [changed_by_truncation, changed_by_rewrite, changed_by_replacement, changed_by_removal]
)
def test_a_file_that_changes_is_noticed_before_its_first_read(tmp_path: Path, change: object) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"o" * 3 * CHUNK)
    source = source_of(tmp_path)
    pin = pin_of(source, path)
    assert callable(change)
    change(path)
    with pytest.raises(ChangedError) as caught:
        read(source, path, pin, 0)
    assert caught.value.errno == errno.ESTALE


@pytest.mark.parametrize("change", [changed_by_truncation, changed_by_rewrite])
def test_a_file_that_changes_between_two_chunks_is_noticed(tmp_path: Path, change: object) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"o" * 3 * CHUNK)
    source = source_of(tmp_path)
    pin = pin_of(source, path)
    assert read(source, path, pin, 0) == b"o" * CHUNK
    assert callable(change)
    change(path)
    with pytest.raises(ChangedError):
        read(source, path, pin, 2)


def test_a_replaced_file_that_is_still_open_gives_the_old_version_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"o" * 3 * CHUNK)
    source = source_of(tmp_path)
    pin = pin_of(source, path)
    assert read(source, path, pin, 0) == b"o" * CHUNK
    changed_by_replacement(path)
    assert read(source, path, pin, 2) == b"o" * CHUNK


def test_a_named_pipe_does_not_hang_the_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    source = source_of(tmp_path)
    status = (tmp_path / "pipe").stat()
    with pytest.raises(ChangedError):
        read(source, tmp_path / "pipe", Pin(1, status.st_mtime_ns, status.st_ino))


def test_descriptors_do_not_pile_up(tmp_path: Path) -> None:
    for number in range(400):
        folder = tmp_path / f"d{number}"
        folder.mkdir()
        (folder / "f").write_bytes(b"x" * (CHUNK + 1))
    source = source_of(tmp_path)
    for number in range(400):
        path = tmp_path / f"d{number}" / "f"
        read(source, path, pin_of(source, path), 1)
    assert len(list(Path("/proc/self/fd").iterdir())) < 400
    source.close()


def test_calls_on_the_shared_file_system_are_few_and_counted(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / f"f{number}").write_bytes(b"x" * 100)
    source = source_of(tmp_path)
    pin = pin_of(source, tmp_path / "f0")
    assert source.calls <= 10 + 5
    before = source.calls
    read(source, tmp_path / "f0", pin)
    assert source.calls - before <= 4
    assert source.bytes == 100


def test_threads_that_list_one_folder_at_once_each_see_all_of_it(tmp_path: Path) -> None:
    for number in range(400):
        (tmp_path / f"file{number}").touch()
    source = Source(declare_roots((str(tmp_path),)), 4096)
    key = directory_key(os.fsencode(tmp_path))
    counts: list[int] = []

    def read() -> None:
        counts.extend(len(Listing(bytes(source.read(key)))) for _ in range(10))

    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    source.close()
    assert counts == [400] * 60


def test_a_slow_shared_file_system_is_asked_for_many_names_at_a_time() -> None:
    names = [b"%d" % number for number in range(20)]
    assert [len(share) for share in shares(names, is_slow=False)] == [20]
    assert [len(share) for share in shares(names, is_slow=True)] == [1] * 20
    many = [b"%d" % number for number in range(1000)]
    for is_slow, threads in ((False, 8), (True, 32)):
        assert [name for share in shares(many, is_slow=is_slow) for name in share] == many
        assert len(shares(many, is_slow=is_slow)) == threads
    assert shares([], is_slow=True) == []


def test_a_file_system_is_slow_where_the_quickest_look_is(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    for seconds in (0.0001, 0.01, 0.01, 0.01, 0.01):
        source._looks.append(seconds)
    assert not source.is_slow, "a busy processor makes some looks slow"
    for _ in range(16):
        source._looks.append(0.001)
    assert source.is_slow


def test_inode_numbers_of_two_file_systems_stay_apart_in_one_view(tmp_path: Path) -> None:
    status = tmp_path.stat()
    assert attr_pin(pack_attr(status)).ino == status.st_ino
    assert attr_pin(pack_attr(status, salt=1 << 56)).ino == status.st_ino ^ 1 << 56
