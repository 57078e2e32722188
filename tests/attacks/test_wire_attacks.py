"""Attacks on the connections between nodes: squatted ports, relays, floods, changed and hostile frames."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from attacks.background import Act, Counts, stranger
from attacks.record import record
from attacks.stranger import UID
from fuse.caches import configs, wait_for
from windlass.node.cache.config import NodeConfig
from windlass.node.cache.keys import chunk_key, directory_key
from windlass.node.cache.listing import Listing, attr_pin
from windlass.node.cache.peer import Peer
from windlass.node.cache.trace import BadTraceError, parse_trace
from windlass.node.wire import accept, wire
from windlass.node.wire.accept import MAX_UNPROVEN, Acceptor
from windlass.node.wire.dial import Target, dial
from windlass.node.wire.link import Collect, FrameReader, open_link
from windlass.node.wire.ports import CANDIDATES, listen_tcp, port_candidates
from windlass.node.wire.proof import (
    CLAIM_BYTES,
    HELLO_BYTES,
    NO_NODE,
    PROOF_BYTES,
    Channel,
    Identity,
    ProtocolError,
    SessionKeys,
)

SEED = 20261115
KEY = bytes(range(32))
CALLED = Identity(KEY, "run", "cache", 0)
CALLER = CALLED._replace(node=1)


@pytest.fixture
def host() -> str:
    return f"127.{random.randrange(64, 250)}.{random.randrange(250)}.1"


def listeners(host: str, ports: tuple[int, ...]) -> list[socket.socket]:
    return [listen_tcp(host, (port,)) for port in ports]


def silent(host: str, ports: tuple[int, ...]) -> Act:
    """Listens, takes connections and says nothing."""

    def act(ready: Callable[[], None], goes_on: Callable[[], bool]) -> Counts:
        listening, taken = listeners(host, ports), []
        ready()
        while goes_on():
            for sock in select.select(listening, [], [], 0.05)[0]:
                taken.append(sock.accept()[0])
        return {"callers": len(taken)}

    return act


def relay(host: str, ports: tuple[int, ...], real: int) -> Act:
    """Listens, passes everything on to the real port and back, and changes what comes after the proof."""

    def act(ready: Callable[[], None], goes_on: Callable[[], bool]) -> Counts:
        counts = {"callers": 0, "bytes_of_proofs": 0, "bytes_after_the_proof": 0}
        listening, pairs, passed = listeners(host, ports), {}, {}
        ready()
        while goes_on():
            for sock in select.select([*listening, *pairs], [], [], 0.05)[0]:
                if sock in listening:
                    caller, _ = sock.accept()
                    with contextlib.suppress(OSError):
                        onward = socket.create_connection((host, real), 10)
                        pairs[caller], pairs[onward] = onward, caller
                        passed[caller], passed[onward] = CLAIM_BYTES, HELLO_BYTES + PROOF_BYTES
                        counts["callers"] += 1
                    continue
                if sock not in pairs:
                    continue  # closed with its other side, in this very round
                try:
                    data = sock.recv(65536)
                    proof, rest = data[: passed[sock]], bytearray(data[passed[sock] :])
                    passed[sock] -= len(proof)
                    counts["bytes_of_proofs"] += len(proof)
                    counts["bytes_after_the_proof"] += len(rest)
                    pairs[sock].sendall(proof + bytes(byte ^ 1 for byte in rest))
                except OSError:
                    data = b""
                if not data:
                    other = pairs.pop(sock)
                    pairs.pop(other, None)
                    sock.close()
                    other.close()
        return counts

    return act


def flood(host: str, port: int) -> Act:
    """Holds 1,500 connections that prove nothing, and makes a new one for each that the node closes."""

    def act(ready: Callable[[], None], goes_on: Callable[[], bool]) -> Counts:
        held: dict[int, socket.socket] = {}
        closed = select.poll()
        made = 0
        ready()
        while goes_on():
            for _ in range(min(50, 1500 - len(held))):
                with contextlib.suppress(OSError):
                    sock = socket.create_connection((host, port), 5)
                    sock.sendall(b"\0" * 8)
                    held[sock.fileno()] = sock
                    closed.register(sock, select.POLLRDHUP)
                    made += 1
            for number, _ in closed.poll(10):
                closed.unregister(number)
                held.pop(number).close()
        return {"half_open_connections": made}

    return act


@contextlib.contextmanager
def started(*nodes: NodeConfig) -> Iterator[list[Peer]]:
    running: list[Peer] = []
    try:
        for config in nodes:
            Path(config.state_dir).mkdir(parents=True)
            peer = Peer(config, Path(config.key_file).read_bytes())
            peer.start()
            running.append(peer)
        wait_for(lambda: all(peer.status()["state"] == "ready" for peer in running), 60, "all nodes up")
        yield running
    finally:
        for peer in running:
            peer.close()


def identity_of(config: NodeConfig) -> Identity:
    return config.identity(Path(config.key_file).read_bytes())


def object_of(peer: Peer, key: bytes) -> bytes:
    outcome = peer.fetcher.wait(key, 30.0)
    assert outcome.error is None, outcome.error
    data = outcome.data if outcome.data is not None else peer._store.read(key)
    assert data is not None
    return data


def test_a_relay_on_fifteen_ports_reads_and_changes_nothing(tmp_path: Path) -> None:
    """The squatter passes every proof on to the real node; the endpoint in it is the squatter's: none is accepted."""
    root = tmp_path / "shared"
    root.mkdir()
    (root / "module.py").write_bytes(b"answer = 42\n" * 1000)
    (root / "module.py").chmod(0o600)
    first, second = configs(tmp_path / "c", 2, root)
    ports = port_candidates(identity_of(first), 0)
    with stranger(relay(first.hosts[0], ports[:-1], ports[-1])) as attack:
        with started(first, second) as peers:
            assert peers[0].port == ports[-1]
            listing = Listing(object_of(peers[1], directory_key(os.fsencode(root))))
            place = listing.place(b"module.py")
            assert place is not None
            key = chunk_key(os.fsencode(root / "module.py"), attr_pin(listing.attr_at(place)), 0)
            assert object_of(peers[1], key) == (root / "module.py").read_bytes()
            status = peers[1].status()
            assert status["corrupt"] == 0 and status["source_calls"] == 0 and status["bytes"]["parent"] > 0
            for port in ports[:-1]:
                with pytest.raises((OSError, ProtocolError)):
                    dial(Target(first.hosts[0], (port,), 0), identity_of(second), 0.3)
        counts = attack.stop()
    assert counts["callers"] >= CANDIDATES - 1 and counts["bytes_of_proofs"] > 0
    assert counts["bytes_after_the_proof"] == 0
    record(
        "relay of the proof from 15 squatted ports, then changed frames",
        expected="no proof accepted, no frame seen or changed",
        seen="every relayed proof refused; the real node linked; bytes right",
        **counts,
    )


