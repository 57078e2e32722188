"""The options of a case, declared once: a frozen dataclass whose fields define the command line.

The command line is made from the fields. The ranks get the values as one JSON argument. An option that was not given
keeps the default of the class. The class itself rejects invalid values. Runs inside ranks: standard library only.
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
    """Declare a field of an options class with its help line.

    `more`: metavar, choices, positional (an argument without a flag), switch (a flag that is off and also has a --no-
    form), hidden (not on the command line).
    """
    return field(default=default, metadata={"help": help, **more})


def add_options(parser: Any, kind: type, *, without: Collection[str] = ()) -> None:
    """Add one argument for each field. Fields in `without` belong to another part of the command line."""
    types = get_type_hints(kind)
    for one in fields(kind):
        if one.name not in without and not one.metadata.get("hidden"):
            flag = one.name if one.metadata.get("positional") else f"--{one.name.replace('_', '-')}"
            parser.add_argument(flag, **_argument(types[one.name], one))


def _argument(hint: Any, one: Field[Any]) -> dict[str, Any]:
    """Return the argparse arguments of a field.

    They contain no default, because an option that was not given keeps the default of the class.
    """
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
    """Return the values from the command line, by field name."""
    names = {one.name for one in fields(kind)}
    return {name: value for name, value in vars(args).items() if name in names and value is not None}


def as_values(options: Any) -> dict[str, Any]:
    """Return plain values, for a record or a rank. None is kept, because the ranks decide about it."""
    return asdict(options)


def to_argument(options: Any, **more: Any) -> str:
    """Return the one argument of a rank program."""
    return json.dumps(as_values(options) | more, separators=(",", ":"))


def from_values(kind: type[T], values: Mapping[str, Any]) -> T:
    """Return the options from values of `as_values`. Names that are not fields are ignored."""
    types = get_type_hints(kind)
    return kind(**{name: value for name, value in values.items() if name in types})
