"""Count the steps of a backtracking match, so that a test can measure how the cost of a pattern grows without a clock.

The matcher follows Python's own parse of a pattern and supports what windlass's patterns use.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

try:
    from re import _constants as ops  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
except ImportError:  # Python 3.10
    import sre_constants as ops  # type: ignore[no-redef]
    import sre_parse as parser  # type: ignore[no-redef]

_REPEATS = (ops.MAX_REPEAT, ops.MIN_REPEAT)
_SINGLE = (ops.LITERAL, ops.NOT_LITERAL, ops.ANY, ops.IN)
MANY = 64
"""A repetition that may be longer counts as unbounded where it stands inside another one."""


def _text(pattern: re.Pattern[Any]) -> str:
    source = pattern.pattern
    return source.decode("latin-1") if isinstance(source, bytes) else str(source)


def _parsed(pattern: re.Pattern[Any]) -> list[Any]:
    return list(parser.parse(_text(pattern), pattern.flags & ~(re.DEBUG | re.LOCALE)))


def nested_repeats(pattern: re.Pattern[Any]) -> bool:
    """Whether an unbounded repetition stands inside another one, as in `(a+)+`."""

    def inside(items: Any, deep: bool) -> bool:
        for op, argument in items:
            many = op in _REPEATS and argument[1] > MANY
            if many and deep:
                return True
            if any(inside(inner, deep or many) for inner in _inner(op, argument)):
                return True
        return False

    return inside(_parsed(pattern), False)


def _inner(op: Any, argument: Any) -> list[Any]:
    """The parts of an item that have items of their own."""
    if op in _REPEATS:
        return [argument[2]]
    if op is ops.SUBPATTERN:
        return [argument[3]]
    if op is ops.BRANCH:
        return list(argument[1])
    if op in (ops.ASSERT, ops.ASSERT_NOT):
        return [argument[1]]
    if op is ops.GROUPREF_EXISTS:
        return [part for part in argument[1:] if part is not None]
    return []


def example(pattern: re.Pattern[Any], rng: random.Random, longest: int = 4) -> str:
    """A random text that the pattern matches, as far as its assertions allow."""
    groups: dict[int, str] = {}

    def of(items: Any) -> str:
        return "".join(one(op, argument) for op, argument in items)

    def one(op: Any, argument: Any) -> str:
        if op is ops.LITERAL:
            return chr(argument)
        if op in (ops.NOT_LITERAL, ops.ANY, ops.IN):
            choices = [c for c in map(chr, range(32, 127)) if _fits(op, argument, c, re.DOTALL)] or [" "]
            return rng.choice(choices)
        if op in _REPEATS:
            low, high, inner = argument
            if low == 0 and high > 1 and inner[0][0] is ops.ANY:
                return " " * rng.randint(1, longest)  # words stay words
            return "".join(of(inner) for _ in range(rng.randint(low, max(low, min(high, low + longest)))))
        if op is ops.SUBPATTERN:
            text = of(argument[3])
            groups[argument[0]] = text
            return text
        if op is ops.BRANCH:
            return of(rng.choice(argument[1]))
        if op is ops.GROUPREF:
            return groups.get(argument, "")
        return of(argument[1]) if op is ops.ASSERT and argument[0] > 0 else ""

    return of(_parsed(pattern))


def _category(name: Any, char: str) -> bool:
    word = char.isalnum() or char == "_"
    truth = {"DIGIT": char.isdigit(), "SPACE": char.isspace(), "WORD": word}
    kind = str(name).removeprefix("CATEGORY_").removeprefix("UNI_")
    return not truth[kind.removeprefix("NOT_")] if kind.startswith("NOT_") else truth[kind]


def _fits(op: Any, argument: Any, char: str, flags: int) -> bool:
    if op is ops.ANY:
        return char != "\n" or bool(flags & re.DOTALL)
    if op is ops.LITERAL:
        return ord(char) == argument or bool(flags & re.IGNORECASE and char.lower() == chr(argument).lower())
    forms = {char, char.lower(), char.upper()} if flags & re.IGNORECASE else {char}
    if op is ops.NOT_LITERAL:
        return all(ord(c) != argument for c in forms if len(c) == 1)
    negate = argument[0][0] is ops.NEGATE
    found = False
    for kind, value in argument[1:] if negate else argument:
        if kind is ops.LITERAL:
            found |= any(ord(c) == value for c in forms)
        elif kind is ops.RANGE:
            found |= any(value[0] <= ord(c) <= value[1] for c in forms)
        else:
            found |= _category(value, char)
    return found != negate


class TooManyStepsError(Exception):
    pass


class Counter:
    """Searches a text and counts the characters that it looks at. Raises `TooManyStepsError` above the limit."""

    def __init__(self, pattern: re.Pattern[Any], limit: int) -> None:
        self.items, self.flags, self.steps, self.limit = _parsed(pattern), pattern.flags, 0, limit

    def search(self, text: str) -> bool:
        """Whether the pattern is found. `steps` grows by the cost."""
        at_start = bool(self.items) and self.items[0] == (ops.AT, ops.AT_BEGINNING_STRING)
        for start in range(1 if at_start else len(text) + 1):
            if next(self._sequence(self.items, 0, text, start, {}), None) is not None:
                return True
        return False

    def _count(self, steps: int) -> None:
        self.steps += steps
        if self.steps > self.limit:
            raise TooManyStepsError

    def _sequence(self, items: Any, index: int, text: str, pos: int, groups: dict[int, str]) -> Iterator[int]:
        while index < len(items) and items[index][0] in _SINGLE:
            self._count(1)
            if pos >= len(text) or not _fits(*items[index], text[pos], self.flags):
                return
            pos, index = pos + 1, index + 1
        if index == len(items):
            yield pos
            return
        for end in self._item(*items[index], text, pos, groups):
            yield from self._sequence(items, index + 1, text, end, groups)

    def _item(self, op: Any, argument: Any, text: str, pos: int, groups: dict[int, str]) -> Iterator[int]:
        self._count(1)
        if op in _REPEATS:
            yield from self._repeat(op, *argument, text, pos, groups)
        elif op is ops.SUBPATTERN:
            for end in self._sequence(argument[3], 0, text, pos, groups):
                groups[argument[0]] = text[pos:end]
                yield end
        elif op is ops.BRANCH:
            for branch in argument[1]:
                if branch and branch[0][0] in _SINGLE:  # most branches end here
                    self._count(1)
                    if pos >= len(text) or not _fits(*branch[0], text[pos], self.flags):
                        continue
                yield from self._sequence(branch, 0, text, pos, groups)
        elif op is ops.AT:
            if self._at(argument, text, pos):
                yield pos
        elif op in (ops.ASSERT, ops.ASSERT_NOT):
            if self._assertion(*argument, text, pos, groups) == (op is ops.ASSERT):
                yield pos
        elif op is ops.GROUPREF:
            if text.startswith(groups.get(argument, ""), pos):
                yield pos + len(groups.get(argument, ""))
        elif op is ops.GROUPREF_EXISTS:
            number, yes, no = argument
            yield from self._sequence(yes if number in groups else no or [], 0, text, pos, groups)
        else:
            raise NotImplementedError(op)

    def _assertion(self, direction: int, inner: Any, text: str, pos: int, groups: dict[int, str]) -> bool:
        start = pos if direction > 0 else pos - inner.getwidth()[0]
        return start >= 0 and next(self._sequence(inner, 0, text, start, groups), None) is not None

    def _repeat(
        self, op: Any, low: int, high: int, inner: Any, text: str, pos: int, groups: dict[int, str]
    ) -> Iterator[int]:
        if len(inner) == 1 and inner[0][0] in _SINGLE:
            ends = [pos]
            while len(ends) <= high and ends[-1] < len(text) and _fits(*inner[0], text[ends[-1]], self.flags):
                ends.append(ends[-1] + 1)
            self._count(len(ends))
            yield from ends[low:] if op is ops.MIN_REPEAT else reversed(ends[low:])
            return
        if op is ops.MIN_REPEAT and low <= 0:
            yield pos
        if high > 0:
            for end in self._sequence(inner, 0, text, pos, groups):
                if end > pos or low > 0:
                    yield from self._repeat(op, max(0, low - 1), high - 1, inner, text, end, groups)
        if op is ops.MAX_REPEAT and low <= 0:
            yield pos

    def _at(self, where: Any, text: str, pos: int) -> bool:
        if where in (ops.AT_BEGINNING, ops.AT_BEGINNING_STRING):
            return pos == 0 or (where is ops.AT_BEGINNING and bool(self.flags & re.MULTILINE) and text[pos - 1] == "\n")
        if where is ops.AT_END_STRING:
            return pos == len(text)
        if where is ops.AT_END:
            return pos == len(text) or text[pos:] == "\n" or (bool(self.flags & re.MULTILINE) and text[pos] == "\n")
        word = [0 <= i < len(text) and (text[i].isalnum() or text[i] == "_") for i in (pos - 1, pos)]
        return (word[0] != word[1]) == (where is ops.AT_BOUNDARY)
