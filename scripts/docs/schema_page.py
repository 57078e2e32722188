"""The page of the site schema, made from the classes that check a site file: keys, types, defaults, meaning. Pure."""

from __future__ import annotations

import ast
import inspect
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import msgspec

from markdown_links import heading_slug
from markdown_table import table
from windlass.model.condition import When
from windlass.model.job import JobTable
from windlass.model.site import SiteFile

_HEAD = """# Site files: the schema

Made from the classes that check a site file. [Writing a site file](../sites/writing-a-site-file.md) explains it by
example; `windlass sites check FILE` finds what does not fit, by line. A key that is not required may be left out; an
unknown key is an error that names the nearest one. `source` is the key of an entry in `[sources]`: where it was read.
"""
_JOB_HEAD = """# Job files: the schema

Made from the classes that check a job file. [Several programs in one job](../howto/several-programs.md) explains it by
example. An unknown key is an error that names its line and the nearest key.

Arguments and values of `env` may contain the placeholders of [any run](commands.md), and these of every component:
`{NAME.addr}` is the address of its first node, `{NAME.port}` its port, and `{NAME.hosts}` are the addresses of all
its nodes with commas in between.
"""
_NOT_FOR_FILES = frozenset({"origin"})


def schema_page() -> str:
    """The whole page of site files."""
    return _page(_HEAD, SiteFile)


def job_page() -> str:
    """The whole page of job files."""
    return _page(_JOB_HEAD, JobTable)


def _page(head: str, kind: type) -> str:
    lines = [head]
    names = {owner: _name(owner, places) for owner, places in _tables(kind).items()}
    for owner, name in names.items():
        lines += [f"## {name}", "", *_about(owner), *_keys(owner, names), ""]
    return "\n".join(lines)


def _tables(kind: type) -> dict[type, list[str]]:
    """Every table of a file with the places where it may stand, those near the top of the file first."""
    found: dict[type, list[str]] = {kind: []}
    waiting: list[tuple[type, str]] = [(kind, "")]
    while waiting:
        owner, path = waiting.pop(0)
        for field in msgspec.structs.fields(owner):
            for inner, shape in _structs(field.type):
                if field.name in _NOT_FOR_FILES:
                    continue
                dotted = f"{path}.{field.encode_name}".lstrip(".")
                if inner not in found:
                    waiting.append((inner, f"{dotted}.NAME" if shape == "map" else dotted))
                place = {"list": f"[[{dotted}]]", "map": f"[{dotted}.NAME]", "one": f"[{dotted}]"}[shape]
                found.setdefault(inner, []).append(place)
    return found


def _name(owner: type, places: list[str]) -> str:
    if owner is When:
        return "`when = { … }`"
    return ", ".join(f"`{place}`" for place in places) or "The top of the file"


def _structs(kind: Any) -> Iterator[tuple[type, str]]:
    """Tables inside a type, and whether it holds one, a list or a map of them."""
    shape = {tuple: "list", dict: "map"}.get(get_origin(kind), "one")
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind, "one"
    for inner in get_args(kind):
        for found, how in _structs(inner):
            yield found, shape if how == "one" else how


def _about(owner: type) -> list[str]:
    return [*inspect.cleandoc(owner.__doc__).splitlines(), ""] if owner.__dict__.get("__doc__") else []


def _keys(owner: type, places: dict[type, str]) -> list[str]:
    said = _field_docs(owner)
    rows = []
    for field in msgspec.structs.fields(owner):
        if field.name not in _NOT_FOR_FILES:
            rows.append(
                (f"`{field.encode_name}`", _type_text(field.type, places), _default(field), said.get(field.name, ""))
            )
    return table(("key", "value", "default", "meaning"), rows)


def _field_docs(owner: type) -> dict[str, str]:
    """The text below each field, which Python itself does not keep."""
    body = ast.parse(inspect.getsource(owner)).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(after, ast.Expr):
            text = ast.literal_eval(after.value) if isinstance(after.value, ast.Constant) else ""
            found[field.target.id] = text
    return found


def _type_text(kind: Any, places: dict[type, str]) -> str:
    """A type in words; a table is a link to its own heading."""
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join(_type_text(inner, places) for inner in get_args(kind) if inner is not type(None))
    if get_origin(kind) is tuple:
        inner = _type_text(get_args(kind)[0], places)
        return f"list of {inner}"
    if get_origin(kind) is dict:
        inner = _type_text(get_args(kind)[1], places)
        return f"a {inner} for each name"
    if kind in places:
        shown = "condition" if kind is When else "table"
        return f"[{shown}](#{heading_slug(places[kind])})"
    return {str: "text", int: "whole number", float: "number", bool: "true or false"}[kind]


def _default(field: Any) -> str:
    if field.required:
        return "required"
    if field.default is msgspec.NODEFAULT or field.default in (None, "", ()):
        return ""
    if isinstance(field.default, msgspec.Struct):
        return ""
    return f"`{str(field.default).lower() if isinstance(field.default, bool) else field.default}`"
