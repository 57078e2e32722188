"""JSON of plans and records. Words that are not UTF-8 (a file name, an argument, a line of a rank) survive it.

Python carries such bytes as lone surrogates, which msgspec refuses. They are written as `\\udcXX` escapes, which JSON
allows; only a text that has some pays for the slower way.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_encoder = msgspec.json.Encoder(order="deterministic")


class Versioned(msgspec.Struct, frozen=True):
    """Only the version of a text, whatever else is in it: to be looked at first."""

    version: int = 1


def to_json(value: Any) -> bytes:
    """Indented JSON that `from_json` reads back as the same value; equal values give equal bytes."""
    try:
        return msgspec.json.format(_encoder.encode(value), indent=1) + b"\n"
    except UnicodeEncodeError:
        import json  # here: rarely needed, and not free

        return json.dumps(msgspec.to_builtins(value, order="deterministic"), indent=1).encode() + b"\n"


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
        return msgspec.convert(json.loads(data), kind)
    except (ValueError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error
