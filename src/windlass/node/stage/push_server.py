"""The parent side of the push's connections: sends the layout or a stripe's blocks to authenticated callers."""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Callable

from windlass.node.stage.layout import Layout
from windlass.node.stage.push import Push, PushNode
from windlass.node.stage.push_client import ASK, FRAME, MAX_TEXT_BYTES, NO_DIGEST, MessageKind, receive_all
from windlass.node.stage.window import Cursor, StripeWindow
from windlass.node.wire.accept import Acceptor
from windlass.node.wire.link import set_timeouts
from windlass.node.wire.ports import listen_tcp, port_candidates
from windlass.node.wire.proof import TAG_BYTES, Channel, ProtocolError

_MAX_CONNECTIONS = 256
_SEND_S = 20.0
_WAIT_EVERY_S = 0.5
Reread = Callable[[int, memoryview], bool]


class Feeder:
    """Serves children until it is closed. `reread` reads a block that has left memory from the files made of it."""

    def __init__(self, place: PushNode, push: Push, reread: Reread) -> None:
        self._push = push
        self._reread = reread
        self._closed = False
        listening = listen_tcp(place.hosts[place.number], port_candidates(place.identity, place.number))
        self._acceptor = Acceptor(listening, place.identity, self._greet, max_proven=_MAX_CONNECTIONS)

    def close(self) -> None:
        self._closed = True
        self._acceptor.close()

    def _greet(self, channel: Channel) -> None:
        asked = memoryview(bytearray(ASK.size + TAG_BYTES))
        try:
            set_timeouts(channel.socket, _SEND_S, _SEND_S)
            receive_all(channel.socket, asked)
            channel.check(bytes(asked[: ASK.size]), bytes(asked[ASK.size :]))
            kind, stripe, position = ASK.unpack(asked[: ASK.size])
            self._serve(channel, kind, stripe, position)
        except (OSError, ProtocolError):
            pass  # disconnected, too slow, or not this protocol

    def _serve(self, channel: Channel, kind: int, stripe: int, position: int) -> None:
        layout = None
        while layout is None:
            layout = self._push.wait_layout(_WAIT_EVERY_S)
            if not self._goes_on(channel):
                return
        if kind == MessageKind.LAYOUT:
            data = layout.packed
            _send(channel, MessageKind.LAYOUT, 0, hashlib.sha256(data).digest(), memoryview(data))
        elif kind == MessageKind.STRIPE and stripe < layout.stripes:
            while not self._push.rows:
                time.sleep(0.01)
                if not self._goes_on(None):
                    return
            row = self._push.rows[stripe]
            self._feed(channel, layout, row, stripe, row.join(position, channel.node))

    def _feed(self, channel: Channel, layout: Layout, row: StripeWindow, stripe: int, cursor: Cursor) -> None:
        again = memoryview(bytearray(layout.block_bytes)) if cursor.behind else None
        try:
            while cursor.position < row.count:
                slot = row.wait(cursor, _WAIT_EVERY_S)
                index = layout.index(stripe, cursor.position)
                if slot is not None:
                    _send(channel, MessageKind.BLOCK, index, slot.digest, slot.data)
                elif cursor.behind and again is not None:
                    data = again[: layout.blocks[index].length]
                    if not self._reread(index, data):
                        _send(channel, MessageKind.GONE, index, NO_DIGEST, memoryview(b""))
                        return
                    _send(channel, MessageKind.BLOCK, index, row.digests[cursor.position], data)
                else:
                    if not self._goes_on(channel):
                        return
                    continue
                row.step(cursor)
        finally:
            row.leave(cursor)

    def _goes_on(self, channel: Channel | None) -> bool:
        """Report to the child that we are working. Return False after sending why no further block will come."""
        if self._push.error and channel is not None:
            text = self._push.error.encode("utf-8", "replace")[:MAX_TEXT_BYTES]
            _send(channel, MessageKind.FAILED, 0, NO_DIGEST, memoryview(text))
        elif channel is not None:
            _send(channel, MessageKind.WAIT, 0, NO_DIGEST, memoryview(b""))
        return not (self._closed or self._push.error)


def _send(channel: Channel, kind: MessageKind, index: int, digest: bytes, data: memoryview) -> None:
    head = FRAME.pack(kind, len(data), index, digest)
    channel.socket.sendall(
        channel.seal(head, data if kind == MessageKind.FAILED else b""), socket.MSG_MORE if data else 0
    )
    if data:
        channel.socket.sendall(data)