def test_fifteen_silent_squatters_do_not_keep_callers_from_the_node(host: str) -> None:
    ports = port_candidates(CALLED, 0)
    with stranger(silent(host, ports[:7] + ports[8:])) as attack:
        acceptor = Acceptor(listen_tcp(host, ports), CALLED, lambda channel: None, max_proven=8)
        began = time.monotonic()
        channel, port = dial(Target(host, ports, 0), CALLER, 60.0)
        took_ms = round((time.monotonic() - began) * 1000)
        channel.socket.close()
        acceptor.close()
        counts = attack.stop()
    assert port == ports[7] and counts["callers"] == CANDIDATES - 1
    record(
        "15 of 16 ports squatted and silent",
        expected="linked within 1 s",
        seen="linked",
        milliseconds=took_ms,
        **counts,
    )


def test_when_every_port_is_squatted_the_error_names_the_squatter(host: str) -> None:
    ports = port_candidates(CALLED, 0)
    with stranger(silent(host, ports)), pytest.raises(OSError, match=f"uid {UID}") as caught:
        listen_tcp(host, ports)
    record(
        "all 16 ports squatted",
        expected="an error that names the uid",
        seen=f"error with uid {UID}" if f"uid {UID}" in str(caught.value) else "no uid",
        ports=CANDIDATES,
    )


def test_half_open_connections_of_one_stranger_keep_nobody_out(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept, "PROOF_S", 600.0)  # nobody gets in because the stranger's time is up
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most < 4 * MAX_UNPROVEN:
        pytest.skip(f"only {most} descriptors")
    sock = listen_tcp(host, port_candidates(CALLED, 0))
    port = sock.getsockname()[1]
    waits: list[float] = []

    def honest(_: int) -> None:
        began = time.monotonic()
        channel, _ = dial(Target(host, (port,), 0), CALLER, 60.0)
        waits.append(time.monotonic() - began)
        channel.socket.close()

    with stranger(flood(host, port)) as attack:
        acceptor = Acceptor(sock, CALLED, lambda channel: None, max_proven=512)
        wait_for(lambda: acceptor.refused > MAX_UNPROVEN, 60, "the flood")
        with ThreadPoolExecutor(13) as pool:
            list(pool.map(honest, range(130)))
        counts = attack.stop()
        refused = acceptor.refused
        acceptor.close()
    assert len(waits) == 130 and refused > 0
    record(
        "one stranger with half-open connections, made again as they are closed",
        expected="130 of 130 honest proofs, each within 1 s",
        seen=f"{len(waits)} of 130 honest proofs",
        slowest_milliseconds=round(max(waits) * 1000),
        evicted=refused,
        **counts,
    )


