"""Dial a node: try all its candidate ports at once, and use the first that proves the job's key.

Other users may listen on some of the ports. A port that is silent, gives a wrong proof or relays the proof costs no
time, because the other attempts do not wait for it. A port that hangs up or refuses the connection may be the node
itself under a flood, so it is dialled again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from typing import Any, NamedTuple

from windlass.node.wire.ports import short_path
from windlass.node.wire.proof import (
    HELLO_BYTES,
    PROOF_BYTES,
    CallerProof,
    Channel,
    Identity,
    ProofError,
    ProtocolError,
    SessionKeys,
    endpoint_bytes,
)

_MAX_ADDRESSES = 4
_AGAIN_S = 0.05
_UNANSWERED_S = 0.3  # the kernel would retry only after a second
_MAX_UNANSWERED = 3


class Target(NamedTuple):
    """A node to dial. `source_host` is the address to dial from. Empty lets the kernel choose."""

    host: str
    ports: tuple[int, ...]
    node: int
    source_host: str = ""


def dial(target: Target, identity: Identity, timeout_s: float) -> tuple[Channel, int]:
    """Return an authenticated connection and the port that answered.

    Raises `OSError` or `ProtocolError` if no port proves the key.
    """
    places = [(family, (name[0], port, *name[2:])) for family, name in _addresses(target.host) for port in target.ports]
    source = (target.source_host, 0) if target.source_host else None
    with _Race(identity, target.node, time.monotonic() + timeout_s) as race:
        for family, place in places:
            race.enter(family, place, source)
        channel, place = race.winner()
    return channel, int(place[1])


def dial_unix(path: str, identity: Identity, node: int, timeout_s: float) -> Channel:
    """Return an authenticated connection to a process of this node, over its Unix socket."""
    with short_path(path) as short, _Race(identity, node, time.monotonic() + timeout_s) as race:
        race.enter(socket.AF_UNIX, short, None)
        return race.winner()[0]


def _addresses(host: str) -> list[tuple[int, Any]]:
    found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    return list(dict.fromkeys((int(family), name) for family, _, _, _, name in found))[:_MAX_ADDRESSES]


class _Attempt:
    """One connection during authentication. `proof` is None until the connection is established."""

    __slots__ = ("data", "family", "place", "proof", "said", "socket", "source")

    def __init__(self, family: int, place: Any, source: Any) -> None:
        self.family, self.place, self.source = family, place, source
        self.proof: CallerProof | None = None
        self.data = b""
        self.said = False
        self.socket = socket.socket(family)
        try:
            self.socket.setblocking(False)
            if family != socket.AF_UNIX:
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if source is not None:
                self.socket.bind(source)
            code = self.socket.connect_ex(place)
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, os.strerror(code))
        except BaseException:
            self.socket.close()
            raise

    def connected(self, identity: Identity, node: int) -> None:
        code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        self.proof = CallerProof(identity, node, endpoint_bytes(self.socket.getpeername()))

    def receive(self) -> SessionKeys | None:
        """Perform one step of the proof. Return the session keys when the proof is complete."""
        assert self.proof is not None
        want = PROOF_BYTES if self.said else HELLO_BYTES
        with contextlib.suppress(BlockingIOError):
            more = self.socket.recv(want - len(self.data))
            if not more:
                raise ConnectionResetError(errno.ECONNRESET, "connection closed before the proof")
            self.data += more
        if len(self.data) < want:
            return None
        data, self.data = self.data, b""
        if self.said:
            return self.proof.check(data)
        self.said = True
        self.socket.sendall(self.proof.claim(data))  # the first bytes on a connection always fit into the send buffer
        return None


class _Race:
    def __init__(self, identity: Identity, node: int, deadline: float) -> None:
        self._identity = identity
        self._node = node
        self._deadline = deadline
        self._selector = selectors.DefaultSelector()
        self._running: set[_Attempt] = set()
        self._later: list[tuple[float, tuple[int, Any, Any]]] = []
        self._error: Exception = ConnectionError("no address to dial")
        self._unanswered = 0
        self._next_look = time.monotonic() + _UNANSWERED_S

    def __enter__(self) -> _Race:
        return self

    def __exit__(self, *_: object) -> None:
        for attempt in list(self._running):
            self._drop(attempt)
        self._selector.close()

    def enter(self, family: int, place: Any, source: Any) -> None:
        try:
            attempt = _Attempt(family, place, source)
        except OSError as error:
            if error.errno == errno.EAGAIN:  # the queue of a Unix socket is full
                self._later.append((time.monotonic() + _AGAIN_S, (family, place, source)))
            self._note(error)
            return
        self._running.add(attempt)
        self._selector.register(attempt.socket, selectors.EVENT_WRITE, attempt)

    def winner(self) -> tuple[Channel, Any]:
        while self._running or self._later:
            now = time.monotonic()
            if now >= self._deadline:
                raise ProtocolError("no proof of the job's key in time (%s)" % self._error)
            until = min([self._deadline, self._next_look, *(when for when, _ in self._later)])
            for key, _ in self._selector.select(max(0.0, until - now)):
                keys = self._step(key.data)
                if keys is not None:
                    return self._won(key.data, keys)
            self._enter_again()
            self._enter_unanswered()
        raise self._error

    def _step(self, attempt: _Attempt) -> SessionKeys | None:
        try:
            if attempt.proof is None:
                attempt.connected(self._identity, self._node)
                self._selector.modify(attempt.socket, selectors.EVENT_READ, attempt)
                return None
            return attempt.receive()
        except (ProtocolError, OSError) as error:
            if isinstance(error, (ConnectionResetError, BrokenPipeError)):
                again = (attempt.family, attempt.place, attempt.source)
                self._later.append((time.monotonic() + _AGAIN_S, again))
            self._note(error)
            self._drop(attempt)
        return None

    def _enter_again(self) -> None:
        now = time.monotonic()
        due = [again for when, again in self._later if when <= now]
        self._later = [(when, again) for when, again in self._later if when > now]
        for again in due:
            self.enter(*again)

    def _enter_unanswered(self) -> None:
        if time.monotonic() < self._next_look:
            return
        self._unanswered += 1
        more = self._unanswered < _MAX_UNANSWERED
        self._next_look = time.monotonic() + _UNANSWERED_S if more else self._deadline
        waiting = {attempt.place: attempt for attempt in self._running if attempt.proof is None}
        for attempt in waiting.values():
            self.enter(attempt.family, attempt.place, attempt.source)

    def _note(self, error: Exception) -> None:
        """Keep the most informative failure. A wrong proof is more informative than a closed port."""
        if isinstance(error, ProofError) or not isinstance(self._error, ProofError):
            self._error = error

    def _won(self, attempt: _Attempt, keys: SessionKeys) -> tuple[Channel, Any]:
        self._running.discard(attempt)
        self._selector.unregister(attempt.socket)
        return Channel(attempt.socket, self._node, None if attempt.family == socket.AF_UNIX else keys), attempt.place

    def _drop(self, attempt: _Attempt) -> None:
        self._running.discard(attempt)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(attempt.socket)
        attempt.socket.close()
