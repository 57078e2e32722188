"""A proven connection: its socket, who is on the other side, and the tags that authenticate every frame on TCP.

A tag is a keyed hash of the frame's number in its direction, its head, and what the frame's kind says is covered: the
whole body, but of objects and blocks only key and digest, because the receiver checks the digest against the bytes
anyway; so the kernel still sends them without their passing through this process. Nothing is encrypted.

A Unix socket lies in a folder that only this user can enter: its frames carry no tags.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import socket
import struct

from windlass.node.wire.proof import ProtocolError, SessionKeys

TAG_BYTES = 16
_COUNT = struct.Struct("<Q")


class Channel:
    """Made by `dial` and `accept`. `seal` must be called in the order in which frames leave; `check`, as they come."""

    __slots__ = ("_received", "_receiving", "_sending", "_sent", "node", "socket", "tag_bytes")

    def __init__(
        self, connection: socket.socket, node: int, keys: SessionKeys | None = None, *, called: bool = False
    ) -> None:
        self.socket = connection
        self.node = node
        self.tag_bytes = TAG_BYTES if keys is not None else 0
        self._sent = self._received = 0
        if keys is not None:
            mine, theirs = (keys.from_called, keys.from_caller) if called else (keys.from_caller, keys.from_called)
            # Keyed once: a copy of the state costs less than the key's own block for every frame.
            self._sending = hashlib.blake2b(key=mine, digest_size=TAG_BYTES)
            self._receiving = hashlib.blake2b(key=theirs, digest_size=TAG_BYTES)

    def seal(self, head: bytes, covered: bytes | memoryview = b"") -> bytes:
        """The head as it travels: with the frame's tag behind it."""
        if not self.tag_bytes:
            return head
        state = self._sending.copy()
        state.update(_COUNT.pack(self._sent) + head)
        state.update(covered)
        self._sent += 1
        return head + state.digest()

    def check(self, head: bytes, tag: bytes, covered: bytes | memoryview = b"") -> None:
        """`ProtocolError` for a frame that is not the next one that the other side sealed."""
        if not self.tag_bytes:
            return
        state = self._receiving.copy()
        state.update(_COUNT.pack(self._received))
        state.update(head)
        state.update(covered)
        self._received += 1
        if not hmac.compare_digest(state.digest(), tag):
            raise ProtocolError("a frame that the other side did not send, or not in this place")

    def shut(self) -> None:
        """Ends both directions: whoever reads or writes on it finds out. The socket stays to be closed."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
