"""Authenticated connections on which other nodes, the mount process and the status tools send requests."""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from windlass.node.cache.store import HeldObject
from windlass.node.wire import wire
from windlass.node.wire.link import FrameReader, set_timeouts
from windlass.node.wire.proof import Channel, ProtocolError

log = logging.getLogger("windlass.cache")
SEND_TIMEOUT_S = 15.0
WAIT_EVERY_S = 0.4
MAX_CONNECTIONS = 512
_MAX_ASKED = 20_000
Job = Callable[[], None]


class PeerService(Protocol):
    """The request handler of a node. `serve` must not block. It answers later, through the connection."""

    def serve(self, connection: Inbound, kind: int, request: int, body: bytes) -> None: ...


class Inbound:
    """One authenticated connection. One thread sends queued answers in order. Streams send between them.

    `local`: the other side is a process of this node.
    """

    def __init__(self, channel: Channel, service: PeerService) -> None:
        self.local = not channel.tag_bytes
        self.closed = False
        self._channel = channel
        self._connection = channel.socket
        self._service = service
        self._open: set[int] = set()
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._send_lock = threading.Lock()
        self._reader_ident = 0
        self._reader = FrameReader(channel, wire.parse_request_head)
        self._asked: set[bytes] = set()
        set_timeouts(channel.socket, 30.0, SEND_TIMEOUT_S)

    def run(self) -> None:
        """Read requests until the other side disconnects. The code that accepted the socket closes it."""
        writer = threading.Thread(target=self._write, name="answers", daemon=True)
        writer.start()
        self._reader_ident = threading.get_ident()
        reader = self._reader
        try:
            while not self.closed:
                found = reader.next()
                if found is not None:
                    frame, body = found
                    if frame.request:
                        self._open.add(frame.request)
                    self._service.serve(self, frame.kind, frame.request, bytes(body))
        except (OSError, ProtocolError, ValueError, RuntimeError):
            pass  # disconnected, protocol violation, invalid body, or no thread for the request
        finally:
            self.close()
            self._queue.put(None)
            writer.join()

    def close(self) -> None:
        self.closed = True
        self._channel.shut()

    def is_reader(self) -> bool:
        """Whether this thread reads the connection's requests. It may block, because only its own client waits."""
        return threading.get_ident() == self._reader_ident

    def is_idle(self) -> bool:
        """Whether this thread is the connection's reader and the client has sent no other request in the meantime."""
        return self.is_reader() and not self._reader.has_more()

    def asks(self, key: bytes) -> None:
        """Record that the other side has or will have an object, so that no stream sends it again."""
        if len(self._asked) < _MAX_ASKED:
            self._asked.add(key)

    def has_asked(self, key: bytes) -> bool:
        return key in self._asked

    def later(self, job: Job) -> None:
        """Run `job` on the connection's writer thread. Stored objects are opened and sent there."""
        self._queue.put(job)

    def send(self, kind: int, request: int, *parts: bytes | memoryview, last: bool = True) -> None:
        """Send one frame now. On failure, close the connection without an exception."""
        data = b"".join(parts)
        try:
            with self._send_lock:
                head = self._channel.seal(wire.head(kind, request, len(data)), wire.covered_by_tag(kind, data))
                self._connection.sendall(head + data)
        except OSError:
            self.close()
        if last:
            self._open.discard(request)

    def send_file(self, request: int, prefix: bytes, held: HeldObject, *, last: bool = True) -> None:
        """Send an OBJECT whose data is in the store, without copying it into this process."""
        self._send_stored(wire.OBJECT, request, prefix, [(held.fd, held.offset, held.size)], last=last)

    def send_batch(self, request: int, objects: Sequence[tuple[bytes, HeldObject]]) -> None:
        """Send objects of the store as one frame of a stream.

        Objects that are contiguous in the store are sent as one piece.
        """
        prefix = wire.batch_prefix((key, held.digest, held.size) for key, held in objects)
        self._send_stored(wire.BATCH, request, prefix, pieces([held for _, held in objects]), last=False)

    def _send_stored(
        self, kind: int, request: int, prefix: bytes, parts: Sequence[tuple[int, int, int]], *, last: bool
    ) -> None:
        size = sum(length for _, _, length in parts)
        try:
            with self._send_lock:
                head = self._channel.seal(wire.head(kind, request, len(prefix) + size), prefix)
                self._connection.sendall(head + prefix, socket.MSG_MORE if size else 0)
                for fd, offset, length in parts:
                    sent = 0
                    while sent < length:
                        step = os.sendfile(self._connection.fileno(), fd, offset + sent, length - sent)
                        if step == 0:
                            raise ConnectionError("stored object shrank")
                        sent += step
        except OSError:
            self.close()
        if last:
            self._open.discard(request)

    def _write(self) -> None:
        while True:
            try:
                job = self._queue.get(timeout=WAIT_EVERY_S)
            except queue.Empty:
                if self._open and not self.closed:
                    self.send(wire.WAIT, 0)
                continue
            if job is None:
                return
            try:
                job()
            except Exception:  # for example out of descriptors: the other side asks another node
                log.exception("answer failed")
                self.close()


def pieces(held: Iterable[HeldObject]) -> list[tuple[int, int, int]]:
    """Return descriptor, offset and length of objects, in order. Neighbours in one segment are one piece."""
    found: list[tuple[int, int, int]] = []
    for each in held:
        fd, offset, length = found[-1] if found else (-1, 0, 0)
        if fd == each.fd and offset + length == each.offset:
            found[-1] = (fd, offset, length + each.size)
        elif each.size:
            found.append((each.fd, each.offset, each.size))
    return found
