"""The child side of the push's connections: one request, then frames until the end.

A frame is a head (kind, length, number, digest), its tag, and data. The tag covers the head, and also the text of a
failure. Blocks and layouts are checked against the digest in the head.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import struct
import time
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import NamedTuple

from windlass.node.agent.host import AgentError
from windlass.node.wire.dial import Target, dial
from windlass.node.wire.link import set_timeouts
from windlass.node.wire.ports import port_candidates
from windlass.node.wire.proof import TAG_BYTES, Channel, Identity, ProtocolError

ASK = struct.Struct("<BxxxIQ")
FRAME = struct.Struct("<BxxxIQ32s")
NO_DIGEST = bytes(32)
MAX_LAYOUT_BYTES = 512 << 20
MAX_TEXT_BYTES = 4096
_DIAL_S = 5.0
Tick = Callable[[], None]


class Patience(NamedTuple):
    """Time limits: for a frame of a parent, for a node that has never answered, for children that come late."""

    silent_s: float = 10.0
    start_s: float = 20.0
    late_s: float = 30.0


class MessageKind(IntEnum):
    """Requests, and the frames that answer them."""

    LAYOUT = 1
    STRIPE = 2
    WAIT = 3
    BLOCK = 4
    GONE = 5
    FAILED = 6


class FailedError(AgentError):
    """The peer reports that the block is not available from any node. The message is the peer's."""


class PushReader:
    """One open, authenticated connection to a parent."""

    def __init__(self, channel: Channel, tick: Tick) -> None:
        self._channel = channel
        self._connection = channel.socket
        self._tick = tick
        self._head = memoryview(bytearray(FRAME.size + TAG_BYTES))

    def ask(self, kind: MessageKind, stripe: int, position: int) -> None:
        self._connection.sendall(self._channel.seal(ASK.pack(kind, stripe, position)))

    def block(self, index: int, target: memoryview) -> bytes:
        """Receive block `index` into `target`. Return its digest, which is not checked yet.

        Waits as long as the peer reports that it works on the block. Raises `OSError` or `ProtocolError` if it does
        not.
        """
        kind, length, number, digest = self._next()
        if kind != MessageKind.BLOCK or number != index or length != len(target):
            raise ProtocolError("block %d of %d bytes instead of %d" % (number, length, index))
        receive_all(self._connection, target)
        return digest

    def whole(self) -> bytearray:
        """Return the layout, verified."""
        kind, length, _, digest = self._next()
        if kind != MessageKind.LAYOUT or length > MAX_LAYOUT_BYTES:
            raise ProtocolError("a layout of %d bytes" % length)
        data = bytearray(length)
        receive_all(self._connection, memoryview(data))
        if hashlib.sha256(data).digest() != digest:
            raise ProtocolError("wrong bytes of the layout")
        return data

    def _next(self) -> tuple[int, int, int, bytes]:
        while True:
            receive_all(self._connection, self._head)
            head, tag = bytes(self._head[: FRAME.size]), bytes(self._head[FRAME.size :])
            kind, length, index, digest = FRAME.unpack(head)
            text = bytearray(min(length, MAX_TEXT_BYTES) if kind == MessageKind.FAILED else 0)
            receive_all(self._connection, memoryview(text))
            self._channel.check(head, tag, bytes(text))
            if kind == MessageKind.FAILED:
                raise FailedError(text.decode("utf-8", "replace"))
            if kind == MessageKind.GONE:
                raise ConnectionError("the peer no longer has these blocks")
            if kind != MessageKind.WAIT:
                return kind, length, index, digest
            self._tick()


class Caller:
    """Opens connections to other nodes. A node that has never answered may still be starting and gets more time."""

    def __init__(self, identity: Identity, hosts: tuple[str, ...], patience: Patience) -> None:
        self._identity = identity
        self._hosts = hosts
        self._ports: dict[int, int] = {}
        self._silent_s = patience.silent_s
        self._grace_end = time.monotonic() + patience.start_s
        self._closed = False

    def close(self) -> None:
        self._closed = True

    @contextlib.contextmanager
    def call(self, node: int, tick: Tick = lambda: None) -> Iterator[PushReader]:
        """Yield a connection to `node`, and close it at the end.

        Calls `tick` from time to time during a wait. Raises `OSError` or `ProtocolError`, and the exceptions of `tick`.
        """
        channel = self._connect(node, tick)
        try:
            set_timeouts(channel.socket, self._silent_s, self._silent_s)
            yield PushReader(channel, tick)
        finally:
            channel.socket.close()

    def _connect(self, node: int, tick: Tick) -> Channel:
        mine = self._hosts[self._identity.node]
        source = mine if mine.startswith("127.") else ""
        while True:
            known = self._ports.get(node)
            ports = (known,) if known is not None else port_candidates(self._identity, node)
            with contextlib.suppress(OSError, ProtocolError):
                target = Target(self._hosts[node], ports, node, source)
                channel, self._ports[node] = dial(target, self._identity, _DIAL_S)
                return channel
            if known is not None or self._closed or time.monotonic() > self._grace_end:
                raise ConnectionError("node %d does not answer" % node)
            tick()
            time.sleep(0.05)


def receive_all(connection: socket.socket, target: memoryview) -> None:
    """Fill `target`. Raises `BlockingIOError` if no data arrived within the socket's timeout."""
    got = 0
    while got < len(target):
        step = connection.recv_into(target[got:], 0, socket.MSG_WAITALL)
        if step == 0:
            raise ConnectionError("connection closed")
        got += step
