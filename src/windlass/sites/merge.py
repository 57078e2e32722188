"""Merge the scopes of a site. Later layers win key by key, and every value records its origin. Pure.

Layers are raw tables as TOML gives them, not `SiteFile` values, because a value with defaults does not show which keys
the file contained.

Rules: Tables merge by key. A list of named things (settings, directives, binds, …) is merged by name. The entries of a
later layer for a name replace all entries of earlier layers for this name. So one file may give a variable several
values under different conditions. Any other value is replaced. `drop` removes inherited things before the layer's own
are added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from windlass.model.origin import Dropped, Origin, Scope, argument_key

Table = dict[str, Any]

OWN_SOURCE = "own"
"""A source that a user's file need not declare. It means that the user decided."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One file, or one partition of a file, in one scope."""

    scope: Scope
    file: str
    data: Mapping[str, Any]
    sources: Mapping[str, Any]


@dataclass(kw_only=True, slots=True)
class Merged:
    """The merged table, the sources of all layers under unique keys, and the origin of each key."""

    data: Table = field(default_factory=dict)
    sources: Table = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    dropped: list[Dropped] = field(default_factory=list)


def _argument_name(item: Table) -> str:
    return argument_key(tuple(item["words"]))


_NAMED_LISTS: dict[str, Callable[[Table], str]] = {
    "settings": lambda item: str(item["name"]),
    "limits": _argument_name,
    "peaks": lambda item: str(item["precision"]),
    "references": lambda item: f"{item['what']} {item.get('nodes')}x{item.get('ranks_per_node')}",
    "queues": lambda item: f"{item.get('kind', 'partition')} {item['name']}",
    "modules": lambda item: " ".join(item.get("load", ())),
    "prologue": lambda item: str(item["line"]),
    "notes": lambda item: str(item["topic"]),
    "scheduler.directives": _argument_name,
    "launcher.arguments": _argument_name,
    "binding.presets": lambda item: str(item["name"]),
    "fabric.plugins": lambda item: str(item["by"]),
    "containers.arguments": _argument_name,
    "containers.binds": lambda item: str(item["source_path"]),
    "containers.settings": lambda item: str(item["name"]),
}
_WITH_ORIGIN = frozenset({"settings", "limits", "prologue"}) | {
    "scheduler.directives",
    "launcher.arguments",
    "binding.presets",
    "containers.arguments",
    "containers.binds",
    "containers.settings",
}
_NOT_MERGED = frozenset({"kind", "name", "extends", "sources", "drop", "partitions"})


def merge_layers(layers: Sequence[Layer]) -> Merged:
    """Merge all layers, lowest scope first."""
    merged = Merged()
    for layer in layers:
        _apply(merged, layer)
    return merged


def source_key(file: str, key: str) -> str:
    """The key of a file's source in the merged table, unique over all files: `aurora/oneccl`."""
    return f"{file}/{key}"


def origin_for(layer: Layer, key: str | None) -> Origin:
    """The origin of an entry in this layer that names this source."""
    spec = layer.sources.get(key) if key else None
    if spec is None:
        who = "the centre's choice" if layer.scope == "centre" else "your own choice"
        return Origin(scope=layer.scope, file=layer.file, where=who if key == OWN_SOURCE else "")
    return Origin(
        scope=layer.scope,
        file=layer.file,
        where=spec["where"],
        checked=spec["checked"],
        grade=spec.get("grade", "site"),
    )


def _apply(merged: Merged, layer: Layer) -> None:
    for key, spec in layer.sources.items():
        merged.sources[source_key(layer.file, key)] = dict(spec)
    _drop(merged, layer)
    _merge_table(merged, merged.data, "", layer.data, layer)


def _merge_table(merged: Merged, target: Table, path: str, data: Mapping[str, Any], layer: Layer) -> None:
    origin = origin_for(layer, data.get("source") or layer.data.get("source"))
    for key, value in data.items():
        where = f"{path}.{key}" if path else key
        if not path and key in _NOT_MERGED:
            continue
        if where == "containers":
            _merge_containers(merged, target, value, layer)
        elif where in _NAMED_LISTS:
            _merge_named(merged, target, where, value, layer)
        elif isinstance(value, Mapping):
            if value.get("source"):
                merged.origins[where] = origin_for(layer, value["source"])
            _merge_table(merged, target.setdefault(key, {}), where, value, layer)
        elif key == "source":
            target[key] = source_key(layer.file, value)
        else:
            target[key] = value
            merged.origins[where] = origin


