"""Specifications of images: TOML with a closed schema, and the table of versions. Only reads files."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import msgspec

from windlass.base.tables import tomllib
from windlass.errors import ConfigError, UsageError, nearest
from windlass.node.sys.reading import read_text
from windlass.sites.shape import line_index, line_of, misfits

_DATA = Path(__file__).parent / "data"
EXTRAS = ("mpi", "ofi", "nccl-tests", "deepspeed", "horovod")
Extra = Literal["mpi", "ofi", "nccl-tests", "deepspeed", "horovod"]


class _Table(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A TOML table that refuses unknown keys."""


class RemoveSpec(_Table, frozen=True, kw_only=True):
    """A path of the base that must be removed."""

    path: str
    because: str


class EnvironmentSpec(_Table, frozen=True, kw_only=True):
    name: str
    value: str
    because: str


class StepSpec(_Table, frozen=True, kw_only=True):
    """A step of the user, executed after all others: commands for `sh`, each of which must succeed."""

    name: str
    because: str
    run: tuple[str, ...]


class ImageSpec(_Table, frozen=True, kw_only=True):
    """What to build, and on which base."""

    name: str
    base: str
    """A name with a tag or a digest."""
    locked: str = ""
    """`NAME:TAG@DIGEST`, written by `image lock`. Only counts while `NAME:TAG` is the base."""
    title: str = ""
    gpu: Literal["", "nvidia", "amd"] = ""
    gpu_home: str = ""
    fabric: Literal["", "slingshot", "infiniband"] = ""
    framework: Literal["", "pytorch", "tensorflow"] = ""
    prefix: str = "/container/hpc"
    packages: tuple[str, ...] = ()
    """Additional Debian packages for the image."""
    with_: tuple[Extra, ...] = msgspec.field(default=(), name="with")
    versions: dict[str, str] = {}
    remove: tuple[RemoveSpec, ...] = ()
    environment: tuple[EnvironmentSpec, ...] = ()
    steps: tuple[StepSpec, ...] = ()
    built: str = ""
    """The parts that the windlass project did not build."""
    source: str = ""


class SourceArchive(_Table, frozen=True, kw_only=True):
    """A release as one file, pinned by its digest."""

    url: str
    sha256: str


class Component(_Table, frozen=True, kw_only=True):
    """Where a component comes from."""

    version: str
    url: str
    commits: dict[str, str] = {}
    """Maps a version to the commit that pins it."""
    archives: dict[str, SourceArchive] = {}
    """Maps a version to an archive that differs from `url`."""


class KnownCombination(_Table, frozen=True, kw_only=True):
    """Versions that are known to run together. `*` matches any version."""

    who: str
    base: str
    libcxi: str
    libfabric: str
    plugin: str
    mpi: str
    source: str


class Versions(_Table, frozen=True, kw_only=True):
    components: dict[str, Component]
    known: tuple[KnownCombination, ...]


def spec_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (_DATA / "specs").glob("*.toml")))


def load_spec(name: str) -> ImageSpec:
    """Load a spec by its name, or from the user's file.

    Raises `UsageError` for an unknown name. Raises `ConfigError` with the line for an invalid file.
    """
    path = spec_path(name)
    return parse_spec(spec_text(path), str(path))


def spec_path(name: str) -> Path:
    """Return the file of a spec: one of windlass by its name, or the user's. Raises `UsageError` if unknown."""
    if name in spec_names():
        return _DATA / "specs" / f"{name}.toml"
    if name.endswith(".toml") or "/" in name:
        return Path(name).expanduser()
    close = nearest(name, spec_names())
    hint = f"did you mean {close}? " if close else ""
    raise UsageError(
        f"there is no image specification {name!r}",
        hint=f"{hint}known: {', '.join(spec_names())}; or your own file, NAME.toml",
    )


def parse_spec(text: str, file: str) -> ImageSpec:
    """Parse a spec. Raises a `ConfigError` that names file, line and key."""
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{file}: not TOML: {error}", hint="see `windlass image plan debian` for an example"
        ) from error
    lines = line_index(text)
    for misfit in misfits(data, ImageSpec):
        where = ".".join(str(part) for part in misfit.path)
        at = line_of(lines, misfit.path)
        raise ConfigError(
            f"{file}, line {at}: {where + ': ' if where else ''}{misfit.message}", hint=misfit.hint or None
        )
    spec = msgspec.convert(data, ImageSpec)
    _refuse_strange(spec, file, lambda *key: line_of(lines, key))
    return spec


def _refuse_strange(spec: ImageSpec, file: str, line: Callable[..., int]) -> None:
    """Refuse values that would break the lines of a recipe or change their meaning."""
    for key, value in (("base", spec.base), ("prefix", spec.prefix), ("name", spec.name)):
        if not value or any(char.isspace() or char in "\"'$`\\;&|<>" for char in value):
            raise ConfigError(f"{file}, line {line(key)}: {key}: {value!r} cannot be", hint="no blanks, quotes or $")
    if not spec.prefix.startswith("/"):
        raise ConfigError(
            f"{file}, line {line('prefix')}: prefix: {spec.prefix} is not an absolute path", hint="begin it with /"
        )
    unknown = [name for name in spec.versions if name not in load_versions().components]
    if unknown:
        close = nearest(unknown[0], load_versions().components)
        raise ConfigError(
            f"{file}, line {line('versions', unknown[0])}: versions: unknown component {unknown[0]!r}",
            hint=f"did you mean {close!r}?" if close else f"known: {', '.join(load_versions().components)}",
        )
    for step in spec.steps:
        if any("\n" in command for command in step.run):
            raise ConfigError(
                f"{file}, line {line('steps')}: step {step.name!r}: a command of several lines",
                hint="join them by && or give several commands",
            )


def spec_text(path: Path) -> str:
    """Read the text of a spec. Raises `UsageError` if that is impossible."""
    try:
        return read_text(path, follow=True)
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(
            f"{path}: cannot be read: {said}", hint=f"specs of windlass: {', '.join(spec_names())}"
        ) from error


def locked_digest(spec: ImageSpec) -> str:
    """Return the digest that pins the base, or an empty text. A digest of another base does not count."""
    base, _, digest = spec.locked.partition("@")
    return digest if base == spec.base and re.fullmatch(r"sha256:[0-9a-f]{64}", digest) else ""


def in_registry(base: str) -> bool:
    """Return whether a registry can be asked for this base, which is no local image and no file."""
    return not base.startswith(("localhost/", "/", "oci-archive:", "docker-archive:"))


def load_versions() -> Versions:
    """Return the table of versions."""
    return msgspec.convert(tomllib.loads(spec_text(_DATA / "versions.toml")), Versions)


def known_combination(versions: Versions, chosen: Mapping[str, str], base: str) -> KnownCombination | None:
    """Return the row that contains these versions.

    `chosen` has libcxi, libfabric, plugin and mpi. A value is empty if the component is not built.
    """
    for row in versions.known:
        fits = fnmatchcase(base, row.base) and all(
            not chosen.get(key) or fnmatchcase(chosen[key], getattr(row, key))
            for key in ("libcxi", "libfabric", "plugin", "mpi")
        )
        if fits:
            return row
    return None
