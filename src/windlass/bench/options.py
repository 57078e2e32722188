"""The options of a case, declared once: a frozen dataclass whose fields say what the command line shows.

The command line is made from the fields, the ranks get the value as one JSON argument. What was not asked keeps the
default of the class; a value that cannot be is refused by the class itself. Runs inside ranks: stdlib only.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Mapping
from dataclasses import Field, asdict, field, fields
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


def option(default: Any, help: str | None = None, **more: Any) -> Any:
    """A field of an options class with its line of help. `more`: metavar, choices, positional (a word without a flag),
    switch (a flag that is off and has a --no- form too), hidden (not on the command line)."""
    return field(default=default, metadata={"help": help, **more})


def add_options(parser: Any, kind: type, *, without: Collection[str] = ()) -> None:
    """One argument for each field. Those in `without` belong to somebody else's part of the command line."""
    types = get_type_hints(kind)
    for one in fields(kind):
        if one.name not in without and not one.metadata.get("hidden"):
            flag = one.name if one.metadata.get("positional") else f"--{one.name.replace('_', '-')}"
            parser.add_argument(flag, **_argument(types[one.name], one))


def _argument(hint: Any, one: Field[Any]) -> dict[str, Any]:
    """What argparse is told about a field. It has no default there: what was not said keeps that of the class."""
    told = one.metadata
    kind = next(part for part in (get_args(hint) if NoneType in get_args(hint) else (hint,)) if part is not NoneType)
    named: dict[str, Any] = {"help": told.get("help")}
    if kind is bool:
        plain = one.default is False and not told.get("switch")
        named |= {"action": "store_true" if plain else argparse.BooleanOptionalAction, "default": None}
    elif "choices" in told or get_origin(kind) is Literal:
        named["choices"] = told.get("choices") or get_args(kind)
    else:
        named |= {"type": kind, "metavar": told.get("metavar") or {int: "N", float: "X"}.get(kind)}
    return named


def asked(args: argparse.Namespace, kind: type) -> dict[str, Any]:
    """What was said on the command line, by the names of the fields."""
    names = {one.name for one in fields(kind)}
    return {name: value for name, value in vars(args).items() if name in names and value is not None}


def as_values(options: Any) -> dict[str, Any]:
    """Plain values, for a record or a rank. None stays: the ranks decide."""
    return asdict(options)


def to_argument(options: Any, **more: Any) -> str:
    """The one argument of a rank program."""
    return json.dumps(as_values(options) | more, separators=(",", ":"))


def from_values(kind: type[T], values: Mapping[str, Any]) -> T:
    """The options that `as_values` wrote down; names of no field are left out."""
    types = get_type_hints(kind)
    return kind(**{name: value for name, value in values.items() if name in types})
