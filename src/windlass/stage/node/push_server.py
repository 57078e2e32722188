"""Connections of the push, seen from the parent: who proves the job's key gets the layout, or a stripe's blocks."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
import time
from collections.abc import Callable

from windlass.cache.node import wire
from windlass.cache.node.link import set_timeouts
from windlass.cache.node.server import listen_tcp

from .layout import Layout
from .push import Push
from .push_client import ASK, FRAME, MAX_TEXT_BYTES, NO_DIGEST, Kind
from .window import Cursor, Row

_MOST_CONNECTIONS = 256
_PROOF_S = 2.0
_SEND_S = 20.0
_WAIT_EVERY_S = 0.5
Reread = Callable[[int, memoryview], bool]


class Feeder:
    """Serves children until it is closed. `reread` gives a block that has left memory from the files it became."""

    def __init__(self, host: str, number: int, key: bytes, push: Push, reread: Reread) -> None:
        self._number = number
        self._key = key
        self._push = push
        self._reread = reread
        self._closed = False
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._socket = listen_tcp(host, wire.port_candidates(key))
        threading.Thread(target=self._accept, name="accept", daemon=True).start()

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                time.sleep(0.05)  # closing, or out of descriptors
                continue
            with self._lock:
                full = len(self._connections) >= _MOST_CONNECTIONS
                if not full:
                    self._connections.add(connection)
            if full:
                connection.close()
            else:
                threading.Thread(target=self._greet, args=(connection,), name="feed", daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(_PROOF_S)
            caller = wire.prove_as_called(connection, self._key, self._number, time.monotonic() + _PROOF_S)
            asked = wire.receive_exactly(connection, ASK.size, time.monotonic() + _PROOF_S)
            set_timeouts(connection, _SEND_S, _SEND_S)
            kind, stripe, position = ASK.unpack(asked)
            self._serve(connection, caller, kind, stripe, position)
        except (OSError, wire.ProtocolError):
            pass  # gone, too slow, or not speaking the protocol
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _serve(self, connection: socket.socket, caller: int, kind: int, stripe: int, position: int) -> None:
        layout = None
        while layout is None:
            layout = self._push.wait_layout(_WAIT_EVERY_S)
            if not self._goes_on(connection):
                return
        if kind == Kind.LAYOUT:
            data = layout.packed
            _send(connection, Kind.LAYOUT, 0, hashlib.sha256(data).digest(), memoryview(data))
        elif kind == Kind.STRIPE and stripe < layout.stripes:
            while not self._push.rows:
                time.sleep(0.01)
                if not self._goes_on(None):
                    return
            row = self._push.rows[stripe]
            self._feed(connection, layout, row, stripe, row.join(position, caller))

    def _feed(self, connection: socket.socket, layout: Layout, row: Row, stripe: int, cursor: Cursor) -> None:
        again = memoryview(bytearray(layout.block_bytes)) if cursor.behind else None
        try:
            while cursor.position < row.count:
                slot = row.wait(cursor, _WAIT_EVERY_S)
                index = layout.index(stripe, cursor.position)
                if slot is not None:
                    _send(connection, Kind.BLOCK, index, slot.digest, slot.data)
                elif cursor.behind and again is not None:
                    data = again[: layout.blocks[index].length]
                    if not self._reread(index, data):
                        _send(connection, Kind.GONE, index, NO_DIGEST, memoryview(b""))
                        return
                    _send(connection, Kind.BLOCK, index, row.digests[cursor.position], data)
                else:
                    if not self._goes_on(connection):
                        return
                    continue
                row.step(cursor)
        finally:
            row.leave(cursor)

    def _goes_on(self, connection: socket.socket | None) -> bool:
        """Says that we are here and at work; False after saying why nothing more will come."""
        if self._push.error and connection is not None:
            text = self._push.error.encode("utf-8", "replace")[:MAX_TEXT_BYTES]
            _send(connection, Kind.FAILED, 0, NO_DIGEST, memoryview(text))
        elif connection is not None:
            _send(connection, Kind.WAIT, 0, NO_DIGEST, memoryview(b""))
        return not (self._closed or self._push.error)


def _send(connection: socket.socket, kind: Kind, index: int, digest: bytes, data: memoryview) -> None:
    connection.sendall(FRAME.pack(kind, len(data), index, digest), socket.MSG_MORE if data else 0)
    if data:
        connection.sendall(data)
