"""A connection on which this node asks: many requests at once, replies in any order, silence is a failure.

The other side sends WAIT while it works on an answer, so a slow shared file system and a dead peer look different: no
frame at all for `timeout_s`, with something asked, means the peer is gone, stopped or cut off.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import socket
import struct
import termios
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from . import wire

_SMALL = 64 << 10


class Reply(Protocol):
    """Receives the frames of one request. Both are called from the connection's own thread; keep them short."""

    def frame(self, kind: int, body: memoryview) -> bool:
        """One frame; true when it was the last one. `body` is only valid during the call."""

    def lost(self, reason: str) -> None:
        """No more frames will come."""


class FrameReader:
    """Cuts a byte stream into frames. Heads and small frames come many to a system call; the body of a large frame is
    received straight into a buffer of its own."""

    def __init__(self, connection: socket.socket, parse: Callable[[bytes], wire.Head]) -> None:
        self._connection = connection
        self._parse = parse
        self._small = memoryview(bytearray(_SMALL))
        self._start = self._end = 0
        self._large = memoryview(bytearray())
        self._got = -1  # bytes of a large body that are there; -1: no large body under way
        self._head: wire.Head | None = None
        self.heard = time.monotonic()

    def next(self) -> tuple[wire.Head, memoryview] | None:
        """The next frame, or None when the socket's receive timeout passed first. `ConnectionError` at the end. The
        body is good until the next call."""
        while True:
            if self._head is None and self._end - self._start >= wire.HEAD_BYTES:
                self._head = self._parse(bytes(self._small[self._start : self._start + wire.HEAD_BYTES]))
                self._start += wire.HEAD_BYTES
            head = self._head
            if head is not None and head.length > _SMALL // 2:
                if self._got < 0:
                    self._begin_large(head.length)
                if self._got == head.length:
                    self._head, self._got = None, -1
                    return head, self._large[: head.length]
                if not self._receive_large(head.length):
                    return None
            elif head is not None and self._end - self._start >= head.length:
                body = self._small[self._start : self._start + head.length]
                self._start += head.length
                self._head = None
                return head, body
            elif not self._receive_small():
                return None

    def has_more(self) -> bool:
        """Whether something has arrived that `next` has not given out."""
        if self._end > self._start:
            return True
        waiting = bytearray(4)
        fcntl.ioctl(self._connection, termios.FIONREAD, waiting)
        return any(waiting)

    def _begin_large(self, length: int) -> None:
        if len(self._large) < length:
            self._large = memoryview(bytearray(length))
        self._got = min(length, self._end - self._start)
        self._large[: self._got] = self._small[self._start : self._start + self._got]
        self._start += self._got

    def _receive_large(self, length: int) -> bool:
        got = self._receive(self._large[self._got : length])
        self._got += got
        return got > 0

    def _receive_small(self) -> bool:
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start > _SMALL // 2:
            held = bytes(self._small[self._start : self._end])
            self._small[: len(held)] = held
            self._start, self._end = 0, len(held)
        got = self._receive(self._small[self._end :])
        self._end += got
        return got > 0

    def _receive(self, target: memoryview) -> int:
        """Bytes received; 0 at the socket's timeout."""
        try:
            got = self._connection.recv_into(target)
        except (BlockingIOError, socket.timeout):
            return 0
        if got == 0:
            raise ConnectionError("connection closed")
        self.heard = time.monotonic()
        return got


def set_timeouts(connection: socket.socket, receive_s: float, send_s: float) -> None:
    """Timeouts in the kernel, on a blocking socket: `sendfile` works, and no poll before every call."""
    connection.settimeout(None)
    for option, seconds in ((socket.SO_RCVTIMEO, receive_s), (socket.SO_SNDTIMEO, send_s)):
        value = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
        connection.setsockopt(socket.SOL_SOCKET, option, value)


