"""Accept connections: one loop authenticates all callers, and each authenticated caller gets a thread.

A caller that is not yet authenticated uses a slot but no thread. When all slots are full, the oldest such caller is
dropped. A stranger with any number of half-open connections therefore delays other callers by at most the time to
refill all slots. There is no list of addresses and no limit per address, because a legitimate node may use any of its
addresses.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import selectors
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from windlass.node.wire.proof import CLAIM_BYTES, CalledProof, Channel, Identity, ProtocolError, endpoint_bytes

log = logging.getLogger("windlass.cache")
MAX_UNPROVEN = 1024
PROOF_S = 10.0
_BATCH = 64
_PAUSE_S = 0.05
_NO_ROOM = (errno.EMFILE, errno.ENFILE)


class _Caller:
    """A connection whose caller is not authenticated yet."""

    __slots__ = ("claim", "proof", "since", "socket")

    def __init__(self, connection: socket.socket, identity: Identity) -> None:
        self.socket = connection
        self.since = time.monotonic()
        self.claim = b""
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.proof = CalledProof(identity, endpoint_bytes(connection.getsockname()))
        connection.sendall(self.proof.hello)  # the first bytes on a connection always fit into the send buffer

    def receive(self) -> Channel | None:
        """Perform one step of the proof. Return the channel when the proof is complete."""
        with contextlib.suppress(BlockingIOError):
            more = self.socket.recv(CLAIM_BYTES - len(self.claim))
            if not more:
                raise ConnectionError("connection closed before the proof")
            self.claim += more
        if len(self.claim) < CLAIM_BYTES:
            return None
        answer, caller, keys = self.proof.answer(self.claim)
        self.socket.sendall(answer)
        tagged = self.socket.family != socket.AF_UNIX
        return Channel(self.socket, caller, keys if tagged else None, called=True)


class Acceptor:
    """Serves a listening socket until it is closed.

    Runs `serve` on a separate thread for every authenticated connection. The connection is closed when `serve` returns.
    If threads, descriptors or memory run out, only the callers of that moment fail.
    """

    def __init__(
        self,
        listening: socket.socket,
        identity: Identity,
        serve: Callable[[Channel], None],
        *,
        max_proven: int,
    ) -> None:
        self._listening = listening
        self._identity = identity
        self._serve = serve
        self._max_proven = max_proven
        self._lock = threading.Lock()
        self._unproven: OrderedDict[int, _Caller] = OrderedDict()
        self._proven: set[Channel] = set()
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._failing = False
        self._closed = False
        self.refused = 0
        listening.setblocking(False)
        self._selector.register(listening, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="accept", daemon=True)
        self._thread.start()

    @property
    def is_accepting(self) -> bool:
        """Return whether callers get an answer now."""
        return self._thread.is_alive() and not self._failing and not self._closed

    def close(self) -> None:
        """Accept no new connections and end all open ones."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._wake.send(b"x")
        self._thread.join(2.0)
        for channel in list(self._proven):
            channel.shut()

    def _run(self) -> None:
        try:
            while not self._closed:
                try:
                    self._round()
                    self._failing = False
                except (OSError, RuntimeError, MemoryError) as error:
                    if not self._failing:
                        log.warning("cannot accept for now: %s", error)
                    self._failing = True
                    if isinstance(error, OSError) and error.errno in _NO_ROOM:
                        self._evict_oldest()
                    time.sleep(_PAUSE_S)  # wait until other connections close
        finally:
            for caller in list(self._unproven.values()):
                self._leave(caller, refused=False)
            for end in (self._listening, self._wake, self._woken):
                end.close()
            self._selector.close()

    def _round(self) -> None:
        found = self._selector.select(1.0)
        for key, _ in found:  # first the callers that send a proof, because each new caller may evict the oldest one
            if key.data is not None:
                self._advance(key.data)
        if any(key.fileobj is self._listening for key, _ in found):
            self._accept_some()
        late = time.monotonic() - PROOF_S
        while self._unproven and next(iter(self._unproven.values())).since < late:
            self._evict_oldest()

    def _accept_some(self) -> None:
        for _ in range(_BATCH):  # a limited batch, then back to the callers that wait for authentication
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, ConnectionError):
                return
            try:
                caller = _Caller(connection, self._identity)
                self._selector.register(connection, selectors.EVENT_READ, caller)
            except (OSError, ValueError):  # the caller has disconnected
                connection.close()
                self.refused += 1
                continue
            self._unproven[connection.fileno()] = caller
            if len(self._unproven) > MAX_UNPROVEN:
                self._evict_oldest()

    def _advance(self, caller: _Caller) -> None:
        if caller.socket.fileno() < 0:
            return  # evicted in this round
        try:
            channel = caller.receive()
        except (OSError, ProtocolError):
            self._leave(caller, refused=True)
            return
        if channel is not None:
            self._unproven.pop(caller.socket.fileno(), None)
            self._selector.unregister(caller.socket)
            self._start(channel)

    def _start(self, channel: Channel) -> None:
        with self._lock:
            full = len(self._proven) >= self._max_proven
            if not full:
                self._proven.add(channel)
        if full:
            self.refused += 1
            channel.socket.close()
            return
        try:
            threading.Thread(target=self._serve_one, args=(channel,), name="inbound", daemon=True).start()
        except (RuntimeError, MemoryError):
            self._end(channel)
            raise

    def _serve_one(self, channel: Channel) -> None:
        try:
            self._serve(channel)
        finally:
            self._end(channel)

    def _end(self, channel: Channel) -> None:
        with self._lock:
            self._proven.discard(channel)
        channel.socket.close()

    def _evict_oldest(self) -> None:
        if self._unproven:
            self._leave(next(iter(self._unproven.values())), refused=True)

    def _leave(self, caller: _Caller, *, refused: bool) -> None:
        self._unproven.pop(caller.socket.fileno(), None)
        with contextlib.suppress(KeyError, ValueError, OSError):
            self._selector.unregister(caller.socket)
        caller.socket.close()
        self.refused += refused
