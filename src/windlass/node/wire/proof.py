"""Authenticate a new connection with the job's key, and tag every frame on TCP.

The proof does no input or output: it takes bytes and returns bytes. The called side sends a nonce. The caller sends its
proof first. Only then does the called side send its proof. Both proofs cover the run, the service, both nodes, both
nonces and the endpoint that was dialled: the caller's `getpeername()`, the called side's `getsockname()`. A process
that listens elsewhere and relays the proof has another endpoint, and the proof fails. The source address is not part of
the proof, because nodes with several interfaces choose theirs freely and gateways change it.

A `Channel` is an authenticated connection: its socket, the peer, and the tags that authenticate every frame on TCP. A
tag is a keyed hash of the frame's number in its direction, its head, and the covered part of its body. The frame's kind
determines this part. Usually it is the whole body. For objects and blocks it is only key and digest, because the
receiver checks the digest against the bytes anyway. The kernel can therefore send them without copying them through
this process. Nothing is encrypted.

Frames on a Unix socket carry no tags, because the socket is in a directory that only this user can enter.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import socket
import struct
from typing import Any, NamedTuple

VERSION = 2
NO_NODE = 0xFFFFFFFF
"""The caller is a tool of this node, or the caller accepts any node."""

_HELLO = struct.Struct("<4sHH32s")
_CLAIM = struct.Struct("<II32s32s")
_MAGIC = b"WLC\x01"
HELLO_BYTES = _HELLO.size
CLAIM_BYTES = _CLAIM.size
PROOF_BYTES = 32
_MAPPED = bytes(10) + b"\xff\xff"


class ProtocolError(Exception):
    """The peer does not use this protocol, or exceeds its limits."""


class ProofError(ProtocolError):
    """The peer does not hold the key of this job, or is not the expected node."""


class Identity(NamedTuple):
    """The identity of this side: a node of a run, in one of its services. `key` is the job's key."""

    key: bytes
    run: str
    service: str
    node: int


class SessionKeys(NamedTuple):
    """Keys for the frames of one connection, one for each direction."""

    from_caller: bytes
    from_called: bytes


def endpoint_bytes(name: Any) -> bytes:
    """Return address and port of a socket's name in one form.

    An IPv4 address mapped into IPv6 becomes IPv4, and a scope is omitted. Unix sockets have no endpoint, because only
    this user can reach their directory.
    """
    if not isinstance(name, tuple):
        return b"unix"
    host, port = name[0].partition("%")[0], name[1]
    if ":" not in host:
        return socket.inet_pton(socket.AF_INET, host) + struct.pack(">H", port)
    packed = socket.inet_pton(socket.AF_INET6, host)
    return (packed[12:] if packed.startswith(_MAPPED) else packed) + struct.pack(">H", port)


class CalledProof:
    """The called side of one proof. Send `hello`, pass the claim to `answer`, and send the result."""

    def __init__(self, identity: Identity, endpoint: bytes) -> None:
        self._identity = identity
        self._endpoint = endpoint
        self._nonce = os.urandom(32)
        self.hello = _HELLO.pack(_MAGIC, VERSION, 0, self._nonce)

    def answer(self, claim: bytes) -> tuple[bytes, int, SessionKeys]:
        """Return our proof, the caller's node (`NO_NODE`: a tool) and the session keys.

        Raises `ProofError` for a caller that does not hold the key or expects another node, run, service or endpoint.
        """
        caller, called, theirs, proof = _CLAIM.unpack(claim)
        mine = self._identity
        text = _transcript(mine, caller, called, self._endpoint, self._nonce, theirs)
        if not hmac.compare_digest(proof, _mac(mine.key, b"caller", text)):
            raise ProofError("a caller without the key of this job, or one that dialled another endpoint")
        if called not in (mine.node, NO_NODE):
            raise ProofError("the caller looks for node %d, this is node %d" % (called, mine.node))
        return _mac(mine.key, b"called", text), int(caller), _session(mine.key, text)


class CallerProof:
    """The calling side of one proof: `claim` answers the hello, `check` verifies the peer's proof."""

    def __init__(self, identity: Identity, called: int, endpoint: bytes) -> None:
        self._identity = identity
        self._called = called
        self._endpoint = endpoint
        self._text = b""

    def claim(self, hello: bytes) -> bytes:
        """Return the bytes to send. Raises `ProofError` for a hello that this protocol did not produce."""
        magic, version, _, theirs = _HELLO.unpack(hello)
        if magic != _MAGIC:
            raise ProofError("not a windlass node")
        if version != VERSION:
            raise ProofError("the other side speaks version %d, this one %d" % (version, VERSION))
        mine, nonce = self._identity, os.urandom(32)
        self._text = _transcript(mine, mine.node, self._called, self._endpoint, theirs, nonce)
        return _CLAIM.pack(mine.node, self._called, nonce, _mac(mine.key, b"caller", self._text))

    def check(self, proof: bytes) -> SessionKeys:
        if not hmac.compare_digest(proof, _mac(self._identity.key, b"called", self._text)):
            raise ProofError("the called side does not hold the key of this job")
        return _session(self._identity.key, self._text)


def _transcript(
    identity: Identity, caller: int, called: int, endpoint: bytes, called_nonce: bytes, caller_nonce: bytes
) -> bytes:
    """Return all values that both sides must agree on.

    Each part has its length in front, so that different values never give the same bytes.
    """
    names = (identity.service.encode(), identity.run.encode("utf-8", "surrogateescape"), endpoint)
    parts = b"".join(struct.pack("<I", len(name)) + name for name in names)
    return struct.pack("<HII", VERSION, caller, called) + parts + called_nonce + caller_nonce


def _mac(key: bytes, label: bytes, text: bytes) -> bytes:
    return hmac.new(key, b"windlass " + label + b"\0" + text, hashlib.sha256).digest()


def _session(key: bytes, text: bytes) -> SessionKeys:
    return SessionKeys(_mac(key, b"frames of the caller", text), _mac(key, b"frames of the called side", text))


TAG_BYTES = 16
_COUNT = struct.Struct("<Q")


class Channel:
    """Made by `dial` and `accept`. Call `seal` in the order in which frames are sent, and `check` as they arrive."""

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
            # Keyed once: copying the state costs less than hashing the key block for every frame.
            self._sending = hashlib.blake2b(key=mine, digest_size=TAG_BYTES)
            self._receiving = hashlib.blake2b(key=theirs, digest_size=TAG_BYTES)

    def seal(self, head: bytes, covered: bytes | memoryview = b"") -> bytes:
        """Return the head with the frame's tag appended."""
        if not self.tag_bytes:
            return head
        state = self._sending.copy()
        state.update(_COUNT.pack(self._sent) + head)
        state.update(covered)
        self._sent += 1
        return head + state.digest()

    def check(self, head: bytes, tag: bytes, covered: bytes | memoryview = b"") -> None:
        """Raise `ProtocolError` if this is not the next frame that the peer sealed."""
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
        """End both directions, so that all readers and writers fail. The socket remains to be closed."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
