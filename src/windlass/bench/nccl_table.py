"""Parse the text of nccl-tests and rccl-tests: tables, their rows, and the facts in the lines around them.

Columns differ between versions (`error` or `#wrong`, with or without `root`, `copybw`, percentiles, a time stamp) and
with options (in-place only), so they are taken from the heading of each table. A line that does not fit its heading, or
whose bandwidth does not follow from its size and time, is an error with its number. Only the last row of all may be cut
off, because the program may have been stopped. Such a row is omitted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from windlass.errors import ConfigError

HEADING = re.compile(r"^[^\n{#]{0,40}#\s+size\s+count\s[^\n]*\balgbw\s+busbw\b", re.MULTILINE)
_LABELLED = re.compile(r"\A(?:\[ *\d+\]|\s*\d+:) ?")
"""The prefix of a rank's line in the output of `windlass run` and `srun --label`."""
_ROW = re.compile(r"\A\s*\d+\s+\d+\s+[A-Za-z]")
_TORN_ROW = re.compile(r"\A\s+\d+(\s+\d+)?\s*\Z")
_DEVICE = re.compile(r"#\s*Rank\s+(\d+).*?\bon\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)")
_PROGRAM = re.compile(r"# Collective test starting: (\w+?)_perf")
_LIBRARY = re.compile(r"\b(NCCL|RCCL) version\s*:?\s+(\S+)")
_STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
_INPLACE_GAP = " " * 24
"""The gap before the times of a row whose out-of-place half was not measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """One half of a row: out-of-place or in-place. `wrong` is None if the table does not count wrong elements."""

    placement: str
    time_us: float
    algbw: float
    busbw: float
    wrong: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    size_bytes: int
    count: int
    type: str
    redop: str
    root: int
    halves: tuple[Timed, ...]


@dataclass(kw_only=True, slots=True)
class ParsedTable:
    """The rows under one heading. `program` is the collective from the lines before it, for example `all_reduce`."""

    program: str | None
    rows: list[Row] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """The complete output. `seats` holds host and device by rank, and is empty if they are not printed."""

    tables: tuple[ParsedTable, ...]
    seats: dict[int, tuple[str, str]]
    library: dict[str, str]
    cut: bool


@dataclass(frozen=True, slots=True)
class _Columns:
    """The names of a heading: those before the first time, and those of each half. A single half is in-place."""

    lead: tuple[str, ...]
    halves: tuple[tuple[str, ...], ...]
    stamp: bool


def parse_text(text: str, where: str) -> Text:
    """Parse the text. Raises `ConfigError` if there is no result, or a line that cannot be right."""
    tables: list[ParsedTable] = []
    seats: dict[int, tuple[str, str]] = {}
    library: dict[str, str] = {}
    columns, program, cut = None, None, False
    lines = list(_lines(text))
    last = max((number for number, line in lines if _like_row(line)), default=0)
    for number, line in lines:
        if match := _DEVICE.search(line):
            seats[int(match[1])] = (match[2], match[3].strip())
        elif match := _PROGRAM.search(line):
            program = match[1]
        elif match := _LIBRARY.search(line):
            library.setdefault(match[1].lower(), match[2])
        elif HEADING.match(line):
            columns = _columns(line, f"{where}, line {number}")
            tables.append(ParsedTable(program=program))
        elif columns is not None and _like_row(line):
            row = _row(line, columns)
            if isinstance(row, Row):
                tables[-1].rows.append(row)
            elif number == last and not _ended(lines, number):
                cut = True
            else:
                raise ConfigError(f"{where}, line {number}: {row}: {line.strip()[:120]!r}", hint=_TORN_HINT)
    kept = tuple(table for table in tables if table.rows)
    if not kept:
        raise ConfigError(f"{where}: no result line of nccl-tests in it", hint="did the program run to its table?")
    return Text(tables=kept, seats=seats, library=library, cut=cut or not _ended(lines, 0))


_TORN_HINT = "torn, or mixed with another rank's line (NCCL_DEBUG?): measure again, or take the line out"


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.rstrip("\r")
        yield number, bare[found.end() :] if (found := _LABELLED.match(bare)) else bare


def _like_row(line: str) -> bool:
    return bool(_ROW.match(line) or _TORN_ROW.match(line))


def _ended(lines: list[tuple[int, str]], after: int) -> bool:
    return any("Avg bus bandwidth" in line or "Out of bounds" in line for number, line in lines if number > after)


def _columns(line: str, where: str) -> _Columns:
    names = line.split("#", 1)[1].split()
    stamp = names[-1] == "timestamp"
    names = names[:-1] if stamp else names
    begins = [index for index, name in enumerate(names) if name in ("time", "cputime")]
    if "cputime" in names:
        raise ConfigError(
            f"{where}: the times of this table are CPU time (-C 1), not that of the collective",
            hint="measure again without -C",
        )
    bounds = [*begins, len(names)]
    halves = tuple(tuple(names[a:b]) for a, b in pairwise(bounds))
    lead = tuple(names[: begins[0]]) if begins else ()
    whole = all(half[:3] == ("time", "algbw", "busbw") and half.count("algbw") == 1 for half in halves)
    if not whole or len(halves) not in (1, 2) or lead[:3] != ("size", "count", "type") or len(set(lead)) != len(lead):
        raise ConfigError(f"{where}: not a heading of nccl-tests: {line.strip()[:120]!r}", hint=_TORN_HINT)
    return _Columns(lead, halves, stamp)


def _row(line: str, columns: _Columns) -> Row | str:
    """Return the row, or a phrase that states what is wrong with the line."""
    if columns.stamp:
        line = re.sub(rf"\s+{_STAMP}\s*\Z", "", line)
    words = line.split()
    lead = dict(zip(columns.lead, words, strict=False))
    rest = words[len(columns.lead) :]
    halves = columns.halves
    placements: tuple[str, ...] = ("out-of-place", "in-place") if len(halves) == 2 else ("in-place",)
    if len(halves) == 2 and len(rest) == len(halves[1]) and _INPLACE_GAP in line.strip():
        halves, placements = halves[1:], placements[1:]
    if len(rest) != sum(map(len, halves)):
        return f"{len(words)} columns, not {len(columns.lead) + sum(map(len, halves))}"
    timed: list[Timed] = []
    try:
        size, count = int(lead["size"]), int(lead["count"])
        root = int(lead.get("root", "-1"))
        for placement, names in zip(placements, halves, strict=True):
            half = _half(dict(zip(names, rest, strict=False)), placement, size)
            if isinstance(half, str):
                return half
            timed.append(half)
            rest = rest[len(names) :]
    except ValueError as error:
        return str(error)
    return Row(
        size_bytes=size,
        count=count,
        type=lead["type"],
        redop=lead.get("redop", "none"),
        root=root,
        halves=tuple(timed),
    )


def _half(words: dict[str, str], placement: str, size_bytes: int) -> Timed | str:
    time_us, algbw, busbw = (_number(words[name]) for name in ("time", "algbw", "busbw"))
    if time_us <= 0:
        return "a time that is not positive"
    computed = size_bytes / time_us / 1e3
    # Both are rounded in the output: times to two to five digits, bandwidths to two or fewer decimals.
    if abs(computed - algbw) > 0.006 + _rounding(words["time"]) * computed + _rounding(words["algbw"]) * algbw:
        return f"{size_bytes} bytes in {words['time']} us are {computed:.2f} GB/s, not {words['algbw']}"
    if busbw > 2 * algbw + 0.02 + 2 * _rounding(words["algbw"]) * algbw:
        return f"a busbw of {words['busbw']}, more than twice the algbw of {words['algbw']}"
    wrong = words.get("#wrong", "N/A")
    return Timed(
        placement=placement,
        time_us=time_us,
        algbw=algbw,
        busbw=busbw,
        wrong=None if wrong == "N/A" else int(_number(wrong)),
    )


def _number(word: str) -> float:
    if not re.fullmatch(r"\d+(\.\d*)?([eE][+-]?\d+)?", word, re.ASCII) or not math.isfinite(float(word)):
        raise ValueError(f"{word!r} is no number of this table")
    return float(word)


def _rounding(word: str) -> float:
    """Return how far a printed number can be from the true one, as a share of it."""
    mantissa = re.split("[eE]", word)[0]
    digits = len(mantissa.partition(".")[2])
    value = float(mantissa)
    return 1.0 if value == 0 else 0.501 * 10.0**-digits / value
