"""Connections of the push, seen from the child: the proof of the job's key, one question, and frames until the end."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import struct
import time
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import NamedTuple

from windlass.agents.node.host import AgentError
from windlass.cache.node import wire
from windlass.cache.node.link import set_timeouts

ASK = struct.Struct("<BxxxIQ")
FRAME = struct.Struct("<BxxxIQ32s")
NO_DIGEST = bytes(32)
MAX_LAYOUT_BYTES = 512 << 20
MAX_TEXT_BYTES = 4096
Tick = Callable[[], None]


class Patience(NamedTuple):
    """How long to wait: for a word of a parent, for a node that was never seen, for children that come late."""

    silent_s: float = 10.0
    start_s: float = 20.0
    late_s: float = 30.0


class Kind(IntEnum):
    """Questions, and the frames that answer them."""

    LAYOUT = 1
    STRIPE = 2
    WAIT = 3
    BLOCK = 4
    GONE = 5
    FAILED = 6


class FailedError(AgentError):
    """The other side says that this cannot be had from anybody; its words."""


class Reader:
    """One open, proven connection to a parent."""

    def __init__(self, connection: socket.socket, tick: Tick) -> None:
        self._connection = connection
        self._tick = tick
        self._head = memoryview(bytearray(FRAME.size))

    def ask(self, kind: Kind, stripe: int, position: int) -> None:
        self._connection.sendall(ASK.pack(kind, stripe, position))

    def block(self, index: int, target: memoryview) -> bytes:
        """Block `index` into `target`; returns its digest, which is not checked yet. Waits as long as the other side
        says that it works on it; `OSError` or `ProtocolError` where it does not."""
        kind, length, number, digest = self._next()
        if kind != Kind.BLOCK or number != index or length != len(target):
            raise wire.ProtocolError("block %d of %d bytes instead of %d" % (number, length, index))
        receive_all(self._connection, target)
        return digest

    def whole(self) -> bytearray:
        """The layout, verified."""
        kind, length, _, digest = self._next()
        if kind != Kind.LAYOUT or length > MAX_LAYOUT_BYTES:
            raise wire.ProtocolError("a layout of %d bytes" % length)
        data = bytearray(length)
        receive_all(self._connection, memoryview(data))
        if hashlib.sha256(data).digest() != digest:
            raise wire.ProtocolError("wrong bytes of the layout")
        return data

    def _next(self) -> tuple[int, int, int, bytes]:
        while True:
            receive_all(self._connection, self._head)
            kind, length, index, digest = FRAME.unpack(self._head)
            if kind == Kind.FAILED:
                text = bytearray(min(length, MAX_TEXT_BYTES))
                receive_all(self._connection, memoryview(text))
                raise FailedError(text.decode("utf-8", "replace"))
            if kind == Kind.GONE:
                raise ConnectionError("the other side has these blocks no more")
            if kind != Kind.WAIT:
                return kind, length, index, digest
            self._tick()


class Caller:
    """Opens connections to other nodes. A node that was never seen may still be starting: it gets some time."""

    def __init__(self, number: int, hosts: tuple[str, ...], key: bytes, patience: Patience) -> None:
        self._number = number
        self._hosts = hosts
        self._key = key
        self._ports: dict[int, int] = {}
        self._silent_s = patience.silent_s
        self._grace_end = time.monotonic() + patience.start_s
        self._closed = False

    def close(self) -> None:
        self._closed = True

    @contextlib.contextmanager
    def call(self, node: int, tick: Tick = lambda: None) -> Iterator[Reader]:
        """A connection to `node`, closed at the end. Raises `OSError` or `ProtocolError`, and what `tick` raises, which
        is called now and then while there is nothing to do but wait."""
        connection = self._connect(node, tick)
        try:
            set_timeouts(connection, self._silent_s, self._silent_s)
            yield Reader(connection, tick)
        finally:
            connection.close()

    def _connect(self, node: int, tick: Tick) -> socket.socket:
        while True:
            known = self._ports.get(node)
            for port in (known,) if known is not None else wire.port_candidates(self._key):
                with contextlib.suppress(OSError, wire.ProtocolError):
                    connection = self._try(node, port)
                    self._ports[node] = port
                    return connection
            if known is not None or self._closed or time.monotonic() > self._grace_end:
                raise ConnectionError("node %d does not answer" % node)
            tick()
            time.sleep(0.05)

    def _try(self, node: int, port: int) -> socket.socket:
        mine = self._hosts[self._number]
        source = (mine, 0) if mine.startswith("127.") else None
        connection = socket.create_connection((self._hosts[node], port), 2.0, source)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wire.prove_as_caller(connection, self._key, self._number, node, time.monotonic() + 5.0)
        except BaseException:
            connection.close()
            raise
        return connection


def receive_all(connection: socket.socket, target: memoryview) -> None:
    """Fills `target`; `BlockingIOError` where nothing at all came within the socket's timeout."""
    got = 0
    while got < len(target):
        step = connection.recv_into(target[got:], 0, socket.MSG_WAITALL)
        if step == 0:
            raise ConnectionError("connection closed")
        got += step