def _merge_named(
    merged: Merged, target: Table, where: str, items: Sequence[Table], layer: Layer, prefix: str = ""
) -> None:
    """Merge a list of named things.

    `where` names the list. `prefix` is the path under which the origins are stored, if it differs (containers).
    """
    key, name_of = where.rpartition(".")[2], _NAMED_LISTS[where]
    names = {name_of(item) for item in items}
    kept = [item for item in target.get(key, ()) if name_of(item) not in names]
    own = [_with_origin(item, where, layer) for item in items]
    target[key] = kept + own
    for item in items:
        merged.origins[f"{prefix or where}.{name_of(item)}"] = origin_for(layer, item.get("source"))


def _with_origin(item: Table, where: str, layer: Layer) -> Table:
    copy = dict(item)
    source = copy.get("source")
    if source:
        copy["source"] = source_key(layer.file, source)
    if where in _WITH_ORIGIN:
        copy["origin"] = origin_for(layer, source)
    if "settings" in copy:  # settings of a preset
        copy["settings"] = [_with_origin(setting, "settings", layer) for setting in copy["settings"]]
    return copy


def _merge_containers(merged: Merged, target: Table, items: Sequence[Table], layer: Layer) -> None:
    """Merge containers: tables that are identified by their runtime and their images."""
    known: list[Table] = target.setdefault("containers", [])
    for item in items:
        runtime = item["runtime"]
        mine = next((entry for entry in known if _container_name(entry) == _container_name(item)), None)
        if mine is None:
            mine = {"runtime": runtime}
            known.append(mine)
        if item.get("default"):
            for entry in known:
                entry.pop("default", None)
        origin = origin_for(layer, item.get("source") or layer.data.get("source"))
        for key, value in item.items():
            where = f"containers.{key}"
            here = f"containers.{runtime}.{key}"
            if where in _NAMED_LISTS:
                _merge_named(merged, mine, where, value, layer, prefix=here)
            elif isinstance(value, Mapping):
                mine[key] = {**mine.get(key, {}), **value}
                merged.origins[here] = origin
            else:
                mine[key] = source_key(layer.file, value) if key == "source" else value
                merged.origins[here] = origin


def _container_name(item: Table) -> tuple[str, ...]:
    return (item["runtime"], *item.get("images", ()))


def _drop(merged: Merged, layer: Layer) -> None:
    """Remove inherited variables (`NCCL_*`), options (`--network`, `-l place`) and binds (`/opt/cray`)."""
    for pattern in layer.data.get("drop", ()):
        lists: tuple[str, ...]
        if pattern.startswith("-"):
            lists = ("limits", "scheduler.directives", "launcher.arguments", "containers.arguments")
        elif pattern.startswith("/"):
            lists = ("containers.binds",)
        else:
            lists = ("settings", "containers.settings")
        for where in lists:
            key, name_of = where.rpartition(".")[2], _NAMED_LISTS[where]
            table, _, key = where.rpartition(".")
            for holder in _holders(merged.data, table):
                items = holder.get(key, ())
                gone = [item for item in items if fnmatchcase(name_of(item), pattern)]
                holder[key] = [item for item in items if item not in gone]
                merged.dropped += [_dropped(name_of(item), item, layer) for item in gone]


def _dropped(name: str, item: Table, layer: Layer) -> Dropped:
    value = item.get("value")
    text = f"{name}={value}" if value is not None else " ".join(item.get("words", (name,)))
    return Dropped(name=name, text=text, because=item["because"], origin=item["origin"], by=layer.file)


def _holders(data: Table, table: str) -> list[Table]:
    if not table:
        return [data]
    if table == "containers":
        return list(data.get("containers", ()))
    return [data[table]] if table in data else []
