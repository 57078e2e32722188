"""The catalog: names of sites, and one site after the merge of its scopes.

Scopes, lowest first: builtin < hardware < network < site < partition < centre < user file. The defaults of the schema
are the builtin scope. Only the files of one site are read, because every command does this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from windlass.base.settings import NO_FOLDERS, ConfigFolders
from windlass.errors import ConfigError, unknown_name
from windlass.model.origin import BUILTIN, Origin, Scope
from windlass.model.site import Site, SiteFile
from windlass.sites.folders import catalog_names, catalog_path, own_paths, read_builtin
from windlass.sites.merge import Layer, Merged, merge_layers


def site_names(folders: ConfigFolders = NO_FOLDERS) -> tuple[str, ...]:
    """Names of all sites, including those of the centre and of the user."""
    return catalog_names("site", folders)


def site_of_file(path: Path, folders: ConfigFolders = NO_FOLDERS) -> str:
    """The site of a file given with --site: its own name, or the name that it extends."""
    data = _read_own(path, folders)
    name = data.get("name") or data.get("extends")
    if not name:
        raise ConfigError(f"{path}: has neither `name` nor `extends`", hint='add a line such as extends = "frontier"')
    return str(name)


def load_site(
    name: str,
    *,
    partition: str | None = None,
    folders: ConfigFolders = NO_FOLDERS,
    user_files: Sequence[Path] = (),
) -> Site:
    """The site of this name, merged from its files, `partition`, the centre's files and the user's files.

    A file `sites/<name>.toml` in one of `folders` overlays the catalog's file or is a separate site. `user_files` come
    last and count if they are about this site. Raises `UsageError` for an unknown name, `ConfigError` for a bad file.
    """
    own = tuple((str(path), _read_own(path, folders)) for path in user_files)
    chain = _chain(name, folders, own, ())
    merged_partition = partition or _last(chain, "scheduler", "default_partition")
    layers = [*_base_layers(chain, merged_partition, folders), *_with_partitions(chain, merged_partition)]
    return _site(name, merge_layers(layers), chain)


def sites_of_file(path: Path, folders: ConfigFolders = NO_FOLDERS) -> tuple[Site, ...]:
    """The sites that a file defines: without a partition, and with each partition that the file names.

    A file of hardware or of a network is loaded alone. Raises `ConfigError` for a bad file.
    """
    data = _read_own(path, folders)
    if data.get("kind", "site") in ("hardware", "network"):
        layer = _layer("user", str(path), data)
        return (_site(str(data.get("name", "")), merge_layers([layer]), [layer]),)
    in_folder = own_paths("site", path.stem, folders).values()
    name = path.stem if any(each.samefile(path) for each in in_folder) else site_of_file(path, folders)
    partitions = (None, *data.get("partitions", {}))
    return tuple(load_site(name, partition=p, folders=folders, user_files=(path,)) for p in partitions)


def _site(name: str, merged: Merged, chain: Sequence[Layer]) -> Site:
    partitions: dict[str, Any] = {}
    for layer in chain:
        for key, spec in layer.data.get("partitions", {}).items():
            partitions[key] = {**partitions.get(key, {}), **spec}
    data = {**merged.data, "kind": "site", "name": name, "sources": merged.sources, "partitions": partitions}
    try:
        file = msgspec.convert(data, SiteFile)
    except msgspec.ValidationError as error:
        raise ConfigError(f"site {name}: {error}", hint="`windlass sites check FILE` shows every problem") from error
    origins = {**_defaults(file, merged.data), **merged.origins}
    return Site(name=name, file=file, origins=origins, dropped=tuple(merged.dropped))


_TABLES = ("scheduler", "launcher", "rendezvous", "binding", "devices", "node", "storage")


def _defaults(file: SiteFile, data: Mapping[str, Any]) -> dict[str, Origin]:
    """Mark values that no file sets as windlass's own, even in a table that a file sets partly."""
    return {
        f"{table}.{field}": BUILTIN
        for table in _TABLES
        for field in getattr(file, table).__struct_fields__
        if field not in data.get(table, {})
    }


