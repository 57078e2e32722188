"""Several nodes in one process: real sockets, real files, no mount."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from fuse.caches import peers, wait_for
from windlass.node.cache.config import read_key
from windlass.node.cache.keys import chunk_key, digest, directory_key
from windlass.node.cache.listing import Listing, attr_pin
from windlass.node.cache.peer import Peer
from windlass.node.cache.trace import TouchRecorder, Trace, read_trace, write_trace
from windlass.node.wire import wire
from windlass.node.wire.dial import Target
from windlass.node.wire.link import Collect, Link, open_link, open_local_link
from windlass.node.wire.proof import NO_NODE

CHUNK = 16 << 10


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "shared"
    root.mkdir()
    for number in range(20):
        (root / f"f{number}").write_bytes(os.urandom(3 * CHUNK + number))
    return root


def fetch(peer: Peer, key: bytes) -> bytes:
    """An object as this node's mount process would get it."""
    outcome = peer.fetcher.wait(key, 15.0)
    if outcome.error is not None:
        raise outcome.error
    if outcome.data is not None:
        return outcome.data
    data = peer._store.read(key)
    assert data is not None
    return data


def local_link(peer: Peer) -> Link:
    identity = peer.config.identity(read_key(peer.config.key_file))._replace(node=NO_NODE)
    return open_local_link(peer.config.socket, identity, 0, 30.0)


