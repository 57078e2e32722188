"""The peers' protocol: frames, their limits, and the proof of the job's key. No threads, no policy.

A frame is a head (length of the body, type, request) and a body. Before the proof is done only the fixed sizes of the
proof are read; after it, a length beyond the limit of the frame's type ends the connection.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
import time
from collections.abc import Iterable
from typing import NamedTuple

from .keys import DIGEST_BYTES, MAX_KEY_BYTES
from .listing import MAX_LISTING_BYTES

VERSION = 1
HEAD = struct.Struct("<IBxxxQ")
HEAD_BYTES = HEAD.size

GET, GET_INLINE, PREFETCH, STREAM, READY, STATUS, TOUCH, PING = range(1, 9)
OBJECT, HAVE, ERROR, WAIT, PLAN, SKIP, END, ANSWER, GONE = range(32, 41)

MAX_REQUEST_BYTES = 8192
_LONG_REQUESTS = {TOUCH: 4 << 20, READY: 1 << 20, STATUS: 1 << 20}
_KEY_LENGTH = struct.Struct("<H")
_ERROR = struct.Struct("<i")
MAX_OBJECT_BYTES = MAX_LISTING_BYTES + _KEY_LENGTH.size + MAX_KEY_BYTES + DIGEST_BYTES
_LONG_REPLIES = {OBJECT: MAX_OBJECT_BYTES, HAVE: 1 << 20, PLAN: 256 << 20, ANSWER: 64 << 20}


class ProtocolError(Exception):
    """The other side does not speak this protocol, or not within its limits."""


class ProofError(ProtocolError):
    """The other side does not hold the key of this job, or is not the node it should be."""


class Head(NamedTuple):
    length: int
    kind: int
    request: int


def head(kind: int, request: int, length: int) -> bytes:
    return HEAD.pack(length, kind, request)


def parse_request_head(data: bytes) -> Head:
    """Head of a frame that asks; `ProtocolError` beyond the limits."""
    length, kind, request = HEAD.unpack(data)
    if not GET <= kind <= PING:
        raise ProtocolError("unknown request %d" % kind)
    if length > _LONG_REQUESTS.get(kind, MAX_REQUEST_BYTES):
        raise ProtocolError("request %d of %d bytes" % (kind, length))
    return Head(length, kind, request)


def parse_reply_head(data: bytes) -> Head:
    """Head of a frame that answers; `ProtocolError` beyond the limits."""
    length, kind, request = HEAD.unpack(data)
    if not OBJECT <= kind <= GONE:
        raise ProtocolError("unknown reply %d" % kind)
    if length > _LONG_REPLIES.get(kind, MAX_REQUEST_BYTES):
        raise ProtocolError("reply %d of %d bytes" % (kind, length))
    return Head(length, kind, request)


def object_prefix(key: bytes, digest: bytes) -> bytes:
    """What stands before the data in the body of an OBJECT."""
    return _KEY_LENGTH.pack(len(key)) + key + digest


def parse_object(body: memoryview) -> tuple[bytes, bytes, memoryview]:
    """Key, digest and data of an OBJECT's body; the data is not checked yet."""
    if len(body) < _KEY_LENGTH.size:
        raise ProtocolError("object of %d bytes" % len(body))
    end = _KEY_LENGTH.size + _KEY_LENGTH.unpack_from(body)[0]
    if len(body) < end + DIGEST_BYTES:
        raise ProtocolError("object of %d bytes is cut off" % len(body))
    return bytes(body[_KEY_LENGTH.size : end]), bytes(body[end : end + DIGEST_BYTES]), body[end + DIGEST_BYTES :]


def join_keys(keys: Iterable[bytes]) -> bytes:
    return b"".join(_KEY_LENGTH.pack(len(key)) + key for key in keys)


