"""Whether a parsed table has the shape of the schema: all unknown keys, missing keys and wrong types at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import inspect as types

from windlass.errors import nearest
from windlass.model.site import SiteFile
from windlass.sites.lines import Path

_FILLED_IN = frozenset({"origin"})
"""Fields of the schema that the merge fills in; a file must not have them."""


class Misfit(msgspec.Struct, frozen=True, kw_only=True):
    """One place where the table is not as the schema wants it."""

    path: Path
    message: str
    hint: str = ""


def misfits(data: Mapping[str, Any], kind: type[msgspec.Struct] = SiteFile) -> Iterator[Misfit]:
    """Everything in a file's table that does not fit the schema."""
    yield from _struct((), data, _schema(kind))


@lru_cache(maxsize=4)
def _schema(kind: type[msgspec.Struct]) -> types.StructType:
    schema = types.type_info(kind)
    assert isinstance(schema, types.StructType)
    return schema


def _struct(path: Path, value: Mapping[str, Any], schema: types.StructType) -> Iterator[Misfit]:
    fields = {field.encode_name: field for field in schema.fields if field.name not in _FILLED_IN}
    for key, item in value.items():
        if key in fields:
            yield from _fit((*path, key), item, fields[key].type)
        elif key in _FILLED_IN:
            yield Misfit(path=(*path, key), message=f"{key!r} is not for files", hint="windlass fills it in")
        else:
            close = nearest(key, fields)
            hint = f"did you mean {close!r}?" if close else f"known here: {', '.join(sorted(fields))}"
            yield Misfit(path=(*path, key), message=f"unknown key {key!r}", hint=hint)
    for name, field in fields.items():
        if field.required and name not in value:
            yield Misfit(path=path, message=f"the key {name!r} is missing")


def _fit(path: Path, value: object, wanted: types.Type) -> Iterator[Misfit]:
    options = [option for option in _options(wanted) if not isinstance(option, types.NoneType)]
    for option in options:
        if isinstance(option, types.StructType) and isinstance(value, Mapping):
            yield from _struct(path, value, option)
            return
        if isinstance(option, types.VarTupleType) and isinstance(value, list):
            for index, item in enumerate(value):
                yield from _fit((*path, index), item, option.item_type)
            return
        if isinstance(option, types.DictType) and isinstance(value, Mapping):
            for key, item in value.items():
                yield from _fit((*path, key), item, option.value_type)
            return
        if _plain(value, option):
            return
    yield _wrong(path, value, options)


def _options(wanted: types.Type) -> tuple[types.Type, ...]:
    return wanted.types if isinstance(wanted, types.UnionType) else (wanted,)


def _plain(value: object, option: types.Type) -> bool:
    if isinstance(option, types.LiteralType):
        return value in option.values
    if isinstance(option, types.BoolType):
        return isinstance(value, bool)
    if isinstance(option, types.IntType):
        return isinstance(value, int) and not isinstance(value, bool)
    if isinstance(option, types.FloatType):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(option, types.StrType) and isinstance(value, str)


_WORDS: dict[type, str] = {
    types.BoolType: "true or false",
    types.IntType: "a whole number",
    types.FloatType: "a number",
    types.StrType: "a text in quotes",
    types.VarTupleType: "a list",
    types.DictType: "a table",
    types.StructType: "a table",
}


def _wrong(path: Path, value: object, options: list[types.Type]) -> Misfit:
    literals = [option for option in options if isinstance(option, types.LiteralType)]
    if literals:
        names = [str(name) for name in literals[0].values]
        close = nearest(str(value), names)
        message = f"must be one of {', '.join(names)}, not {_show(value)}"
        return Misfit(path=path, message=message, hint=f"did you mean {close!r}?" if close else "")
    wanted = " or ".join(dict.fromkeys(_WORDS.get(type(option), type(option).__name__) for option in options))
    return Misfit(path=path, message=f"must be {wanted}, not {_show(value)}")


def _show(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list):
        return "a list"
    return str(value)
