"""JSON of plans and records. Words that are not UTF-8 (a file name, an argument, a line of a rank) survive it.

Python carries such bytes as lone surrogates, which msgspec refuses. They are written as `\\udcXX` escapes, which JSON
allows; only a text that has some pays for the slower way.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from windlass.node.sys.reading import loads

T = TypeVar("T")
_encoder = msgspec.json.Encoder(order="deterministic")


class Versioned(msgspec.Struct, frozen=True):
    """Only the version of a text, whatever else is in it: to be looked at first."""

    version: int = 1


def to_json(value: Any) -> bytes:
    """Indented JSON that `from_json` reads back as the same value; equal values give equal bytes."""
    return (one_line_json(value, indent=1) + "\n").encode()


def one_line_json(value: Any, *, indent: int | None = None) -> str:
    """The same JSON in one line."""
    try:
        found = _encoder.encode(value)
        return (msgspec.json.format(found, indent=indent) if indent else found).decode()
    except UnicodeEncodeError:
        import json  # here: rarely needed, and not free

        return json.dumps(msgspec.to_builtins(value, order="deterministic"), indent=indent)


def from_json(data: bytes, kind: type[T]) -> T:
    """The value in `data`. Raises `msgspec.DecodeError` for a torn text and for one that is not of this kind."""
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
        json.dumps(found, ensure_ascii=False).encode("utf-8", "surrogateescape")  # bytes, and no other surrogates
        return msgspec.convert(found, kind)
    except ValueError as error:
        raise msgspec.DecodeError(str(error)) from error