def split_keys(body: bytes) -> list[bytes]:
    """Keys put together by `join_keys`; `ProtocolError` where they are cut off."""
    keys, at = [], 0
    while at < len(body):
        end = at + _KEY_LENGTH.size + int.from_bytes(body[at : at + _KEY_LENGTH.size], "little")
        if end > len(body):
            raise ProtocolError("keys are cut off")
        keys.append(body[at + _KEY_LENGTH.size : end])
        at = end
    return keys


def error_body(number: int, text: str) -> bytes:
    return _ERROR.pack(number) + text.encode("utf-8", "surrogateescape")[:1024]


def parse_error(body: bytes) -> OSError:
    if len(body) < _ERROR.size:
        raise ProtocolError("error of %d bytes" % len(body))
    return OSError(_ERROR.unpack_from(body)[0], body[_ERROR.size :].decode("utf-8", "surrogateescape"))


# The proof. The called side sends a nonce; the caller proves first; only then does the called side prove itself.

_HELLO = struct.Struct("<4sHH32s")
_CLAIM = struct.Struct("<II32s32s")
_MAGIC = b"WLC\x01"
_PROOF_BYTES = 32
NO_NODE = 0xFFFFFFFF


def _proof(key: bytes, side: bytes, nonces: bytes, caller: int, called: int) -> bytes:
    return hmac.new(key, b"windlass-cache %s %d %d " % (side, caller, called) + nonces, hashlib.sha256).digest()


def prove_as_called(connection: socket.socket, key: bytes, node: int, deadline: float) -> int:
    """Lets the caller prove the key, then proves it to the caller; returns the caller's node (`NO_NODE`: a tool)."""
    mine = os.urandom(32)
    connection.sendall(_HELLO.pack(_MAGIC, VERSION, 0, mine))
    caller, called, theirs, proof = _CLAIM.unpack(receive_exactly(connection, _CLAIM.size, deadline))
    if not hmac.compare_digest(proof, _proof(key, b"caller", mine + theirs, caller, called)):
        raise ProofError("a caller without the key of this job")
    if called not in (node, NO_NODE):
        raise ProofError("the caller looks for node %d, this is node %d" % (called, node))
    connection.sendall(_proof(key, b"called", theirs + mine, caller, called))
    return int(caller)


def prove_as_caller(connection: socket.socket, key: bytes, node: int, called: int, deadline: float) -> None:
    """Proves the key to node `called` and has it prove the same; raises `ProofError` where it cannot."""
    magic, version, _, theirs = _HELLO.unpack(receive_exactly(connection, _HELLO.size, deadline))
    if magic != _MAGIC:
        raise ProofError("not a windlass cache")
    if version != VERSION:
        raise ProofError("the other side speaks version %d, this one %d" % (version, VERSION))
    mine = os.urandom(32)
    connection.sendall(_CLAIM.pack(node, called, mine, _proof(key, b"caller", theirs + mine, node, called)))
    proof = receive_exactly(connection, _PROOF_BYTES, deadline)
    if not hmac.compare_digest(proof, _proof(key, b"called", mine + theirs, node, called)):
        raise ProofError("the called side does not hold the key of this job")


def receive_exactly(connection: socket.socket, count: int, deadline: float) -> bytes:
    """Exactly `count` bytes before the deadline (monotonic), or `ProtocolError`."""
    data = b""
    while len(data) < count:
        left = deadline - time.monotonic()
        if left <= 0:
            raise ProtocolError("no answer in time")
        connection.settimeout(left)
        try:
            more = connection.recv(count - len(data))
        except socket.timeout:
            raise ProtocolError("no answer in time") from None
        if not more:
            raise ProtocolError("connection closed")
        data += more
    return data


def port_candidates(key: bytes, count: int = 16) -> tuple[int, ...]:
    """Ports a node of this job may listen on, the same on every node: the first free one is taken, callers try them in
    turn until one proves the key."""
    seed = hmac.new(key, b"windlass-cache ports", hashlib.sha256).digest()
    first = 20000 + int.from_bytes(seed[:4], "little") % 10000
    return tuple(first + i for i in range(count))
