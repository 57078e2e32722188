from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from requirements import require
from windlass.cache.node.limits import Health, TokenBucket, fallback_jitter_s
from windlass.cache.node.store import Store, StoreReader


def key(number: int) -> bytes:
    return b"key-%d" % number


def read(reader: StoreReader, number: int) -> bytes | None:
    return reader.read(key(number))


def test_what_is_put_can_be_read_by_another_process_side(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"), 1 << 20)
    assert store.put(key(1), b"d", b"hello world")
    reader = StoreReader(store.folder)
    assert read(reader, 1) == b"hello world"
    target = bytearray(5)
    assert reader.read_into(key(1), 6, memoryview(target)) == 5
    assert target == b"world"
    assert reader.read_into(key(2), 0, memoryview(target)) == -1


def test_the_store_is_closed_to_other_users(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"), 1 << 20)
    store.put(key(1), b"d", b"x")
    assert Path(store.folder).stat().st_mode & 0o077 == 0
    assert all(f.stat().st_mode & 0o077 == 0 for f in Path(store.folder).iterdir())


def test_the_budget_holds_and_the_least_used_goes_first(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"), 5 * 5120)
    for number in range(5):
        assert store.put(key(number), b"d", b"x" * 4096)
    assert store.digest_of(key(0)) == b"d"
    assert store.put(key(5), b"d", b"x" * 4096)
    assert store.used_bytes <= store.budget_bytes
    assert key(0) in store
    assert key(1) not in store
    assert len(list(Path(store.folder).iterdir())) == 5


def test_an_object_larger_than_the_budget_is_refused_and_hurts_nothing(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"), 10_000)
    assert store.put(key(1), b"d", b"x")
    assert not store.put(key(2), b"d", b"x" * 20_000)
    assert key(1) in store


def test_guests_leave_before_what_this_node_owns(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"), 3 * 5120)
    store.put(key(1), b"d", b"x" * 4096)
    store.put(key(2), b"d", b"x" * 4096, guest=True)
    store.put(key(3), b"d", b"x" * 4096)
    store.put(key(4), b"d", b"x" * 4096)
    assert key(2) not in store
    assert all(key(n) in store for n in (1, 3, 4))


def test_who_has_an_object_open_keeps_it_through_eviction(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"), 5120)
    store.put(key(1), b"d", b"a" * 4096)
    fd = store.open(key(1))
    assert fd is not None
    store.put(key(2), b"d", b"b" * 4096)
    assert key(1) not in store
    assert os.read(fd, 5000) == b"a" * 4096
    os.close(fd)


def test_a_new_store_forgets_what_a_dead_one_left(tmp_path: Path) -> None:
    Store(str(tmp_path / "store"), 1 << 20).put(key(1), b"d", b"x")
    again = Store(str(tmp_path / "store"), 1 << 20)
    assert list(Path(again.folder).iterdir()) == []


def test_many_threads_keep_the_books_right(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"), 40 * 5120)

    def work(offset: int) -> None:
        for number in range(200):
            store.put(key(offset * 1000 + number % 60), b"d", b"x" * 3000)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(Path(store.folder).iterdir())) == len(store)
    assert store.used_bytes == len(store) * 5120 <= store.budget_bytes


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    require("root", os.geteuid() == 0, "only root can mount a small tmpfs")
    folder = tmp_path / "tiny"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], check=True, timeout=10)
    yield folder
    subprocess.run(["umount", str(folder)], check=True, timeout=10)


def test_on_a_full_disk_the_cache_gets_smaller_not_wrong(tiny_disk: Path) -> None:
    store = Store(str(tiny_disk / "store"), 100 << 20)
    for number in range(60):
        store.put(key(number), b"d", b"%02d" % number * 32768)
    assert store.budget_bytes < 1 << 20
    assert store.refused > 0
    reader = StoreReader(store.folder)
    held = [n for n in range(60) if read(reader, n) is not None]
    assert held and all(read(reader, n) == b"%02d" % n * 32768 for n in held)
    reader.close()
    assert store.put(key(99), b"d", b"fits"), "room was made"
    store.close()


def test_the_bucket_gives_a_burst_and_then_a_rate() -> None:
    now = [0.0]
    bucket = TokenBucket(rate=10, burst=5, clock=lambda: now[0])
    assert [bucket.take() for _ in range(5)] == [0.0] * 5
    assert bucket.take() == pytest.approx(0.1)
    assert bucket.take() == pytest.approx(0.2)
    now[0] = 10.0
    assert bucket.take() == 0.0


def test_a_failing_node_is_left_alone_for_longer_each_time_and_forgiven_when_it_answers() -> None:
    now = [0.0]
    health = Health(clock=lambda: now[0], seed=1)
    health.failed(3)
    assert not health.usable(3)
    now[0] = 1.3
    assert health.usable(3)
    health.failed(3)
    now[0] = 2.6
    assert not health.usable(3)
    health.answered(3)
    assert health.usable(3)


def test_a_node_that_sent_wrong_bytes_is_out_for_good() -> None:
    now = [0.0]
    health = Health(clock=lambda: now[0])
    health.sent_wrong_bytes(2)
    health.answered(2)
    now[0] = 1e6
    assert not health.usable(2)
    assert health.paused() == (2,)


def test_the_wait_before_a_fallback_grows_with_the_job_and_is_bounded() -> None:
    import random

    chance = random.Random(1)
    small = [fallback_jitter_s(4, chance) for _ in range(200)]
    large = [fallback_jitter_s(8192, chance) for _ in range(200)]
    assert max(small) < 0.01
    assert 4.0 < max(large) <= 5.0
