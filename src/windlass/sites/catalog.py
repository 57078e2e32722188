"""The catalog: names of sites, and one site after the merge of its scopes.

Scopes, lowest first: builtin < hardware < network < site < partition < user file. The values of the schema itself are
the builtin scope. Reads only the files that one site needs: this is on the way of every command.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from windlass.errors import ConfigError, unknown_name
from windlass.model.origin import Scope
from windlass.model.site import Site, SiteFile
from windlass.sites.merge import Layer, Merged, merge_layers

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DATA_DIR = Path(__file__).parent / "data"
_FOLDERS = {"site": "sites", "hardware": "hardware", "network": "networks"}


def catalog_names(kind: str, config_dir: Path | None = None) -> tuple[str, ...]:
    """Names of all catalog files of a kind (`site`, `hardware`, `network`), the user's own included."""
    folder = _FOLDERS[kind]
    names = {path.stem for path in (DATA_DIR / folder).glob("*.toml")}
    if config_dir is not None and (config_dir / folder).is_dir():
        names |= {path.stem for path in (config_dir / folder).glob("*.toml")}
    return tuple(sorted(names))


def site_names(config_dir: Path | None = None) -> tuple[str, ...]:
    """Names of all sites, those of the user's folder included."""
    return catalog_names("site", config_dir)


def site_of_file(path: Path) -> str:
    """The site that a file given with --site-file stands for: its own name, or the one that it extends."""
    data = _read_user(path)
    name = data.get("name") or data.get("extends")
    if not name:
        raise ConfigError(f"{path}: says neither `name` nor `extends`", hint='add a line such as extends = "frontier"')
    return str(name)


def load_site(
    name: str,
    *,
    partition: str | None = None,
    config_dir: Path | None = None,
    user_files: Sequence[Path] = (),
) -> Site:
    """The site of this name with everything that its files, `partition` and the user's files say.

    A file `<config_dir>/sites/<name>.toml` overlays the catalog's or is a site of its own; `user_files` come last and
    count where they are about this site. Raises `UsageError` for an unknown name, `ConfigError` for a bad file.
    """
    own = tuple((str(path), _read_user(path)) for path in user_files)
    chain = _chain(name, config_dir, own, ())
    merged_partition = partition or _last(chain, "scheduler", "default_partition")
    layers = [*_base_layers(chain, merged_partition, config_dir), *_with_partitions(chain, merged_partition)]
    return _site(name, merge_layers(layers), chain)


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
    return Site(name=name, file=file, origins=merged.origins)


def _chain(
    name: str, config_dir: Path | None, own: Sequence[tuple[str, Mapping[str, Any]]], seen: tuple[str, ...]
) -> list[Layer]:
    """The files about a site, lowest first: what it extends, the catalog's, the user's folder's, the given ones."""
    if name in seen:
        raise ConfigError(f"sites extend each other in a circle: {' -> '.join((*seen, name))}")
    found: list[Layer] = []
    builtin = DATA_DIR / "sites" / f"{name}.toml"
    if builtin.is_file():
        found.append(_layer("site", builtin.stem, _read_builtin(builtin)))
    if config_dir is not None and (config_dir / "sites" / f"{name}.toml").is_file():
        path = config_dir / "sites" / f"{name}.toml"
        found.append(_layer("user", str(path), _read_user(path)))
    for path_text, data in own:
        about = data.get("name") or data.get("extends") or name
        if about == name or (not seen and data.get("extends") == name):
            found.append(_layer("user", path_text, data))
    if not found:
        known = {*site_names(config_dir), *(str(d["name"]) for _, d in own if d.get("name"))}
        raise unknown_name("site", name, known)
    bases = [layer.data["extends"] for layer in found if layer.data.get("extends") not in (None, name)]
    base = _chain(bases[0], config_dir, own, (*seen, name)) if bases else []
    listed = {layer.file for layer in base}
    return base + [layer for layer in found if layer.file not in listed]


def _base_layers(chain: Sequence[Layer], partition: str | None, config_dir: Path | None) -> Iterator[Layer]:
    """Hardware and network of the site; the highest scope that names one decides which."""
    spoken = [data for layer in chain for data in (layer.data, layer.data.get("partitions", {}).get(partition, {}))]
    for kind, scope in (("hardware", "hardware"), ("network", "network")):
        names = [data[kind] for data in spoken if data.get(kind)]
        if names:
            yield _part(kind, scope, names[-1], config_dir)  # type: ignore[arg-type]


def _part(kind: str, scope: Scope, name: str, config_dir: Path | None) -> Layer:
    folder = _FOLDERS[kind]
    own = config_dir / folder / f"{name}.toml" if config_dir is not None else None
    if own is not None and own.is_file():
        return _layer(scope, str(own), _read_user(own))
    path = DATA_DIR / folder / f"{name}.toml"
    if not path.is_file():
        raise unknown_name(kind, name, catalog_names(kind, config_dir))
    return _layer(scope, name, _read_builtin(path))


def _with_partitions(chain: Sequence[Layer], partition: str | None) -> Iterator[Layer]:
    """Each file's layer; after the catalog's files their partition, after a user's file its own."""
    waiting: list[Layer] = []
    for layer in chain:
        if layer.scope == "user":
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
    scope: Scope = "user" if layer.scope == "user" else "partition"
    return Layer(scope=scope, file=layer.file, data=data, sources=layer.sources)


def _layer(scope: Scope, file: str, data: Mapping[str, Any]) -> Layer:
    return Layer(scope=scope, file=file, data=data, sources=data.get("sources", {}))


def _last(chain: Sequence[Layer], table: str, key: str) -> str | None:
    values = [layer.data[table][key] for layer in chain if layer.data.get(table, {}).get(key)]
    return str(values[-1]) if values else None


@lru_cache(maxsize=64)
def _read_builtin(path: Path) -> Mapping[str, Any]:
    """A file of the catalog itself; a test checks them all, so that loading need not."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _read_user(path: Path) -> Mapping[str, Any]:
    """A file of the user, checked; all its problems are in the error."""
    from windlass.sites.check import check_file, read_table  # here: most runs have no such file

    problems = check_file(path)
    if problems:
        lines = "\n".join(f"  {problem.text()}" for problem in problems)
        raise ConfigError(f"{path} has {len(problems)} problem(s):\n{lines}", hint="see docs/sites/writing-a-site-file.md")
    return read_table(path)