def test_changed_repeated_and_reordered_frames_end_the_connection(tmp_path: Path) -> None:
    """Whoever sits on the path after the proof can only break the connection."""
    root = tmp_path / "shared"
    root.mkdir()
    (root / "file").write_bytes(b"x")
    chance = random.Random(SEED)
    (config,) = configs(tmp_path / "c", 1, root)
    body = directory_key(os.fsencode(root))
    refused = 0
    with started(config) as (peer,):
        target = Target(config.hosts[0], (peer.port,), 0)
        for number in range(200):
            channel, _ = dial(target, identity_of(config)._replace(node=NO_NODE), 30.0)
            sealed = channel.seal(wire.head(wire.GET, 1, len(body)), body)
            if number % 4 == 0:
                data = bytearray(sealed + body)
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            elif number % 4 == 1:
                data = bytearray(
                    channel.seal(wire.head(wire.GET, 2, len(body)), body) + body
                )  # the first one is dropped
            elif number % 4 == 2:
                data = bytearray(sealed[: wire.HEAD_BYTES] + bytes(len(sealed) - wire.HEAD_BYTES) + body)
            else:
                data = bytearray(sealed[: wire.HEAD_BYTES] + body)  # as on a Unix socket
                data += bytes(64)
            refused += _is_hung_up_on(channel, bytes(data))
    assert refused == 200
    record(
        "frames changed, dropped, forged or without a tag after the proof",
        expected="connection ended, no answer",
        seen=f"{refused} of 200 connections ended without an answer",
        frames=200,
    )


def _is_hung_up_on(channel: Channel, data: bytes) -> bool:
    """Whether the other side ends the connection, or waits for more of a frame, without a byte of an answer."""
    with channel.socket:
        channel.socket.settimeout(30)
        channel.socket.sendall(data)
        channel.socket.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            return channel.socket.recv(1) == b""
        return True


def test_an_answer_that_was_changed_on_the_way_is_not_used() -> None:
    """The reading side: every bit of a head, key or digest that is flipped ends the link; no reply is delivered."""
    chance = random.Random(SEED)
    key, digest, data = directory_key(b"/r"), bytes(32), b"d" * 50
    kinds = (wire.OBJECT, wire.object_prefix(key, digest)), (wire.BATCH, wire.batch_prefix([(key, digest, len(data))]))
    caught = 0
    for number in range(502):
        kind, prefix = kinds[number % 2]
        body, changed = prefix + data, number > 1
        left, right = socket.socketpair()
        with left, right:
            keys = SessionKeys(b"a" * 32, b"b" * 32)
            called, caller = Channel(left, 0, keys, called=True), Channel(right, 0, keys)
            frame = bytearray(called.seal(wire.head(kind, 1, len(body)), wire.covered_by_tag(kind, body)) + body)
            if changed:
                frame[chance.randrange(len(frame) - len(data))] ^= 1 << chance.randrange(8)
            left.sendall(bytes(frame))
            left.shutdown(socket.SHUT_WR)
            reader = FrameReader(caller, wire.parse_reply_head)
            if not changed:
                reader.next()  # the frame as it was sent is taken
                continue
            with pytest.raises((ProtocolError, ConnectionError)):
                reader.next()
            caught += 1
    record(
        "one bit flipped in the head, tag, key or digest of an object",
        expected="link ended, object not used",
        seen=f"{caught} of 500 refused",
        frames=500,
    )


def test_hostile_frames_of_a_holder_of_the_key_end_only_their_connection(tmp_path: Path) -> None:
    root = tmp_path / "shared"
    root.mkdir()
    (root / "file").write_bytes(b"x")
    chance = random.Random(SEED)
    (config,) = configs(tmp_path / "c", 1, root)
    sent = total = 0
    with started(config) as (peer,):
        target, identity = Target(config.hosts[0], (peer.port,), 0), identity_of(config)._replace(node=NO_NODE)
        for _ in range(100):
            channel, _ = dial(target, identity, 30.0)
            with channel.socket, contextlib.suppress(OSError):
                for _ in range(20):
                    body = chance.randbytes(chance.choice((0, 1, 5, 29, 100, 8000)))
                    length = chance.choice((len(body),) * 6 + (0, 2**31))
                    head = wire.HEAD.pack(length, chance.choice((*range(12), 32, 255)), chance.randrange(3))
                    channel.socket.sendall(channel.seal(head, body) + body)
                    sent, total = sent + 1, total + len(body)
        link, _ = open_link(target, identity, 30.0)
        reply = Collect()
        assert link.ask(wire.GET, directory_key(os.fsencode(root)), reply)
        assert Listing(bytes(wire.parse_object(memoryview(reply.wait(30.0)[1]))[2])).names == [b"file"]
        link.close()
        assert peer.status()["state"] == "ready"
    record(
        f"hostile frames with the right key (seed {SEED})",
        expected="the node answers as before",
        seen="answers, state ready",
        frames=sent,
        bytes=total,
    )


