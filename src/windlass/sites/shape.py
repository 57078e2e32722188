"""Check a parsed table against the schema: all unknown keys, missing keys and wrong types at once.

Also finds the line of a key in a TOML text, because the parser of the standard library does not report it. This works
only for text that was already parsed, so the code assumes that the text is well formed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import inspect as types

from windlass.errors import nearest
from windlass.model.site import SiteFile

Path = tuple[str | int, ...]
Lines = dict[Path, int]

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def line_index(text: str) -> Lines:
    """The line of every table, key and array element, by its path (`("settings", 3, "value")`)."""
    return _Scanner(text).run()


def line_of(lines: Lines, path: Path) -> int:
    """The line of `path`, or of the nearest enclosing element that has one. 1 for the file itself."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


class _Scanner:
    """Scans the text once and stores positions, not values."""

    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n") + "\n"
        self.at = 0
        self.line = 1
        self.lines: Lines = {}
        self.arrays: dict[Path, int] = {}

    def run(self) -> Lines:
        table: Path = ()
        while self._skip_blank(newlines=True):
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)
        return self.lines

    def _advance(self, to: int) -> None:
        self.line += self.text.count("\n", self.at, to)
        self.at = to

    def _skip_blank(self, *, newlines: bool) -> bool:
        """Skip spaces, comments and, if asked, line ends. False at the end of the text."""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "#":
                self._advance(self.text.index("\n", self.at))
            elif char in " \t" or (newlines and char == "\n"):
                self._advance(self.at + 1)
            else:
                return True
        return False

    def _header(self) -> Path:
        double = self.text.startswith("[[", self.at)
        self._advance(self.at + (2 if double else 1))
        keys = self._keys()
        path: Path = ()
        for position, key in enumerate(keys):
            path = (*path, key)
            if position == len(keys) - 1 and double:
                self.arrays[path] = self.arrays.get(path, -1) + 1
            if path in self.arrays:
                path = (*path, self.arrays[path])
        self.lines.setdefault(path, self.line)
        self._advance(self.text.index("]", self.at) + (2 if double else 1))
        return path

    def _keys(self) -> list[str]:
        """Read a dotted key and move behind it."""
        keys: list[str] = []
        while True:
            self._skip_blank(newlines=False)
            char = self.text[self.at]
            if char in "'\"":
                end = self._string_end()
                keys.append(self.text[self.at + 1 : end - 1])
            else:
                match = _BARE.match(self.text, self.at)
                assert match is not None, "the text parsed before"
                keys.append(match.group())
                end = match.end()
            self._advance(end)
            self._skip_blank(newlines=False)
            if self.text[self.at] != ".":
                return keys
            self._advance(self.at + 1)

    def _pair(self, table: Path) -> None:
        line = self.line
        path = (*table, *self._keys())
        self.lines.setdefault(path, line)
        self._advance(self.text.index("=", self.at) + 1)
        self._value(path)

    def _value(self, path: Path) -> None:
        self._skip_blank(newlines=True)
        self.lines.setdefault(path, self.line)
        char = self.text[self.at]
        if char in "'\"":
            self._advance(self._string_end())
        elif char == "[":
            self._array(path)
        elif char == "{":
            self._inline(path)
        else:
            match = re.compile(r"[^,\]}#\n]*").match(self.text, self.at)
            assert match is not None
            self._advance(match.end())

    def _array(self, path: Path) -> None:
        self._advance(self.at + 1)
        index = 0
        while self._skip_blank(newlines=True) and self.text[self.at] != "]":
            self._value((*path, index))
            index += 1
            self._skip_blank(newlines=True)
            if self.text[self.at] == ",":
                self._advance(self.at + 1)
        self._advance(self.at + 1)

    def _inline(self, path: Path) -> None:
        self._advance(self.at + 1)
        while self._skip_blank(newlines=True) and self.text[self.at] != "}":
            self._pair(path)
            self._skip_blank(newlines=True)
            if self.text[self.at] == ",":
                self._advance(self.at + 1)
        self._advance(self.at + 1)

    def _string_end(self) -> int:
        """Position after the string that starts here."""
        quote = self.text[self.at]
        triple = quote * 3
        if self.text.startswith(triple, self.at):
            end = self.at + 3
            while not self.text.startswith(triple, end):
                end += 2 if self.text[end] == "\\" and quote == '"' else 1
            end += 3
            while self.text[end] == quote:  # up to two quotes may precede the closing ones
                end += 1
            return end
        end = self.at + 1
        while self.text[end] != quote:
            end += 2 if self.text[end] == "\\" and quote == '"' else 1
        return end + 1


_FILLED_IN = frozenset({"origin"})
"""Fields of the schema that the merge fills in. A file must not contain them."""


class Misfit(msgspec.Struct, frozen=True, kw_only=True):
    """One place where the table does not match the schema."""

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
            yield Misfit(path=(*path, key), message=f"{key!r} is not for files", hint="windlass sets it")
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