def keys_of(peer: Peer, path: Path) -> list[bytes]:
    listing = Listing(fetch(peer, directory_key(os.fsencode(path.parent))))
    place = listing.place(os.fsencode(path.name))
    assert place is not None
    pin = attr_pin(listing.attr_at(place))
    count = -(-pin.size // peer.config.chunk_bytes)
    return [chunk_key(os.fsencode(path), pin, index) for index in range(count)]


def fetch_file(peer: Peer, path: Path) -> bytes:
    return b"".join(fetch(peer, key) for key in keys_of(peer, path))


def test_all_nodes_get_the_bytes_and_the_shared_file_system_is_read_once(tmp_path: Path, tree: Path) -> None:
    with peers(tmp_path / "c", 7, tree, fanout=2, chunk_bytes=CHUNK) as nodes:
        for peer in nodes:
            for number in range(5):
                assert fetch_file(peer, tree / f"f{number}") == (tree / f"f{number}").read_bytes()
        total = sum(p.status()["source_bytes"] for p in nodes)
        assert total == sum((tree / f"f{n}").stat().st_size for n in range(5))
        assert [p.config.node for p in nodes if p.status()["source_calls"]] == [0]


def test_calls_on_the_shared_file_system_do_not_grow_with_the_number_of_nodes(tmp_path: Path, tree: Path) -> None:
    calls = []
    for count in (1, 6):
        with peers(tmp_path / f"c{count}", count, tree, chunk_bytes=CHUNK) as nodes:
            for peer in nodes:
                for number in range(20):
                    fetch_file(peer, tree / f"f{number}")
            calls.append(sum(p.status()["source_calls"] for p in nodes))
    assert calls[1] <= 1.05 * calls[0]


def test_concurrent_readers_of_a_chunk_cause_one_fetch(tmp_path: Path, tree: Path) -> None:
    with peers(tmp_path / "c", 2, tree, chunk_bytes=CHUNK, live=False) as nodes:
        key = keys_of(nodes[1], tree / "f3")[0]
        before = nodes[1].status()["calls"]["parent"]
        threads = [threading.Thread(target=fetch, args=(nodes[1], key)) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert nodes[1].status()["calls"]["parent"] - before == 1
        wait_for(lambda: nodes[0].status()["source_bytes"] == 3 * CHUNK + 3, what="chunks beside it are read after it")


def test_chunks_beside_one_that_is_wanted_follow_it_in_few_reads(tmp_path: Path) -> None:
    file = tmp_path / "shared" / "library"
    file.parent.mkdir()
    file.write_bytes(os.urandom(11 * CHUNK + 5))
    with peers(tmp_path / "c", 1, file.parent, chunk_bytes=CHUNK) as (peer,):
        keys = keys_of(peer, file)
        calls = peer.status()["source_calls"]
        assert fetch(peer, keys[6]) == file.read_bytes()[6 * CHUNK : 7 * CHUNK]
        wait_for(lambda: all(key in peer._store for key in keys[4:8]))
        assert [key in peer._store for key in keys] == [False] * 4 + [True] * 4 + [False] * 4
        assert peer.status()["source_calls"] - calls == 2 + 3 * 2, "open and fstat; it, those before it, that behind it"
        for index, key in enumerate(keys):
            assert fetch(peer, key) == file.read_bytes()[index * CHUNK : (index + 1) * CHUNK]
        assert peer.status()["source_bytes"] == 11 * CHUNK + 5, "nothing is read twice"


def test_an_error_ends_the_wait_for_every_chunk_of_a_run(tmp_path: Path) -> None:
    file = tmp_path / "shared" / "library"
    file.parent.mkdir()
    file.write_bytes(os.urandom(8 * CHUNK))
    with peers(tmp_path / "c", 1, file.parent, chunk_bytes=CHUNK) as (peer,):
        keys = keys_of(peer, file)
        file.write_bytes(b"another")
        for key in keys:
            with pytest.raises(OSError) as caught:
                fetch(peer, key)
            assert caught.value.errno == errno.ESTALE
        wait_for(lambda: not peer.fetcher.arrivals.flights, what="nobody waits for ever")


def test_several_readers_share_the_reading_of_a_large_file(tmp_path: Path) -> None:
    root = tmp_path / "shared"
    root.mkdir()
    (root / "large").write_bytes(os.urandom(64 * CHUNK))
    with peers(tmp_path / "c", 6, root, chunk_bytes=CHUNK, readers=2, fanout=2) as nodes:
        for peer in nodes:
            assert fetch_file(peer, root / "large") == (root / "large").read_bytes()
        read = [p.status()["source_bytes"] for p in nodes]
        assert sum(read) == 64 * CHUNK
        assert read[0] == read[3] == 32 * CHUNK


def test_in_partition_every_byte_is_read_once_whoever_asks(tmp_path: Path, tree: Path) -> None:
    with peers(tmp_path / "c", 5, tree, placement="partition", chunk_bytes=CHUNK) as nodes:
        for peer in nodes:
            for number in range(20):
                assert fetch_file(peer, tree / f"f{number}") == (tree / f"f{number}").read_bytes()
        read = [p.status()["source_bytes"] for p in nodes]
        assert sum(read) == sum(f.stat().st_size for f in tree.iterdir())
        assert all(read), "every node owns a part"


def test_dead_parent_is_replaced_by_grandparent(tmp_path: Path, tree: Path) -> None:
    with peers(tmp_path / "c", 4, tree, fanout=1, chunk_bytes=CHUNK) as nodes:
        fetch_file(nodes[3], tree / "f0")
        nodes[2].close()
        assert fetch_file(nodes[3], tree / "f1") == (tree / "f1").read_bytes()
        assert nodes[3].status()["bytes"]["peer"] > 0
        assert nodes[3].status()["source_calls"] == 0


def test_dead_root_is_replaced_by_one_standby_reader(tmp_path: Path, tree: Path) -> None:
    with peers(tmp_path / "c", 7, tree, fanout=2, chunk_bytes=CHUNK) as nodes:
        nodes[0].close()
        for peer in nodes[1:]:
            assert fetch_file(peer, tree / "f1") == (tree / "f1").read_bytes()
        assert [p.config.node for p in nodes[1:] if p.status()["source_bytes"]] == [1]


def test_the_last_node_alive_reads_the_shared_file_system_itself(tmp_path: Path, tree: Path) -> None:
    with peers(tmp_path / "c", 5, tree, fanout=2, chunk_bytes=CHUNK) as nodes:
        for peer in nodes[:4]:
            peer.close()
        assert fetch_file(nodes[4], tree / "f1") == (tree / "f1").read_bytes()
        assert nodes[4].status()["fallbacks"] > 0


def test_a_node_that_sends_wrong_bytes_is_caught_and_left_out(tmp_path: Path, tree: Path) -> None:
    with peers(tmp_path / "c", 3, tree, fanout=1, chunk_bytes=CHUNK, live=False) as nodes:
        key = keys_of(nodes[1], tree / "f2")[0]
        good = fetch(nodes[1], key)
        for held in nodes[1]._store._held.values():  # a node whose memory rots: everything it holds
            os.pwrite(held.fd, bytes(b ^ 1 for b in held.read()), held.offset)
        assert fetch(nodes[2], key) == good
        status = nodes[2].status()
        assert status["corrupt"] >= 1
        assert status["left_out"] == [1]
        assert status["bytes"]["peer"] > 0


def test_a_file_changed_under_the_job_is_an_error_everywhere_and_reported(tmp_path: Path, tree: Path) -> None:
    with peers(tmp_path / "c", 3, tree, fanout=1, chunk_bytes=CHUNK) as nodes:
        (tree / "f4").write_bytes(os.urandom(9 * CHUNK))
        keys = keys_of(nodes[2], tree / "f4")
        first = fetch(nodes[2], keys[0])
        assert first == (tree / "f4").read_bytes()[:CHUNK]
        (tree / "f4").write_bytes(os.urandom(9 * CHUNK))
        for peer in nodes:
            with pytest.raises(OSError) as caught:
                fetch(peer, keys[8])
            assert caught.value.errno == errno.ESTALE
            assert peer.status()["changed"] >= 1
        assert fetch(nodes[0], keys[0]) == first, "what was read before stays as it was"


def test_a_budget_smaller_than_one_file_still_serves_everything(tmp_path: Path, tree: Path) -> None:
    with peers(tmp_path / "c", 3, tree, fanout=1, chunk_bytes=CHUNK, budget_bytes=3 * CHUNK) as nodes:
        for peer in reversed(nodes):
            for number in range(4):
                assert fetch_file(peer, tree / f"f{number}") == (tree / f"f{number}").read_bytes()
            assert peer.status()["used_bytes"] <= 3 * CHUNK


def record(tree: Path, names: list[str], chunk_bytes: int, path: Path) -> None:
    recorder = TouchRecorder(chunk_bytes, 1 << 30)
    recorder.directory(os.fsencode(tree))
    for name in names:
        size = (tree / name).stat().st_size
        for index in range(-(-size // chunk_bytes)):
            recorder.chunk(os.fsencode(tree / name), index, size)
    write_trace(str(path), recorder.trace("t", (os.fsencode(tree),)))


@pytest.mark.parametrize("readers", [1, 2])
def test_a_trace_is_pushed_to_all_nodes_without_being_asked(tmp_path: Path, tree: Path, readers: int) -> None:
    record(tree, ["f5", "f1", "f9"], CHUNK, tmp_path / "trace.json")
    settings = {"trace_in": str(tmp_path / "trace.json"), "chunk_bytes": CHUNK, "fanout": 2, "readers": readers}
    with peers(tmp_path / "c", 6, tree, **settings) as nodes:
        wait_for(lambda: all(p.status()["push"]["ended"] for p in nodes), what="push")
        for peer in nodes:
            assert all(key in peer._store for name in ("f5", "f1", "f9") for key in keys_of(peer, tree / name))
        read = sum(p.status()["source_bytes"] for p in nodes)
        assert read == sum((tree / name).stat().st_size for name in ("f5", "f1", "f9"))


def test_a_trace_travels_in_few_frames_and_is_read_in_few_calls(tmp_path: Path) -> None:
    root = tmp_path / "shared"
    root.mkdir()
    (root / "large").write_bytes(os.urandom(40 * CHUNK + 7))
    record(root, ["large"], CHUNK, tmp_path / "trace.json")
    with peers(tmp_path / "c", 3, root, trace_in=str(tmp_path / "trace.json"), chunk_bytes=CHUNK, fanout=1) as nodes:
        wait_for(lambda: all(p.status()["push"]["ended"] for p in nodes), what="push")
        for peer in nodes:
            keys = keys_of(peer, root / "large")
            places = [peer._store.place_of(key) for key in keys]
            assert all(place is not None for place in places)
            assert b"".join(peer._store.read(key) or b"" for key in keys) == (root / "large").read_bytes()
            assert [peer._store.digest_of(key) for key in keys] == [nodes[0]._store.digest_of(key) for key in keys]
        offsets = [place.offset for place in places if place is not None]
        assert offsets == [offsets[0] + CHUNK * n for n in range(41)], "they lie beside each other"
        # The names: open, fstat and two reads and one look; the file: open, fstat, one read and one fstat.
        assert nodes[0].status()["source_calls"] <= 10


def test_wrong_bytes_in_the_midst_of_a_batch_are_not_kept(tmp_path: Path, tree: Path) -> None:
    with peers(tmp_path / "c", 2, tree, chunk_bytes=CHUNK, live=False) as nodes:
        keys = keys_of(nodes[1], tree / "f3")[:3]
        parts = [(tree / "f3").read_bytes()[CHUNK * n : CHUNK * (n + 1)] for n in range(3)]
        prefix = wire.batch_prefix((key, digest(key, part), len(part)) for key, part in zip(keys, parts, strict=True))
        log = nodes[1]._streams.logs[0]
        before = len(log.items)
        body = prefix + parts[0] + bytes(CHUNK) + parts[2]
        assert not nodes[1]._streams.batch_arrived(log, 0, memoryview(body))
        assert [key in nodes[1]._store for key in keys] == [True, False, False]
        assert log.items[before:] == keys[:1]
        assert nodes[1].status()["corrupt"] == 1
        assert nodes[1]._streams.batch_arrived(log, 0, memoryview(prefix + b"".join(parts)))
        assert [nodes[1]._store.read(key) for key in keys] == parts


def test_a_trace_of_files_that_are_gone_pushes_the_rest(tmp_path: Path, tree: Path) -> None:
    record(tree, ["f5", "f1", "f9"], CHUNK, tmp_path / "trace.json")
    (tree / "f1").unlink()
    (tree / "f9").write_bytes(b"short now")
    with peers(tmp_path / "c", 3, tree, trace_in=str(tmp_path / "trace.json"), chunk_bytes=CHUNK) as nodes:
        wait_for(lambda: all(p.status()["push"]["ended"] for p in nodes), what="push")
        for peer in nodes:
            assert all(key in peer._store for key in keys_of(peer, tree / "f5"))
            assert fetch_file(peer, tree / "f9") == b"short now"


def test_a_push_goes_on_when_the_parent_dies(tmp_path: Path, tree: Path) -> None:
    names = [f"f{n}" for n in range(20)]
    record(tree, names, 4096, tmp_path / "trace.json")
    with peers(tmp_path / "c", 3, tree, fanout=1, trace_in=str(tmp_path / "trace.json"), chunk_bytes=4096) as nodes:
        nodes[1].close()
        wait_for(lambda: bool(nodes[2].status()["push"]["ended"]), 20, "push")
        assert fetch_file(nodes[2], tree / "f19") == (tree / "f19").read_bytes()


def test_status_of_the_tree_names_the_nodes_that_are_gone(tmp_path: Path, tree: Path) -> None:
    with peers(tmp_path / "c", 7, tree, fanout=2) as nodes:
        nodes[1].close()
        found = nodes[0]._ask_below(0, 4.0)
        states = {s["node"]: s["state"] for s in found}
        assert states[1] == "gone"
        assert {n for n, s in states.items() if s == "ready"} == {2, 3, 4, 5, 6}


def test_what_the_mount_reports_becomes_the_trace(tmp_path: Path, tree: Path) -> None:
    out = tmp_path / "traces" / "t.json"
    with peers(tmp_path / "c", 1, tree, trace_out=str(out), chunk_bytes=CHUNK) as (peer,):
        keys = [directory_key(os.fsencode(tree)), *keys_of(peer, tree / "f3")]
        body = b"{}\n" + b"".join(len(k).to_bytes(2, "little") + k for k in keys)

        class Local:
            local = True
            closed = False

        peer._touched(Local(), body)  # type: ignore[arg-type]
    trace: Trace = read_trace(str(out))
    assert [(t.path, t.offset) for t in trace.touches] == [(os.fsencode(tree), 0), (os.fsencode(tree / "f3"), 0)]
    assert trace.file_bytes == (tree / "f3").stat().st_size


def test_what_is_here_does_not_wait_behind_a_slow_shared_file_system(tmp_path: Path, tree: Path) -> None:
    with peers(tmp_path / "c", 1, tree, chunk_bytes=CHUNK) as (peer,):
        held, slow, more = (keys_of(peer, tree / name)[0] for name in ("f1", "f2", "f3"))
        fetch(peer, held)
        plain = peer._source.read_run
        peer._source.read_run = lambda key, count: (time.sleep(1.0), plain(key, count))[1]  # type: ignore[method-assign]
        fetch(peer, more)
        asked, answer = threading.Event(), threading.Event()
        peer._source.read_run = lambda key, count: (asked.set(), answer.wait(60), plain(key, count))[2]  # type: ignore[method-assign]
        link = local_link(peer)
        late, soon = Collect(), Collect()
        link.ask(wire.GET, slow, late)
        assert asked.wait(30)
        link.ask(wire.GET, held, soon)
        assert soon.wait(30.0)[0] == wire.HAVE
        answer.set()
        assert late.wait(30.0)[0] == wire.HAVE
        link.close()


def test_a_quick_read_is_done_by_the_thread_that_was_asked(tmp_path: Path, tree: Path) -> None:
    with peers(tmp_path / "c", 1, tree, chunk_bytes=CHUNK) as (peer,):
        keys = [keys_of(peer, tree / f"f{n}")[0] for n in range(4)]
        fetch(peer, keys[0])
        peer.fetcher.reader._last_read_s = 0.0
        names: list[str] = []
        plain = peer._source.read_run

        def noted(key: bytes, count: int) -> memoryview:
            if key in keys:  # and not one beside it, which others read
                names.append(threading.current_thread().name)
            return plain(key, count)

        peer._source.read_run = noted  # type: ignore[method-assign]
        link = local_link(peer)
        for key in keys[1:]:
            peer.fetcher.reader._last_read_s = 0.0
            reply = Collect()
            link.ask(wire.GET, key, reply)
            assert reply.wait(30.0)[0] == wire.HAVE
        link.close()
        assert set(names) == {"inbound"}


def test_a_slow_shared_file_system_is_waited_for_not_stormed(tmp_path: Path, tree: Path) -> None:
    with peers(tmp_path / "c", 4, tree, fanout=2, chunk_bytes=CHUNK, peer_timeout_s=0.8) as nodes:
        keys = keys_of(nodes[3], tree / "f6")
        root = nodes[0]._source
        plain = root.read

        def slow(key: bytes) -> bytes:
            time.sleep(2.5)
            return plain(key)

        root.read = slow  # type: ignore[method-assign]
        assert fetch(nodes[3], keys[0]) == (tree / "f6").read_bytes()[:CHUNK]
        assert sum(p.status()["fallbacks"] for p in nodes) == 0


def test_a_request_for_a_path_outside_the_roots_is_refused_over_the_network(tmp_path: Path, tree: Path) -> None:
    (tmp_path / "secret").write_bytes(b"s" * 100)
    with peers(tmp_path / "c", 1, tree) as (peer,):
        key = Path(peer.config.key_file).read_bytes()
        identity = peer.config.identity(key)._replace(node=NO_NODE)
        link, _ = open_link(Target(peer.config.hosts[0], (peer.port,), 0), identity, 30.0)
        for wanted in (directory_key(b"/etc"), directory_key(os.fsencode(tree) + b"/../.."), b"\x07garbage", b""):
            reply = Collect()
            assert link.ask(wire.GET, wanted, reply)
            with pytest.raises(OSError):
                reply.wait(30.0)
        reply = Collect()
        good = directory_key(os.fsencode(tree))
        assert link.ask(wire.GET, good, reply)
        kind, body = reply.wait(30.0)
        sent, stated, data = wire.parse_object(memoryview(body))
        assert kind == wire.OBJECT and sent == good and digest(sent, data) == stated
        link.close()


def test_what_one_node_reads_comes_to_all_others_without_being_asked(tmp_path: Path, tree: Path) -> None:
    with peers(tmp_path / "c", 5, tree, fanout=2, chunk_bytes=CHUNK) as nodes:
        keys = [key for number in range(5) for key in keys_of(nodes[3], tree / f"f{number}")]
        for key in keys:
            fetch(nodes[3], key)
        for peer in nodes:
            wait_for(lambda peer=peer: all(key in peer._store for key in keys), what="live push")
        assert sum(p.status()["source_bytes"] for p in nodes) == sum((tree / f"f{n}").stat().st_size for n in range(5))


def test_the_live_push_ends_at_its_limit_and_demand_goes_on(tmp_path: Path, tree: Path) -> None:
    with peers(tmp_path / "c", 3, tree, chunk_bytes=CHUNK, live_limit_bytes=4 * CHUNK) as nodes:
        for number in range(10):
            fetch_file(nodes[1], tree / f"f{number}")
        time.sleep(0.3)
        assert nodes[2].status()["push"]["bytes"] <= 4 * CHUNK + 10_000
        for number in range(10):
            assert fetch_file(nodes[2], tree / f"f{number}") == (tree / f"f{number}").read_bytes()


def test_in_partition_nothing_is_pushed_live(tmp_path: Path, tree: Path) -> None:
    with peers(tmp_path / "c", 3, tree, chunk_bytes=CHUNK, placement="partition") as nodes:
        for number in range(10):
            fetch_file(nodes[1], tree / f"f{number}")
        time.sleep(0.3)
        assert all(p.status()["push"]["bytes"] == 0 for p in nodes)
