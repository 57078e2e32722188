"""The cache's protocol: frames and their limits. No threads, no policy.

A frame is a head (length of the body, type, request), its tag on TCP (see `proof.Channel`), and a body. A length beyond
the limit of the frame's type ends the connection.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from windlass.node.cache.keys import DIGEST_BYTES, MAX_KEY_BYTES
from windlass.node.cache.listing import MAX_LISTING_BYTES
from windlass.node.wire.proof import ProtocolError

HEAD = struct.Struct("<IBxxxQ")
HEAD_BYTES = HEAD.size

GET, GET_INLINE, PREFETCH, STREAM, READY, STATUS, TOUCH, PING = range(1, 9)
OBJECT, HAVE, ERROR, WAIT, PLAN, SKIP, END, ANSWER, GONE, BATCH = range(32, 42)

MAX_REQUEST_BYTES = 8192
_LONG_REQUESTS = {TOUCH: 4 << 20, READY: 1 << 20, STATUS: 1 << 20}
_KEY_LENGTH = struct.Struct("<H")
_ERROR = struct.Struct("<i")
MAX_OBJECT_BYTES = MAX_LISTING_BYTES + _KEY_LENGTH.size + MAX_KEY_BYTES + DIGEST_BYTES
BATCH_OBJECTS = 64
BATCH_BYTES = 1 << 20
"""Data size at which a batch ends. Its last object may exceed it. A batch has no larger object than this."""
_BATCH_HEAD = struct.Struct("<I")
_SIZE = struct.Struct("<I")
_MAX_BATCH_HEAD = BATCH_OBJECTS * (_KEY_LENGTH.size + MAX_KEY_BYTES + DIGEST_BYTES + _SIZE.size)
_MAX_BATCH_BYTES = _BATCH_HEAD.size + _MAX_BATCH_HEAD + 2 * BATCH_BYTES
_LONG_REPLIES = {
    OBJECT: MAX_OBJECT_BYTES,
    HAVE: 1 << 20,
    PLAN: 256 << 20,
    ANSWER: 64 << 20,
    BATCH: _MAX_BATCH_BYTES,
}


class Head(NamedTuple):
    length: int
    kind: int
    request: int


def head(kind: int, request: int, length: int) -> bytes:
    return HEAD.pack(length, kind, request)


def parse_request_head(data: bytes) -> Head:
    """Parse the head of a request frame. Raises `ProtocolError` beyond the limits."""
    length, kind, request = HEAD.unpack(data)
    if not GET <= kind <= PING:
        raise ProtocolError("unknown request %d" % kind)
    if length > _LONG_REQUESTS.get(kind, MAX_REQUEST_BYTES):
        raise ProtocolError("request %d of %d bytes" % (kind, length))
    return Head(length, kind, request)


def parse_reply_head(data: bytes) -> Head:
    """Parse the head of a reply frame. Raises `ProtocolError` beyond the limits."""
    length, kind, request = HEAD.unpack(data)
    if not OBJECT <= kind <= BATCH:
        raise ProtocolError("unknown reply %d" % kind)
    if length > _LONG_REPLIES.get(kind, MAX_REQUEST_BYTES):
        raise ProtocolError("reply %d of %d bytes" % (kind, length))
    return Head(length, kind, request)


def object_prefix(key: bytes, digest: bytes) -> bytes:
    """Return the bytes that precede the data in the body of an OBJECT."""
    return _KEY_LENGTH.pack(len(key)) + key + digest


def parse_object(body: memoryview) -> tuple[bytes, bytes, memoryview]:
    """Return key, digest and data of an OBJECT's body. The data is not checked yet."""
    if len(body) < _KEY_LENGTH.size:
        raise ProtocolError("object of %d bytes" % len(body))
    end = _KEY_LENGTH.size + _KEY_LENGTH.unpack_from(body)[0]
    if len(body) < end + DIGEST_BYTES:
        raise ProtocolError("object of %d bytes is cut off" % len(body))
    return bytes(body[_KEY_LENGTH.size : end]), bytes(body[end : end + DIGEST_BYTES]), body[end + DIGEST_BYTES :]


def batch_prefix(objects: Iterable[tuple[bytes, bytes, int]]) -> bytes:
    """Return the bytes that precede the data in the body of a BATCH: key, digest and size of each object."""
    head = b"".join(object_prefix(key, digest) + _SIZE.pack(size) for key, digest, size in objects)
    return _BATCH_HEAD.pack(len(head)) + head


def parse_batch(body: memoryview) -> list[tuple[bytes, bytes, memoryview]]:
    """Return key, digest and data of each object of a BATCH.

    The data follow each other in `body` and are not checked yet.
    """
    end = data_at = _batch_head_end(body)
    at = _BATCH_HEAD.size
    found: list[tuple[bytes, bytes, memoryview]] = []
    while at < end:
        if len(found) == BATCH_OBJECTS or at + _KEY_LENGTH.size > end:
            raise ProtocolError("a batch of too many objects, or cut off")
        key_end = at + _KEY_LENGTH.size + _KEY_LENGTH.unpack_from(body, at)[0]
        digest_end = key_end + DIGEST_BYTES
        if digest_end + _SIZE.size > end:
            raise ProtocolError("a batch that is cut off")
        size = _SIZE.unpack_from(body, digest_end)[0]
        key, stated = bytes(body[at + _KEY_LENGTH.size : key_end]), bytes(body[key_end:digest_end])
        found.append((key, stated, body[data_at : data_at + size]))
        at = digest_end + _SIZE.size
        data_at += size
    if data_at != len(body):
        raise ProtocolError("a batch of %d bytes says %d" % (len(body), data_at))
    return found


def _batch_head_end(body: bytes | memoryview) -> int:
    if len(body) < _BATCH_HEAD.size:
        raise ProtocolError("batch of %d bytes" % len(body))
    end = _BATCH_HEAD.size + int(_BATCH_HEAD.unpack_from(body)[0])
    if end > len(body):
        raise ProtocolError("batch of %d bytes is cut off" % len(body))
    return end


def covered_by_tag(kind: int, body: bytes | memoryview) -> bytes | memoryview:
    """Return the part of a body that its tag covers.

    The tag covers an object's digest. The receiver checks the object's data against that digest.
    """
    if kind == BATCH:
        return body[: _batch_head_end(body)]
    if kind != OBJECT:
        return body
    if len(body) < _KEY_LENGTH.size:
        raise ProtocolError("object of %d bytes" % len(body))
    return body[: _KEY_LENGTH.size + _KEY_LENGTH.unpack_from(body)[0] + DIGEST_BYTES]


def join_keys(keys: Iterable[bytes]) -> bytes:
    return b"".join(_KEY_LENGTH.pack(len(key)) + key for key in keys)


def split_keys(body: bytes) -> list[bytes]:
    """Split keys that `join_keys` joined. Raises `ProtocolError` if the text is truncated."""
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
