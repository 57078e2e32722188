from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from requirements import require
from windlass.node.cache.limits import NodeHealth, TokenBucket, fallback_jitter_s
from windlass.node.cache.store import Store, StoreReader, parse_location
from windlass.node.sys.memory import memory_left


def key(number: int) -> bytes:
    return b"key-%d" % number


def told(store: Store) -> StoreReader:
    """The mount process's side, told of everything there is."""
    reader = StoreReader(store.folder)
    tell(reader, store, range(2000))
    return reader


def tell(reader: StoreReader, store: Store, numbers: Iterable[int]) -> None:
    for number in numbers:
        place = store.place_of(key(number))
        if place is not None:
            reader.learn(key(number), parse_location(place.pack()))


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(params=["memory", "folder"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "folder" else ""


def test_what_is_put_can_be_read_by_another_process_side(where: str) -> None:
    store = Store(where, 1 << 20)
    assert store.put(key(1), b"d", b"hello world")
    reader = told(store)
    assert reader.read(key(1)) == b"hello world"
    target = bytearray(5)
    assert reader.read_into(key(1), 6, memoryview(target)) == 5
    assert target == b"world"
    assert reader.read_into(key(1), 6, memoryview(bytearray(100))) == 5, "not a byte of the next object"
    assert reader.read_into(key(2), 0, memoryview(target)) == -1
    store.close()


def test_a_real_other_process_reads_memory_that_has_no_name() -> None:
    store = Store("", 1 << 20)
    store.put(key(1), b"d", b"from over there")
    place = store.place_of(key(1))
    assert place is not None
    code = (
        "import sys; from windlass.node.cache.store import StoreReader, parse_location\n"
        "reader = StoreReader(''); reader.learn(b'k', parse_location(bytes.fromhex(sys.argv[1])))\n"
        "sys.stdout.buffer.write(reader.read(b'k') or b'nothing')"
    )

    def other_process() -> bytes:
        words = [sys.executable, "-c", code, place.pack().hex()]
        env = {"PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.run(words, stdout=subprocess.PIPE, env=env, check=True, timeout=30).stdout

    assert other_process() == b"from over there"
    store.close()
    assert other_process() == b"nothing"


def test_the_store_is_closed_to_other_users(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"), 1 << 20)
    store.put(key(1), b"d", b"x")
    assert Path(store.folder).stat().st_mode & 0o077 == 0
    assert all(f.stat().st_mode & 0o077 == 0 for f in Path(store.folder).iterdir())


def test_the_budget_holds_and_the_least_used_goes_first(where: str) -> None:
    store = Store(where, 5 * 4096)
    for number in range(5):
        assert store.put(key(number), b"d", b"x" * 4096)
    assert store.digest_of(key(0)) == b"d"
    assert store.put(key(5), b"d", b"x" * 4096)
    assert store.used_bytes <= store.budget_bytes
    assert key(0) in store
    assert key(1) not in store
    if where:
        assert len(list(Path(where).iterdir())) == 5
    store.close()


def test_small_objects_share_a_segment_and_large_ones_do_not_wait_for_it(where: str) -> None:
    store = Store(where, 1 << 30)
    before = descriptors()
    for number in range(1000):
        assert store.put(key(number), b"d", b"%04d" % number * 25)
    assert descriptors() == before + 1
    assert store.put(key(1000), b"d", b"y" * (20 << 20)), "larger than a segment"
    reader = told(store)
    assert all(reader.read(key(n)) == b"%04d" % n * 25 for n in range(1000))
    assert reader.read(key(1000)) == b"y" * (20 << 20)
    store.close()


def test_an_object_larger_than_the_budget_is_refused_and_hurts_nothing(where: str) -> None:
    store = Store(where, 10_000)
    assert store.put(key(1), b"d", b"x")
    assert not store.put(key(2), b"d", b"x" * 20_000)
    assert key(1) in store
    store.close()


def test_guests_leave_before_what_this_node_owns(where: str) -> None:
    store = Store(where, 3 * 4096)
    store.put(key(1), b"d", b"x" * 4096)
    store.put(key(2), b"d", b"x" * 4096, evict_first=True)
    store.put(key(3), b"d", b"x" * 4096)
    store.put(key(4), b"d", b"x" * 4096)
    assert key(2) not in store
    assert all(key(n) in store for n in (1, 3, 4))
    store.close()


def test_who_holds_an_object_keeps_it_through_eviction(where: str) -> None:
    store = Store(where, 4096)
    before = descriptors()
    store.put(key(1), b"d", b"a" * 4096)
    held = store.hold(key(1))
    assert held is not None
    store.put(key(2), b"d", b"b" * 4096)
    assert key(1) not in store
    assert held.read() == b"a" * 4096
    store.release(held)
    assert descriptors() == before + 1, "given up for good with the last who held it"
    store.close()
    assert descriptors() == before


def test_a_reader_sees_the_right_bytes_or_none_while_everything_is_given_up_around_it(where: str) -> None:
    store = Store(where, 64 << 10)
    reader = StoreReader(where)
    store.on_gone = reader.forget
    over = threading.Event()
    wrong: list[int] = []

    def read() -> None:
        while not over.is_set():
            for number in range(300):
                data = reader.read(key(number))
                if data is not None and data != b"%04d" % number * 1024:
                    wrong.append(number)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for thread in readers:
        thread.start()
    for turn in range(6):
        for number in range(300):
            store.put(key(number), b"d", b"%04d" % number * 1024)
            tell(reader, store, [number, (number + turn) % 300])
    over.set()
    for thread in readers:
        thread.join(20)
    assert not wrong
    assert store.evicted > 1000
    store.close()


def test_memory_is_free_when_both_sides_have_let_go() -> None:
    store = Store("", 1 << 20)
    reader = StoreReader("")
    store.on_gone = reader.forget
    before = descriptors()
    for number in range(200):
        store.put(key(number), b"d", bytes(64 << 10))
        tell(reader, store, [number])
        assert reader.read(key(number)) is not None
    assert descriptors() <= before + 2 * 17
    store.close()
    assert descriptors() == before


def test_a_place_that_was_given_up_is_not_another_file_that_got_its_descriptor() -> None:
    store = Store("", 4096)
    store.put(key(1), b"d", b"a" * 4096)
    place = store.place_of(key(1))
    assert place is not None
    store.put(key(2), b"d", b"b" * 4096)
    again = store.place_of(key(2))
    assert again is not None
    assert again.fd == place.fd, "the kernel gives the lowest free number"
    reader = StoreReader("")
    reader.learn(key(1), place)
    assert reader.read(key(1)) is None
    store.close()


def test_a_new_store_forgets_what_a_dead_one_left(tmp_path: Path) -> None:
    Store(str(tmp_path / "store"), 1 << 20).put(key(1), b"d", b"x")
    again = Store(str(tmp_path / "store"), 1 << 20)
    assert list(Path(again.folder).iterdir()) == []


def test_many_threads_keep_the_books_right(where: str) -> None:
    store = Store(where, 40 * 3000)

    def work(offset: int) -> None:
        for number in range(200):
            store.put(key(offset * 1000 + number % 60), b"d", b"x" * 3000)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 < len(store) * 3000 <= store.used_bytes <= store.budget_bytes
    store.close()
    assert store.used_bytes == 0
    assert len(store) == 0


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    require("root", os.geteuid() == 0, "only root can mount a small tmpfs")
    folder = tmp_path / "tiny"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], check=True, timeout=30)
    yield folder
    subprocess.run(["umount", str(folder)], check=True, timeout=30)


def test_on_a_full_disk_the_cache_gets_smaller_not_wrong(tiny_disk: Path) -> None:
    store = Store(str(tiny_disk / "store"), 4 << 20)
    for number in range(60):
        store.put(key(number), b"d", b"%02d" % number * 32768)
    assert store.budget_bytes < 1 << 20
    assert store.refused > 0
    reader = told(store)
    held = [n for n in range(60) if reader.read(key(n)) is not None]
    assert held and all(reader.read(key(n)) == b"%02d" % n * 32768 for n in held)
    reader.close()
    assert store.put(key(99), b"d", b"fits"), "room was made"
    store.close()


def test_on_a_node_short_of_memory_the_cache_gets_smaller_not_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    left = 300 << 20
    store = Store("", 1 << 30)
    monkeypatch.setattr("windlass.node.cache.store.memory_left", lambda: left - store.used_bytes)
    for number in range(100):
        store.put(key(number), b"d", bytes(1 << 20))
        assert store.used_bytes <= left - (256 << 20)
    assert store.refused > 0
    assert store.put(key(200), b"d", b"still goes on") or store.budget_bytes < 1 << 20
    store.close()


V2_FILES = ("memory.max", "memory.current")
V1_FILES = ("memory.limit_in_bytes", "memory.usage_in_bytes")
V1_MOUNT = "33 32 0:29 / TOP rw,nosuid shared:9 - cgroup cgroup rw,memory\n"
V2_MOUNT = "33 32 0:29 / TOP rw,nosuid shared:9 - cgroup2 cgroup2 rw\n"


class Machine:
    """A /proc and control groups as a kernel shows them."""

    def __init__(self, base: Path, own: str, mount: str) -> None:
        self.proc, self.groups = base / "proc", base / "groups"
        (self.proc / "self").mkdir(parents=True)
        self.groups.mkdir()
        (self.proc / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
        (self.proc / "self" / "cgroup").write_text(own)
        (self.proc / "self" / "mountinfo").write_text(mount.replace("TOP", str(self.groups)))

    def limit(
        self, path: str, limit: str, used: int, names: tuple[str, str] = ("memory.max", "memory.current")
    ) -> None:
        folder = self.groups / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / names[0]).write_text(f"{limit}\n")
        (folder / names[1]).write_text(f"{used}\n")

    def left(self) -> int:
        return memory_left(str(self.proc))


def test_memory_left_is_the_least_of_machine_and_control_groups(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/slurm/job_1/step_0\n", V2_MOUNT)
    assert machine.left() == 8000 * 1024
    machine.limit("slurm/job_1/step_0", "max", 1)
    machine.limit("slurm/job_1", "5000000", 4000000)
    assert machine.left() == 1_000_000
    assert memory_left(str(tmp_path / "none")) == 0


def test_memory_left_knows_control_groups_of_version_1(tmp_path: Path) -> None:
    own = "12:cpu,cpuacct:/\n4:memory:/slurm/uid_7/job_1\n0::/user.slice\n"
    machine = Machine(tmp_path, own, "30 1 0:1 / /none rw - cgroup cgroup rw,cpu\n" + V1_MOUNT)
    machine.limit("slurm/uid_7/job_1", "9223372036854771712", 5, V1_FILES)
    assert machine.left() == 8000 * 1024, "no limit"
    machine.limit("slurm/uid_7", "3000000", 1000000, V1_FILES)
    assert machine.left() == 2_000_000


@pytest.mark.parametrize("own", ["0::/\n", "0::/../other\n"])
def test_memory_left_knows_the_limit_of_the_namespace_itself(tmp_path: Path, own: str) -> None:
    machine = Machine(tmp_path, own, V2_MOUNT)
    machine.limit("", "700000", 100000)
    assert machine.left() == 600_000


def test_memory_left_in_a_container_is_that_of_the_group_mounted_there(tmp_path: Path) -> None:
    mount = "33 32 0:29 /docker/abc TOP ro - cgroup cgroup rw,memory\n"
    machine = Machine(tmp_path, "4:memory:/docker/abc/inner\n", mount)
    machine.limit("", "800000", 100000, V1_FILES)
    assert machine.left() == 700_000
    machine.limit("inner", "500000", 100000, V1_FILES)
    assert machine.left() == 400_000
    (machine.proc / "self" / "cgroup").write_text("4:memory:/elsewhere\n")
    assert machine.left() == 700_000


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
    health = NodeHealth(clock=lambda: now[0], seed=1)
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
    health = NodeHealth(clock=lambda: now[0])
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