def test_a_moment_without_threads_is_told_and_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "shared"
    root.mkdir()
    (config,) = configs(tmp_path / "c", 1, root)
    real, failing, tries = threading.Thread.start, [False], 0

    def start(self: threading.Thread) -> None:
        if failing[0] and self.name == "inbound":
            raise RuntimeError("can't start new thread")
        real(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    with started(config) as (peer,):
        target, identity = Target(config.hosts[0], (peer.port,), 0), identity_of(config)._replace(node=NO_NODE)
        failing[0] = True
        deadline = time.monotonic() + 60
        while peer.status()["state"] != "deaf":
            assert time.monotonic() < deadline
            dial(target, identity, 30.0)[0].socket.close()
            tries += 1
        failing[0] = False
        link, _ = open_link(target, identity, 30.0)
        reply = Collect()
        assert link.ask(wire.PING, b"", reply)
        reply.wait(30.0)
        link.close()
        wait_for(lambda: peer.status()["state"] == "ready", 60, "ready again")
    record(
        "no thread to be had for a moment",
        expected="status says so, and the node accepts again afterwards",
        seen="status deaf, then ready and answering",
        attempts=tries + 1,
    )


def test_a_trace_with_absurd_lengths_grows_nothing(tmp_path: Path) -> None:
    root = tmp_path / "shared"
    root.mkdir()
    (root / "file").write_bytes(b"x" * 5000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for length in (10**15, 10**13):
        trace = tmp_path / f"{length}.json"
        touches = [[str(root / "file"), 0, length], [str(root / "file"), 0, 5000]]
        trace.write_text(json.dumps({"version": 1, "identity": "i", "roots": [str(root)], "touches": touches}))
        (config,) = configs(tmp_path / f"c{length}", 1, root, trace_in=str(trace))
        with started(config) as (peer,):
            wait_for(lambda: bool(peer.status()["push"]["ended"]), 60, "push over")
            assert peer.status()["push"]["planned"] <= 1
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    assert grown_mib < 500
    record(
        "trace entries of 10^15 and 10^13 bytes",
        expected="refused or left out, memory stays",
        seen="one trace refused, one entry left out",
        entries=2,
        grown_mib=grown_mib,
    )


def test_damaged_traces_are_refused_or_stay_within_their_limits() -> None:
    chance = random.Random(SEED)
    touches = [["/r", 0, -1], ["/r/a", 0, 4096], ["/r/b", 98304, 200000]]
    text = json.dumps({"version": 1, "identity": "i", "roots": ["/r"], "touches": touches})
    numbers = ("-1", "-2", "1e999", "10" + "0" * 30, "null", '"x"', "[]", "1e15", "0", str(1 << 46))
    names = ("/r/../x", "r", "", "/r//x", "/\\u0000", "/" + "n" * 300, "\\udfff", "/r/ok")
    refused = kept = 0
    for _ in range(2000):
        data = text
        for _ in range(chance.randrange(1, 4)):
            old = chance.choice(("4096", "98304", "200000", "-1", '"/r/a"', '"/r/b"', "1", "}", "["))
            new = f'"{chance.choice(names)}"' if old.startswith('"') else chance.choice(numbers)
            data = data.replace(old, new, 1)
        if chance.random() < 0.3:
            cut = chance.randrange(len(data))
            data = data[:cut] + chance.choice(("", "\0", '"', "[" * 5000)) + data[cut + 1 :]
        try:
            trace = parse_trace(data).within(1 << 30)
        except BadTraceError:
            refused += 1
            continue
        kept += 1
        assert trace.file_bytes <= 1 << 30
        for touch in trace.touches:
            directory_key(touch.path)
            assert touch.offset >= 0 and touch.length >= -1
    assert refused and kept
    record(
        f"damaged and hostile traces (seed {SEED})",
        expected="refused, or within the limit of a record",
        seen=f"{refused} refused, {kept} within it",
        traces=2000,
    )
