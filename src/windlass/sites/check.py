"""Check a site file and report all problems at once, each with its line, its key and a correction.

Used by `windlass sites check FILE`, by plans with a user's file, and by a test over the whole catalog.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any

import msgspec

from windlass.base.settings import NO_FOLDERS, ConfigFolders
from windlass.base.tables import tomllib
from windlass.errors import ConfigError, nearest
from windlass.model.finding import Finding
from windlass.model.site import SiteFile
from windlass.node.sys.reading import read_text
from windlass.sites.facts import fact_misfits
from windlass.sites.folders import DATA_DIR, CatalogKind, catalog_names
from windlass.sites.merge import OWN_SOURCE
from windlass.sites.shape import Lines, Misfit, Path, line_index, line_of, misfits

_AT_LINE = re.compile(r"\(at line (\d+)(?:, column \d+)?\)|\(at end of document\)")


def problem(file: str, line: int, message: str, *, key: str = "", hint: str = "") -> Finding:
    """One problem in one file, such as `my.toml:12: scheduler.kind: must be …`."""
    evidence = f"{key}: {message}" if key else message
    facts = {"file": file, "line": line, "key": key, "message": message}
    return Finding("site-file", "error", evidence, hint, subject=f"{file}:{line}", facts=facts)


Known = Callable[[CatalogKind], Sequence[str]]
"""Maps a kind of file to the names that a file may refer to."""


def check_file(path: FilePath, *, folders: ConfigFolders = NO_FOLDERS) -> tuple[Finding, ...]:
    """All problems of a file, by line. A file that cannot be read has one problem."""
    try:
        text = read_text(path, follow=True)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        return (problem(str(path), 1, f"cannot be read: {reason}"),)
    builtin = path.resolve().is_relative_to(DATA_DIR)
    return check_text(
        text,
        file=path.name if builtin else str(path),
        stem=path.stem,
        known=lambda kind: catalog_names(kind, folders),
        builtin=builtin,
    )


def check_text(text: str, *, file: str, stem: str, known: Known, builtin: bool = False) -> tuple[Finding, ...]:
    """All problems of a file's text. `builtin` files must be named like their file and must declare every source."""

    def more(data: Mapping[str, Any]) -> Iterator[Misfit]:
        yield from _names(data, stem, known, builtin=builtin)
        yield from _sources(data, builtin=builtin)
        yield from _reasons(data)
        yield from fact_misfits(data)

    return problems_of_table(text, file, SiteFile, more)


def problems_of_table(
    text: str, file: str, kind: type[msgspec.Struct], more: Callable[[Mapping[str, Any]], Iterator[Misfit]]
) -> tuple[Finding, ...]:
    """All problems of a TOML text, by line: what the schema `kind` refuses, and what `more` finds in the table."""
    if text.startswith("\ufeff"):
        message = "begins with a byte order mark, which TOML does not allow"
        return (problem(file, 1, message, hint="save it as UTF-8 without BOM"),)
    try:
        data = tomllib.loads(text)
        lines = line_index(text)
        found = [*misfits(data, kind), *more(data)]
    except RecursionError:
        return (problem(file, 1, "tables or lists are nested too deeply"),)
    except ValueError as error:  # from tomllib, or a number with thousands of digits
        return (_syntax_problem(error, text, file),)
    return _problems(file, lines, found)


def _problems(file: str, lines: Lines, found: Iterable[Misfit]) -> tuple[Finding, ...]:
    problems = {
        (misfit.path, misfit.message): problem(
            file, line_of(lines, misfit.path), misfit.message, key=path_text(misfit.path), hint=misfit.hint
        )
        for misfit in found
    }
    return tuple(sorted(problems.values(), key=lambda one: (one.facts["line"], one.facts["key"], one.facts["message"])))


def located(path: FilePath, found: Iterable[Misfit]) -> tuple[Finding, ...]:
    """Convert misfits of the site that a file defines to problems of the file, each with the nearest line."""
    return _problems(str(path), line_index(read_text(path, follow=True)), found)


def read_table(path: FilePath) -> Mapping[str, Any]:
    """Read the table of a file that was already checked."""
    try:
        table: dict[str, Any] = tomllib.loads(read_text(path, follow=True))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}", hint="it may have changed just now: try again") from error
    return table


