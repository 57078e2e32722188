"""A client connection: many requests at once, replies in any order, and silence counts as failure.

The peer sends WAIT while it works on an answer, so a slow shared file system differs from a dead peer. No frame at all
for `timeout_s` during an open request means that the peer is dead, stopped or cut off.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import socket
import struct
import termios
import threading
import time
from collections.abc import Callable
from typing import Protocol

from windlass.node.wire import wire
from windlass.node.wire.dial import Target, dial, dial_unix
from windlass.node.wire.proof import Channel, Identity, ProtocolError

_SMALL = 64 << 10


class Reply(Protocol):
    """Receives the frames of one request. The connection's thread calls both methods. Keep them short."""

    def frame(self, kind: int, body: memoryview) -> bool:
        """Receive one frame. Return true if it was the last one. `body` is only valid during the call."""

    def lost(self, reason: str) -> None:
        """No further frames will arrive."""


class FrameReader:
    """Cuts a byte stream into frames and returns only frames with a valid tag.

    One system call receives many heads and small frames. The body of a large frame is received directly into a separate
    buffer.
    """

    def __init__(self, channel: Channel, parse: Callable[[bytes], wire.Head]) -> None:
        self._channel = channel
        self._connection = channel.socket
        self._head_bytes = wire.HEAD_BYTES + channel.tag_bytes
        self._parse = parse
        self._small = memoryview(bytearray(_SMALL))
        self._start = self._end = 0
        self._large = memoryview(bytearray())
        self._got = -1  # bytes received of a large body. -1: no large body in progress
        self._head: wire.Head | None = None
        self._sealed = b""  # that head as received, with its tag
        self.heard = time.monotonic()

    def next(self) -> tuple[wire.Head, memoryview] | None:
        """Return the next frame, or None if the socket's receive timeout passed first.

        Raises `ConnectionError` at the end of the stream. The body is valid until the next call.
        """
        while True:
            if self._head is None and self._end - self._start >= self._head_bytes:
                self._sealed = bytes(self._small[self._start : self._start + self._head_bytes])
                self._head = self._parse(self._sealed[: wire.HEAD_BYTES])
                self._start += self._head_bytes
            head = self._head
            if head is not None and head.length > _SMALL // 2:
                if self._got < 0:
                    self._begin_large(head.length)
                if self._got == head.length:
                    self._head, self._got = None, -1
                    return self._checked(head, self._large[: head.length])
                if not self._receive_large(head.length):
                    return None
            elif head is not None and self._end - self._start >= head.length:
                body = self._small[self._start : self._start + head.length]
                self._start += head.length
                self._head = None
                return self._checked(head, body)
            elif not self._receive_small():
                return None

    def _checked(self, head: wire.Head, body: memoryview) -> tuple[wire.Head, memoryview]:
        if self._channel.tag_bytes:
            covered = wire.covered_by_tag(head.kind, body)
            self._channel.check(self._sealed[: wire.HEAD_BYTES], self._sealed[wire.HEAD_BYTES :], covered)
        return head, body

    def has_more(self) -> bool:
        """Return whether data has arrived that `next` has not returned yet."""
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
        """Return the number of bytes received, or 0 at the socket's timeout."""
        try:
            got = self._connection.recv_into(target)
        except (TimeoutError, BlockingIOError):
            return 0
        if got == 0:
            raise ConnectionError("connection closed")
        self.heard = time.monotonic()
        return got


def set_timeouts(connection: socket.socket, receive_s: float, send_s: float) -> None:
    """Set timeouts in the kernel on a blocking socket. `sendfile` works, and no call needs a poll first."""
    connection.settimeout(None)
    for option, seconds in ((socket.SO_RCVTIMEO, receive_s), (socket.SO_SNDTIMEO, send_s)):
        value = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
        connection.setsockopt(socket.SOL_SOCKET, option, value)


class Link:
    """One open, authenticated connection to a node."""

    def __init__(self, channel: Channel, timeout_s: float) -> None:
        self.closed = False
        self.reason = ""
        self._channel = channel
        self._timeout_s = timeout_s
        self._ids = itertools.count(1)
        self._pending: dict[int, Reply] = {}
        self.on_news: Callable[[int, bytes], None] = lambda kind, body: None
        self._asked_at = time.monotonic()
        self._send_lock = threading.Lock()
        set_timeouts(channel.socket, max(0.05, timeout_s / 4), timeout_s)
        self._reader = FrameReader(channel, wire.parse_reply_head)
        self._thread = threading.Thread(target=self._run, name="link-%d" % channel.node, daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        return not self._pending

    def ask(self, kind: int, body: bytes, reply: Reply) -> int:
        """Send a request. Its frames go to `reply`.

        Returns 0 if the link is closed. Then no method of `reply` is called.
        """
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
        """Send a request that has no answer."""
        return not self.closed and self._send(kind, 0, body)

    def close(self, reason: str = "closed") -> None:
        self.reason = self.reason or reason
        self.closed = True
        self._channel.shut()

    def _send(self, kind: int, request: int, body: bytes) -> bool:
        try:
            with self._send_lock:
                head = self._channel.seal(wire.head(kind, request, len(body)), body)
                self._channel.socket.sendall(head + body)
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
        except (OSError, ProtocolError) as error:
            self.close(str(error) or type(error).__name__)
        self.closed = True
        self._channel.socket.close()
        while self._pending:
            try:
                _, reply = self._pending.popitem()
            except KeyError:
                break
            reply.lost(self.reason)

    def _deliver(self, found: wire.Head, body: memoryview) -> None:
        if found.kind == wire.WAIT:
            return
        if found.request == 0:  # not the answer to a request: a notification
            self.on_news(found.kind, bytes(body))
            return
        reply = self._pending.get(found.request)
        if reply is not None and reply.frame(found.kind, body):
            self._pending.pop(found.request, None)

    def _check_silence(self) -> None:
        silent = time.monotonic() - max(self._reader.heard, self._asked_at)
        if self._pending and silent > self._timeout_s:
            raise ProtocolError("silent for %.1f s" % silent)


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
        """Return kind and body.

        Raises `TimeoutError`, `ConnectionError`, or the `OSError` that the peer reported.
        """
        if not self._done.wait(timeout_s):
            raise TimeoutError("no answer in %.1f s" % timeout_s)
        if self._lost is not None:
            raise ConnectionError(self._lost)
        if self._kind == wire.ERROR:
            raise wire.parse_error(self._body)
        return self._kind, self._body


def open_link(target: Target, identity: Identity, timeout_s: float) -> tuple[Link, int]:
    """Return an open link to a node and the port that answered.

    Raises `OSError` or `ProtocolError` if no port proves the key.
    """
    channel, port = dial(target, identity, timeout_s)
    return _started(channel, timeout_s), port


def open_local_link(path: str, identity: Identity, node: int, timeout_s: float) -> Link:
    """Return a link to the peer process of this node, over its Unix socket."""
    return _started(dial_unix(path, identity, node, timeout_s), timeout_s)


def _started(channel: Channel, timeout_s: float) -> Link:
    try:
        return Link(channel, timeout_s)
    except RuntimeError as error:  # no thread available now: treated like no answer
        channel.socket.close()
        raise OSError(errno.EAGAIN, str(error)) from error