class Link:
    """One open, proven connection to `node`."""

    def __init__(self, connection: socket.socket, node: int, timeout_s: float) -> None:
        self.node = node
        self.closed = False
        self.reason = ""
        self._connection = connection
        self._timeout_s = timeout_s
        self._ids = itertools.count(1)
        self._pending: dict[int, Reply] = {}
        self.on_news: Callable[[int, bytes], None] = lambda kind, body: None
        self._asked_at = time.monotonic()
        self._send_lock = threading.Lock()
        set_timeouts(connection, max(0.05, timeout_s / 4), timeout_s)
        self._reader = FrameReader(connection, wire.parse_reply_head)
        self._thread = threading.Thread(target=self._run, name="link-%d" % node, daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        return not self._pending

    def ask(self, kind: int, body: bytes, reply: Reply) -> int:
        """Sends a request; its frames go to `reply`. 0 where the link is closed: `reply` then hears nothing."""
        request = next(self._ids)
        if not self._pending:
            self._asked_at = time.monotonic()
        self._pending[request] = reply
        if self.closed:
            return request if self._pending.pop(request, None) is None else 0
        if not self._send(kind, request, body):
            return request if self._pending.pop(request, None) is None else 0
        return request

    def tell(self, kind: int, body: bytes) -> bool:
        """Sends a request that has no answer."""
        return not self.closed and self._send(kind, 0, body)

    def close(self, reason: str = "closed") -> None:
        self.reason = self.reason or reason
        self.closed = True
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _send(self, kind: int, request: int, body: bytes) -> bool:
        try:
            with self._send_lock:
                self._connection.sendall(wire.head(kind, request, len(body)) + body)
        except OSError as error:
            self.close("cannot send: %s" % error)
            return False
        return True

    def _run(self) -> None:
        try:
            while not self.closed:
                found = self._reader.next()
                if found is None:
                    self._check_silence()
                    continue
                self._deliver(*found)
        except (OSError, wire.ProtocolError) as error:
            self.close(str(error) or type(error).__name__)
        self.closed = True
        self._connection.close()
        while self._pending:
            try:
                _, reply = self._pending.popitem()
            except KeyError:
                break
            reply.lost(self.reason)

    def _deliver(self, found: wire.Head, body: memoryview) -> None:
        if found.kind == wire.WAIT:
            return
        if found.request == 0:  # nobody asked: news
            self.on_news(found.kind, bytes(body))
            return
        reply = self._pending.get(found.request)
        if reply is not None and reply.frame(found.kind, body):
            self._pending.pop(found.request, None)

    def _check_silence(self) -> None:
        silent = time.monotonic() - max(self._reader.heard, self._asked_at)
        if self._pending and silent > self._timeout_s:
            raise wire.ProtocolError("silent for %.1f s" % silent)


class Collect:
    """A reply to wait for: the kind and body of the single frame that answers a request."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._kind = 0
        self._body = b""
        self._lost: str | None = None

    def frame(self, kind: int, body: memoryview) -> bool:
        self._kind, self._body = kind, bytes(body)
        self._done.set()
        return True

    def lost(self, reason: str) -> None:
        self._lost = reason
        self._done.set()

    def wait(self, timeout_s: float) -> tuple[int, bytes]:
        """Kind and body, or `TimeoutError`, `ConnectionError`, or the `OSError` the other side reported."""
        if not self._done.wait(timeout_s):
            raise TimeoutError("no answer in %.1f s" % timeout_s)
        if self._lost is not None:
            raise ConnectionError(self._lost)
        if self._kind == wire.ERROR:
            raise wire.parse_error(self._body)
        return self._kind, self._body


def connect(
    host: str, ports: tuple[int, ...], key: bytes, me: int, node: int, timeout_s: float, source_host: str = ""
) -> tuple[Link, int]:
    """An open link to `node` and the port that answered; `OSError` or `ProtocolError` where none proves the key."""
    deadline = time.monotonic() + timeout_s
    last: Exception = ConnectionError("no port to try")
    for port in ports:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        try:
            connection = socket.create_connection((host, port), left, (source_host, 0) if source_host else None)
        except OSError as error:
            last = error
            continue
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wire.prove_as_caller(connection, key, me, node, deadline)
            return Link(connection, node, timeout_s), port
        except (OSError, wire.ProtocolError) as error:
            connection.close()
            last = error
    raise last


@contextlib.contextmanager
def short_path(path: str) -> Iterator[str]:
    """A name for a socket's path that fits into the 107 bytes the kernel allows."""
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield "/proc/self/fd/%d/%s" % (folder, os.path.basename(path))
    finally:
        os.close(folder)


def connect_local(path: str, key: bytes, me: int, timeout_s: float) -> Link:
    """A link to the peer process of this node, over its Unix socket."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(timeout_s)
        with short_path(path) as short:
            connection.connect(short)
        wire.prove_as_caller(
            connection, key, wire.NO_NODE, wire.NO_NODE if me < 0 else me, time.monotonic() + timeout_s
        )
    except BaseException:
        connection.close()
        raise
    return Link(connection, me, timeout_s)
