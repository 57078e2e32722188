"""JSON of plans and records, which preserves text that is not UTF-8 (a file name, an argument, a line of a rank).

Python represents such bytes as lone surrogates, which msgspec refuses. They are written as `\\udcXX` escapes, which
JSON allows. Only text with such bytes uses this slower encoder.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from windlass.node.sys.reading import loads

T = TypeVar("T")
_encoder = msgspec.json.Encoder(order="deterministic")


class Versioned(msgspec.Struct, frozen=True):
    """Only the version of a document, to check it before the rest is decoded."""

    version: int = 1


def to_json(value: Any) -> bytes:
    """Return indented JSON that `from_json` decodes to the same value. Equal values give equal bytes."""
    return (one_line_json(value, indent=1) + "\n").encode()


def one_line_json(value: Any, *, indent: int | None = None) -> str:
    """Return the same JSON on one line."""
    try:
        found = _encoder.encode(value)
        return (msgspec.json.format(found, indent=indent) if indent else found).decode()
    except UnicodeEncodeError:
        import json  # imported here: rarely needed, and the import takes time

        return json.dumps(msgspec.to_builtins(value, order="deterministic"), indent=indent)


def from_json(data: bytes, kind: type[T]) -> T:
    """Decode `data`. Raises `msgspec.DecodeError` for truncated text and for text of another type."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError:
        raise
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error
    except msgspec.DecodeError:
        if b"\\ud" not in data:
            raise
    import json

    try:
        found = loads(data)
        # accept only surrogates that encode bytes
        json.dumps(found, ensure_ascii=False).encode("utf-8", "surrogateescape")
        return msgspec.convert(found, kind)
    except ValueError as error:
        raise msgspec.DecodeError(str(error)) from error
