"""JSON of plans and records. Words that are not UTF-8 (a file name, an argument, a line of a rank) survive it.

Python carries such bytes as lone surrogates, which msgspec refuses. They are written as `\\udcXX` escapes, which JSON
allows; only a text that has some pays for the slower way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from windlass.errors import ConfigError
from windlass.node.sys.reading import MAX_BYTES, UnreadableError, loads, read_bytes

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


def read_json(
    path: Path, kind: type[T], *, limit: int = MAX_BYTES, within: Path | None = None, follow: bool = False, hint: str
) -> T:
    """The value in a file of at most `limit` bytes that another user may have written; see `reading.plain_descriptor`.

    Raises `FileNotFoundError` where there is none, and a `ConfigError` with this hint where it cannot be used.
    """
    try:
        return from_json(read_bytes(path, limit, within=within, follow=follow), kind)
    except FileNotFoundError:
        raise
    except UnreadableError as error:
        raise ConfigError(str(error), hint=hint) from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", hint=hint) from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: {error}", hint=hint) from error
