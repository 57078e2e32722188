"""Requirements of a package in its metadata (PEP 508), and whether they are met. Pure.

Only name, versions and marker are read. A line that cannot be parsed counts as met, because users ignore a check with
false alarms.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_LINE = re.compile(
    r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*\(?([^;)@]*)\)?\s*(@[^;]*)?(?:;(.*))?\Z", re.DOTALL
)
_SPECIFIER = re.compile(r"\s*(===|==|~=|!=|<=|>=|<|>)\s*([^\s,]+)\s*\Z")
_TOKEN = re.compile(
    r"\s*(\(|\)|\band\b|\bor\b|\bnot\s+in\b|\bin\b|===|==|~=|!=|<=|>=|<|>|'[^']*'|\"[^\"]*\"|[A-Za-z_]+)"
)
_RELEASE = re.compile(r"v?(?:\d+!)?(\d+(?:\.\d+)*)(?:[._-]?(a|b|rc|alpha|beta|c|pre|preview)[._-]?(\d*))?(.*)\Z", re.I)


class Unmet(NamedTuple):
    """A requirement that is not met. `found` is the installed version, or empty if it is not installed."""

    package: str
    needs: str
    found: str


def normal_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def unmet(
    packages: Mapping[str, Iterable[str]], versions: Mapping[str, str], marker: Mapping[str, str]
) -> tuple[Unmet, ...]:
    """Return the requirements that `versions` (by normal names) does not meet.

    `packages` has the lines of each package. `marker` has the values of the environment's variables (`python_version`,
    …).
    """
    found = []
    for package, lines in packages.items():
        for line in lines:
            need = _LINE.match(line)
            if need is None or not _holds(need[4] or "", marker):
                continue
            name, wanted = need[1], (need[2] or "").strip()
            there = versions.get(normal_name(name))
            if there is None:
                found.append(Unmet(package, f"{name} {wanted}".strip(), ""))
            elif not fits(there, wanted):
                found.append(Unmet(package, f"{name} {wanted}", there))
    return tuple(found)


def fits(version: str, wanted: str) -> bool:
    """Return whether a version meets specifiers such as `>=2.0,<3`. A specifier that cannot be parsed is met."""
    return all(_one(version, part) for part in wanted.split(",") if part.strip())


def _one(version: str, text: str) -> bool:
    found = _SPECIFIER.match(text)
    if found is None:
        return True
    sign, wanted = found[1], found[2]
    if sign == "===":
        return version == wanted
    if wanted.endswith(".*"):
        prefix = _key(wanted[:-2])[0]
        same = _padded(_key(version)[0], len(prefix))[: len(prefix)] == prefix
        return same if sign == "==" else not same if sign == "!=" else True
    mine, theirs = _key(version), _key(wanted)
    width = max(len(mine[0]), len(theirs[0]))
    left, right = (_padded(mine[0], width), mine[1]), (_padded(theirs[0], width), theirs[1])
    if sign == "~=":
        return left >= right and mine[0][: len(theirs[0]) - 1] == theirs[0][:-1]
    return {
        "==": left == right,
        "!=": left != right,
        "<": left < right,
        ">": left > right,
        "<=": left <= right,
        ">=": left >= right,
    }[sign]


def _key(version: str) -> tuple[tuple[int, ...], tuple[int, str, int]]:
    """Return release and pre-release. A local part (`+cu128`) and post-releases are ignored."""
    found = _RELEASE.match(version.partition("+")[0].strip())
    if found is None:
        return (), (1, "", 0)
    release = tuple(int(part) for part in found[1].split("."))
    early = (found[2] or "").lower()[:1]
    if not early and ".dev" in (found[4] or ""):
        return release, (-1, "", 0)
    return release, (0, early, int(found[3] or 0)) if early else (1, "", 0)


def _padded(release: tuple[int, ...], width: int) -> tuple[int, ...]:
    return release + (0,) * (width - len(release))


def _holds(text: str, marker: Mapping[str, str]) -> bool:
    """Return whether a marker holds.

    One that cannot be parsed, or has an unknown variable, does not: its requirement may be for other systems.
    """
    if not text.strip():
        return True
    tokens = _TOKEN.findall(text)
    if "".join(tokens).replace(" ", "") != re.sub(r"\s+", "", text):
        return False
    try:
        value, rest = _either([re.sub(r"\s+", " ", token) for token in tokens], marker)
    except (IndexError, KeyError, RecursionError):
        return False
    return value and not rest


def _either(tokens: list[str], marker: Mapping[str, str]) -> tuple[bool, list[str]]:
    value, tokens = _both(tokens, marker)
    while tokens and tokens[0] == "or":
        other, tokens = _both(tokens[1:], marker)
        value = value or other
    return value, tokens


def _both(tokens: list[str], marker: Mapping[str, str]) -> tuple[bool, list[str]]:
    value, tokens = _term(tokens, marker)
    while tokens and tokens[0] == "and":
        other, tokens = _term(tokens[1:], marker)
        value = value and other
    return value, tokens


def _term(tokens: list[str], marker: Mapping[str, str]) -> tuple[bool, list[str]]:
    if tokens[0] == "(":
        value, tokens = _either(tokens[1:], marker)
        return value, tokens[1:]
    left, sign, right, rest = tokens[0], tokens[1], tokens[2], tokens[3:]
    versions = bool({"python_version", "python_full_version", "implementation_version"} & {left, right})
    return _compare(_value(left, marker), sign, _value(right, marker), versions), rest


def _value(token: str, marker: Mapping[str, str]) -> str:
    return token[1:-1] if token[:1] in "'\"" else marker[token]


def _compare(left: str, sign: str, right: str, versions: bool) -> bool:
    if sign == "in":
        return left in right
    if sign == "not in":
        return left not in right
    if versions:
        return _one(left, f"{sign}{right}")
    return {"==": left == right, "!=": left != right}.get(sign, False)
