"""The page of the documents that commands print with `--json`, made from their types. Pure."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import msgspec

from json_documents import DOCUMENTS
from markdown_table import table

_HEAD = """# What `--json` prints

Made from the types in `scripts/docs/json_documents.py`. Each command prints one document. Its version grows when a key
goes away or changes its meaning. New keys may appear. A document with a key `version` holds its version there.
Programs decide on `kind` and `severity` of a [finding](#finding), because its sentences may change. A key with a
default may be missing.
"""
_REF = "#/$defs/"


def json_page() -> str:
    """The whole page: the commands, then every type with its keys."""
    schemas, types = components()
    rows = [[f"`{name}`", str(DOCUMENTS[name].version), _linked(schema, types)] for name, schema in schemas.items()]
    lines = [_HEAD, "## Commands", "", *table(["command", "version", "document"], rows), "", "## Types", ""]
    for name, schema in types.items():
        if "properties" in schema:
            keys = [[f"`{key}`", _linked(one, types), _default(one)] for key, one in schema["properties"].items()]
            lines += [f"### {name}", "", *table(["key", "type", "default"], keys), ""]
        else:
            lines += [f"### {name}", "", _linked(schema, types), ""]
    return "\n".join(lines)


def components() -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of each command, and of each type in them by its name."""
    found, types = msgspec.json.schema_components(
        [document.type for document in DOCUMENTS.values()], ref_template=_REF + "{name}"
    )
    return dict(zip(DOCUMENTS, found, strict=True)), dict(sorted(types.items()))


def type_text(schema: Any) -> str:
    """A type as people write it: `list of Finding`, `string or null`."""
    if not isinstance(schema, dict) or not schema.keys() - {"default", "title", "description"}:
        return "any"
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix(_REF)
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(type_text(one) for one in schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    kind = str(schema.get("type", "any"))
    if kind == "array":
        inner = schema.get("items") or {"anyOf": schema.get("prefixItems", [{}])}
        return f"list of {type_text(inner)}"
    if kind == "object":
        return f"map to {type_text(schema.get('additionalProperties', {}))}"
    return kind


def _linked(schema: Any, types: Container[str]) -> str:
    words = type_text(schema).split(" ")
    return " ".join(f"[{word}](#{word.lower()})" if word in types else word for word in words)


def _default(schema: Any) -> str:
    return f"`{msgspec.json.encode(schema['default']).decode()}`" if "default" in schema else ""
