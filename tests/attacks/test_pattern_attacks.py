"""Lines that make a pattern slow: no pattern that reads text of others takes more than linear time."""

from __future__ import annotations

import importlib
import pkgutil
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

import windlass.backends.launchers
import windlass.diagnose.doctor
import windlass.run.failure
from attacks.record import record
from regex_steps import Counter, TooManyStepsError, example, nested_repeats
from windlass.run.failure.signs import all_signs

MODULES = ("windlass.model.secrets", "windlass.run.bundle")
PACKAGES = (windlass.backends.launchers, windlass.diagnose.doctor, windlass.run.failure)
LENGTH = 250
"""Longer than most bounded repetitions, so that those do not look like growth."""


def patterns_in(value: object, depth: int = 0) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, (tuple, list)) and depth < 3:
        for inner in value:
            yield from patterns_in(inner, depth + 1)


def log_patterns() -> dict[str, re.Pattern[Any]]:
    """Every pattern of the modules that read what others wrote, by its source."""
    names = [*MODULES]
    for package in PACKAGES:
        names += [found.name for found in pkgutil.iter_modules(package.__path__, package.__name__ + ".")]
    found: dict[str, re.Pattern[Any]] = {}
    for name in names:
        for value in vars(importlib.import_module(name)).values():
            found.update((str(pattern.pattern), pattern) for pattern in patterns_in(value))
    found.update((sign.pattern.pattern, sign.pattern) for sign in all_signs())
    return found


PATTERNS = log_patterns()


def hostile_lines(pattern: re.Pattern[Any], rng: random.Random) -> Iterator[str]:
    """What is repeated until a line is full: beginnings of matching texts, and single characters."""
    seeds = {" ", "a", "1"}
    for _ in range(2):
        text = example(pattern, rng)
        seeds |= {text[:cut] for cut in (len(text) // 2, len(text) - 1) if text[:cut]}
        seeds |= {text[: len(text) // 2] + " "}
    yield from sorted(seeds)


def is_linear(pattern: re.Pattern[Any], head: str, seed: str) -> bool:
    """Whether a line of twice the length takes about twice the steps. A long bounded repetition shows it later."""
    return _grows_linearly(pattern, head, seed, LENGTH) or _grows_linearly(pattern, head, seed, 4 * LENGTH)


def _grows_linearly(pattern: re.Pattern[Any], head: str, seed: str, shortest: int) -> bool:
    counts: list[int] = []
    for length in (shortest, 2 * shortest):
        limit = 3 * counts[0] if counts else 1_000_000
        counter = Counter(pattern, limit)
        try:
            counter.search(head + seed * (length // len(seed)) + "\x01")
        except TooManyStepsError:
            return False
        counts.append(counter.steps)
    return True


@pytest.mark.parametrize("source", sorted(PATTERNS), ids=lambda source: ascii(source)[:40])
def test_no_pattern_that_reads_foreign_text_grows_faster_than_the_text(source: str) -> None:
    pattern, rng = PATTERNS[source], random.Random(20)
    assert not nested_repeats(pattern)
    for seed in hostile_lines(pattern, rng):
        head = example(pattern, rng)[:-1]
        found = Counter(pattern, 1_000_000).search(head + seed)  # a match at the beginning would end the search
        assert is_linear(pattern, "" if found else head, seed), seed


def test_the_counter_sees_quadratic_and_cubic_patterns_and_agrees_with_python() -> None:
    slow = (
        (r"x.*y", "", "x"),
        (r"WARN.*network (.+?) not found", "", "WARN network "),
        (r"Using network (.+?)\s*$", "Using network a", " "),
        (r"(\w+:)\w*=", "", "a"),
    )
    for source, head, seed in slow:
        assert not _grows_linearly(re.compile(source), head, seed, LENGTH), source
    assert nested_repeats(re.compile(r"(a+)+b")) and not nested_repeats(re.compile(r"(a{1,9})+b"))
    rng = random.Random(21)
    for pattern in PATTERNS.values():
        for _ in range(5):
            text = example(pattern, rng)
            for line in (text, text[:-1], "x" + text + "x"):
                given = line.encode("latin-1", "replace") if isinstance(pattern.pattern, bytes) else line
                assert Counter(pattern, 1_000_000).search(line) == bool(pattern.search(given)), (pattern.pattern, line)
    record(
        "patterns that read foreign text",
        expected="linear time",
        seen="linear time",
        patterns=len(PATTERNS),
        signs=len(all_signs()),
    )
