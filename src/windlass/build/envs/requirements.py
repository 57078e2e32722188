"""Requirements of a package in its metadata (PEP 508), and whether they are met. Pure.

Only name, versions and marker are read. A line that cannot be parsed counts as met, because users ignore a check with
false alarms.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_LINE = re.compile(
    r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*\(?([^;)@]*)\)?\s*(@[^;]*)?(?:;(.*))?\Z", re.DOTALL
)
_SPECIFIER = re.compile(r"\s*(===|==|~=|!=|<=|>=|<|>)\s*([^\s,]+)\s*\Z")
_OPERATORS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn)
_SIGNS = dict(zip(_OPERATORS, ("==", "!=", "<", "<=", ">", ">=", "in", "not in"), strict=True))
_VERSIONS = {"python_version", "python_full_version", "implementation_version"}
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

    One that cannot be parsed, or has an unknown variable, does not: its requirement may be for other systems. Markers
    are Python expressions, except for the comparisons `~=` and `===`, which hardly any package uses.
    """
    if not text.strip():
        return True
    try:
        return _value(ast.parse(text.strip(), mode="eval").body, marker)
    except (SyntaxError, ValueError, KeyError, RecursionError, MemoryError):
        return False


def _value(node: ast.expr, marker: Mapping[str, str]) -> bool:
    if isinstance(node, ast.BoolOp):
        values = [_value(each, marker) for each in node.values]
        return all(values) if isinstance(node.op, ast.And) else any(values)
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        raise ValueError("not a marker")
    names = [each.id if isinstance(each, ast.Name) else "" for each in (node.left, node.comparators[0])]
    left, right = (_text(each, marker) for each in (node.left, node.comparators[0]))
    sign = _SIGNS[type(node.ops[0])]
    if sign.endswith("in"):
        return (left in right) == (sign == "in")
    if _VERSIONS.intersection(names):
        return _one(left, f"{sign}{right}")
    return {"==": left == right, "!=": left != right}.get(sign, False)


def _text(node: ast.expr, marker: Mapping[str, str]) -> str:
    return marker[node.id] if isinstance(node, ast.Name) else str(ast.literal_eval(node))
