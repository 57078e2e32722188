"""Nodes that push while others of them lie, vanish or fall silent: the right bytes arrive, or a clear word does."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from windlass.node.agent.host import AgentError
from windlass.node.cache.roots import Root
from windlass.node.stage.layout import make_trees
from windlass.node.stage.push import Push, PushNode
from windlass.node.stage.push_client import ASK, FRAME, NO_DIGEST, MessageKind, Patience, receive_all
from windlass.node.stage.push_server import Feeder
from windlass.node.wire.accept import Acceptor
from windlass.node.wire.dial import Target, dial
from windlass.node.wire.ports import listen_tcp, port_candidates
from windlass.node.wire.proof import TAG_BYTES, Channel, Identity, ProtocolError

pytestmark = pytest.mark.timeout(60)
KEY = bytes(range(32))
SIZE = 9_500_000
SOON = Patience(silent_s=1.0, start_s=1.0, late_s=1.0)


@pytest.fixture
def hosts() -> tuple[str, ...]:
    net = f"127.{random.randrange(64, 250)}.{random.randrange(250)}"
    return tuple(f"{net}.{node + 1}" for node in range(3))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(os.urandom(SIZE))
    return path


def identity(number: int, key: bytes = KEY) -> Identity:
    return Identity(key, "test", "stage", number)


class NodeUnderTest:
    """One node of a chain with one reader; keeps what it writes in memory."""

    def __init__(self, number: int, hosts: tuple[str, ...], source: Path) -> None:
        real = os.fsencode(source)
        shape = make_trees(len(hosts), one_reader=True)
        self.data = bytearray(SIZE)
        place = PushNode(identity(number), hosts, (Root(real, real),), shape, SOON)
        self.push = Push(place, self._write)
        self._feeder = Feeder(place, self.push, self._reread)

    def _write(self, index: int, data: memoryview) -> bool:
        self.data[index << 20 : (index << 20) + len(data)] = data
        return True

    def _reread(self, index: int, target: memoryview) -> bool:
        target[:] = self.data[index << 20 : (index << 20) + len(target)]
        return True

    def run(self) -> None:
        layout = self.push.learn(lambda: None)
        self.push.begin(layout)
        self.push.wait_written(0, len(layout.blocks), lambda: None)

    def close(self) -> None:
        self._feeder.close()
        self.push.close()


@contextlib.contextmanager
def running(*nodes: NodeUnderTest) -> Iterator[list[threading.Thread]]:
    threads = [threading.Thread(target=node.run, daemon=True) for node in nodes]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        for node in nodes:
            node.close()


@contextlib.contextmanager
def impostor(host: str, number: int, answer: Callable[[Channel, int, int], None]) -> Iterator[list[int]]:
    """A node that holds the key and answers as it likes; yields the kinds of the questions it was asked."""
    asked: list[int] = []

    def serve(channel: Channel) -> None:
        with contextlib.suppress(OSError, ProtocolError):
            channel.socket.settimeout(30.0)
            question = memoryview(bytearray(ASK.size + TAG_BYTES))
            receive_all(channel.socket, question)
            kind, _, position = ASK.unpack(question[: ASK.size])
            asked.append(kind)
            answer(channel, kind, position)

    mine = identity(number)
    acceptor = Acceptor(listen_tcp(host, port_candidates(mine, number)), mine, serve, max_proven=64)
    try:
        yield asked
    finally:
        acceptor.close()


def test_every_node_gets_every_byte_and_one_reads(hosts: tuple[str, ...], source: Path) -> None:
    first, second, third = (NodeUnderTest(number, hosts, source) for number in range(3))
    with running(first, second) as threads:
        third.run()
        for thread in threads:
            thread.join(20)
        third.close()
    want = source.read_bytes()
    assert first.data == second.data == third.data == want
    assert second.push.source_bytes == third.push.source_bytes == 0 and first.push.source_bytes == SIZE


def test_wrong_bytes_of_a_parent_are_not_used(hosts: tuple[str, ...], source: Path) -> None:
    def lie(channel: Channel, kind: int, position: int) -> None:
        if kind == MessageKind.STRIPE:
            channel.socket.sendall(
                channel.seal(FRAME.pack(MessageKind.BLOCK, 1 << 20, position, NO_DIGEST)) + bytes(1 << 20)
            )
            time.sleep(5)

    first, third = NodeUnderTest(0, hosts, source), NodeUnderTest(2, hosts, source)
    with running(first), impostor(hosts[1], 1, lie) as asked:
        third.run()
        third.close()
    assert third.data == source.read_bytes() and MessageKind.STRIPE in asked


def test_a_parent_that_breaks_off_is_left_for_its_own(hosts: tuple[str, ...], source: Path) -> None:
    def break_off(channel: Channel, kind: int, position: int) -> None:
        channel.socket.sendall(channel.seal(FRAME.pack(MessageKind.BLOCK, 1 << 20, position, NO_DIGEST)) + bytes(1000))

    first, third = NodeUnderTest(0, hosts, source), NodeUnderTest(2, hosts, source)
    with running(first), impostor(hosts[1], 1, break_off) as asked:
        third.run()
        third.close()
    assert third.data == source.read_bytes() and asked and third.push.source_bytes == 0


def test_a_silent_parent_costs_a_moment(hosts: tuple[str, ...], source: Path) -> None:
    first, third = NodeUnderTest(0, hosts, source), NodeUnderTest(2, hosts, source)
    with running(first), impostor(hosts[1], 1, lambda *_: time.sleep(20)) as asked:
        third.run()
        third.close()
    assert third.data == source.read_bytes() and asked


def test_who_finds_nobody_reads_the_shared_file_system(hosts: tuple[str, ...], source: Path) -> None:
    third = NodeUnderTest(2, hosts, source)
    third.run()
    third.close()
    assert third.data == source.read_bytes() and third.push.fallbacks > 0


def test_a_late_node_gets_what_has_left_memory(hosts: tuple[str, ...], source: Path) -> None:
    first = NodeUnderTest(0, hosts, source)
    with running(first) as threads:
        threads[0].join(20)
        for row in first.push.rows:
            row.first = row.arrived  # as after a long push: the window has moved on
            row._slots.clear()
        second = NodeUnderTest(1, hosts, source)
        second.run()
        second.close()
    assert second.data == source.read_bytes() and second.push.source_bytes == 0


def test_a_source_that_changes_is_told_to_everybody(hosts: tuple[str, ...], source: Path) -> None:
    first, second = NodeUnderTest(0, hosts, source), NodeUnderTest(1, hosts, source)
    layout = first.push.learn(lambda: None)
    source.write_bytes(b"other")
    first.push.begin(layout)
    with pytest.raises(AgentError, match="changed"):
        second.run()
    with pytest.raises(AgentError, match="changed"):
        first.push.wait_written(0, 1, lambda: None)
    first.close()
    second.close()


def test_a_stranger_gets_no_word(hosts: tuple[str, ...], source: Path) -> None:
    first = NodeUnderTest(0, hosts, source)
    with running(first) as threads:
        threads[0].join(20)
        for stranger in (identity(1, bytes(32)), identity(1)._replace(run="other"), identity(1)._replace(service="x")):
            with pytest.raises(ProtocolError):
                dial(Target(hosts[0], port_candidates(identity(1), 0), 0), stranger, 1.0)