def path_text(path: Path) -> str:
    """A path as text, such as `settings[3].when.nodes_min`. Elements are counted from 1."""
    text = ""
    for part in path:
        text += f"[{part + 1}]" if isinstance(part, int) else (f".{part}" if text else part)
    return text


def _syntax_problem(error: Exception, text: str, file: str) -> Finding:
    said = str(error)
    match = _AT_LINE.search(said)
    line = int(match.group(1)) if match and match.group(1) else text.count("\n") + 1
    message = "not TOML: " + _AT_LINE.sub("", said).strip()
    return problem(file, line, message, hint="nothing after it was checked")


def _names(data: Mapping[str, Any], stem: str, known: Known, *, builtin: bool) -> Iterator[Misfit]:
    kind = data.get("kind", "site")
    name = data.get("name")
    if builtin and name != stem:
        yield Misfit(path=("name",), message=f"must be {stem!r}, the name of the file, not {name!r}")
    if kind == "overlay" and not data.get("extends"):
        yield Misfit(
            path=("kind",), message="an overlay must name the site that it extends", hint='extends = "frontier"'
        )
    partitions = data.get("partitions")
    places: list[tuple[Path, CatalogKind, object]] = [
        (("hardware",), "hardware", data.get("hardware")),
        (("network",), "network", data.get("network")),
        (("extends",), "site", data.get("extends")),
    ]
    if isinstance(partitions, Mapping):
        for key, spec in partitions.items():
            if isinstance(spec, Mapping):
                places.append((("partitions", key, "hardware"), "hardware", spec.get("hardware")))
    for path, what, value in places:
        if isinstance(value, str) and value not in known(what):
            close = nearest(value, known(what))
            hint = f"did you mean {close!r}?" if close else f"known: {', '.join(known(what))}"
            yield Misfit(path=path, message=f"unknown {what} {value!r}", hint=hint)


def _sources(data: Mapping[str, Any], *, builtin: bool) -> Iterator[Misfit]:
    """Check that every source has a place and a date, and that every fact names an existing source."""
    sources = data.get("sources")
    declared = sources if isinstance(sources, Mapping) else {}
    for key, spec in declared.items():
        if not isinstance(spec, Mapping):
            continue
        checked = spec.get("checked")
        if isinstance(checked, datetime.date):
            hint = f'write it in quotes: checked = "{checked.isoformat()[:10]}"'
            yield Misfit(path=("sources", key, "checked"), message="must be a text in quotes", hint=hint)
        elif isinstance(checked, str) and not _is_date(checked):
            message = f"must be a date such as 2026-08-19, not {checked!r}"
            yield Misfit(path=("sources", key, "checked"), message=message)
        if isinstance(spec.get("where"), str) and not spec["where"].strip():
            yield Misfit(path=("sources", key, "where"), message="is empty: give the document that states it")
    allowed = set(declared) | (set() if builtin else {OWN_SOURCE})
    for path, value in _values(data, "source"):
        if value == "" and not builtin:
            continue
        if isinstance(value, str) and value not in allowed:
            close = nearest(value, allowed)
            hint = f"did you mean {close!r}?" if close else f"add a table [sources.{value or 'name'}]"
            yield Misfit(path=path, message=f"unknown source {value!r}", hint=hint)


def _is_date(text: str) -> bool:
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return len(text) == len("2026-08-19")


def _reasons(data: Mapping[str, Any]) -> Iterator[Misfit]:
    for key in ("because", "verdict", "topic"):
        for path, value in _values(data, key):
            if isinstance(value, str) and not value.strip() and path[0] != "modules":
                yield Misfit(path=path, message="is empty: give the reason" if key == "because" else "is empty")


_FREE_TABLES = frozenset({"variables", "links", "annotations"})
"""Tables whose keys the user chooses."""


def _values(data: object, wanted: str, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Every value under a key of this name, at any depth."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            if key == wanted and not isinstance(value, Mapping | list):
                yield (*path, key), value
            elif key not in _FREE_TABLES:
                yield from _values(value, wanted, (*path, key))
    elif isinstance(data, list):
        for index, item in enumerate(data):
            yield from _values(item, wanted, (*path, index))