def _chain(
    name: str, folders: ConfigFolders, own: Sequence[tuple[str, Mapping[str, Any]]], seen: tuple[str, ...]
) -> list[Layer]:
    """The files about a site, lowest first.

    The order is: the extended site, the catalog's file, the centre's, the user's, the given files.
    """
    if name in seen:
        raise ConfigError(
            f"sites extend each other in a circle: {' -> '.join((*seen, name))}",
            hint="remove `extends` from one of them",
        )
    found: list[Layer] = []
    builtin = catalog_path("site", name)
    if builtin:
        found.append(_layer("site", name, read_builtin(builtin)))
    for scope, path in own_paths("site", name, folders).items():
        found.append(_layer(scope, str(path), _read_own(path, folders)))
    for path_text, data in own:
        about = data.get("name") or data.get("extends") or name
        if about == name or (not seen and data.get("extends") == name):
            found.append(_layer("user", path_text, data))
    if not found:
        known = {*site_names(folders), *(str(d["name"]) for _, d in own if d.get("name"))}
        raise unknown_name("site", name, known)
    bases = [layer.data["extends"] for layer in found if layer.data.get("extends") not in (None, name)]
    base = _chain(bases[0], folders, own, (*seen, name)) if bases else []
    listed = {layer.file for layer in base}
    return base + [layer for layer in found if layer.file not in listed]


def _base_layers(chain: Sequence[Layer], partition: str | None, folders: ConfigFolders) -> Iterator[Layer]:
    """Hardware and network of the site. The highest scope that names one decides."""
    spoken = [data for layer in chain for data in (layer.data, layer.data.get("partitions", {}).get(partition, {}))]
    kinds: tuple[Literal["hardware", "network"], ...] = ("hardware", "network")
    for kind in kinds:
        names = [data[kind] for data in spoken if data.get(kind)]
        if names:
            yield _part(kind, names[-1], folders)


def _part(kind: Literal["hardware", "network"], name: str, folders: ConfigFolders) -> Layer:
    for own in reversed(own_paths(kind, name, folders).values()):
        return _layer(kind, str(own), _read_own(own, folders))
    path = catalog_path(kind, name)
    if path is None:
        raise unknown_name(kind, name, catalog_names(kind, folders))
    return _layer(kind, name, read_builtin(path))


def _with_partitions(chain: Sequence[Layer], partition: str | None) -> Iterator[Layer]:
    """Each file's layer, followed by its partition.

    The partitions of the catalog's files come after all of these files. The partition of a centre or user file comes
    directly after it.
    """
    waiting: list[Layer] = []
    for layer in chain:
        if layer.scope != "site":
            yield from waiting
            waiting = []
        yield layer
        spec = layer.data.get("partitions", {}).get(partition)
        if spec:
            waiting.append(_partition_layer(layer, spec))
    yield from waiting


def _partition_layer(layer: Layer, spec: Mapping[str, Any]) -> Layer:
    data = {key: value for key, value in spec.items() if key not in ("hardware", "directives", "note")}
    if spec.get("directives"):
        data["scheduler"] = {"directives": spec["directives"]}
    scope: Scope = "partition" if layer.scope == "site" else layer.scope
    return Layer(scope=scope, file=layer.file, data=data, sources=layer.sources)


def _layer(scope: Scope, file: str, data: Mapping[str, Any]) -> Layer:
    return Layer(scope=scope, file=file, data=data, sources=data.get("sources", {}))


def _last(chain: Sequence[Layer], table: str, key: str) -> str | None:
    values = [layer.data[table][key] for layer in chain if layer.data.get(table, {}).get(key)]
    return str(values[-1]) if values else None


def _read_own(path: Path, folders: ConfigFolders) -> Mapping[str, Any]:
    """Read and check a file of the centre or of the user. The error contains all problems."""
    from windlass.sites.check import check_file, read_table  # imported here: most runs have no such file

    problems = check_file(path, folders=folders)
    if problems:
        lines = "\n".join(f"  {problem.sentence()}" for problem in problems)
        word = "problem" if len(problems) == 1 else "problems"
        hint = "see docs/sites/writing-a-site-file.md"
        raise ConfigError(f"{path} has {len(problems)} {word}:\n{lines}", hint=hint)
    return read_table(path)
