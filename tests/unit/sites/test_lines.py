"""Lines of keys in TOML texts of every form."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from looping import each
from windlass.sites.folders import DATA_DIR
from windlass.sites.shape import line_index, line_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TEXT = '''# a comment with [brackets] and "quotes"
top = 1
"quoted key" = 'a # no comment'
dotted.inner.key = true

[table]  # trailing
list = [
  "one",   # comment ]
  { a = 1, b = [2, 3] },
]
text = """
[not.a.table]
still = "text" \\"""
"""
raw = \'\'\'
[nor.this]
\'\'\'
after = 2

[[things]]
name = "first"
[things.inner]
deep = 1
[[things]]
name = "second"
[[things.parts]]
x = { y = { z = 1 } }
[[things.parts]]
x = 2
["odd.name".'x y']
last = 1979-05-27T07:32:00Z
'''


def test_every_form_of_key_is_found_on_its_line() -> None:
    lines = line_index(TEXT)
    expected = {
        ("top",): 2,
        ("quoted key",): 3,
        ("dotted", "inner", "key"): 4,
        ("table",): 6,
        ("table", "list"): 7,
        ("table", "list", 0): 8,
        ("table", "list", 1, "b", 1): 9,
        ("table", "text"): 11,
        ("table", "raw"): 15,
        ("table", "after"): 18,
        ("things", 0, "name"): 21,
        ("things", 0, "inner", "deep"): 23,
        ("things", 1, "name"): 25,
        ("things", 1, "parts", 0, "x", "y", "z"): 27,
        ("things", 1, "parts", 1): 28,
        ("things", 1, "parts", 1, "x"): 29,
        ("odd.name", "x y", "last"): 31,
    }
    assert {path: lines.get(path) for path in expected} == expected


def test_something_inside_a_value_has_the_line_around_it() -> None:
    lines = line_index(TEXT)
    assert line_of(lines, ("table", "text", "nothing")) == 11
    assert line_of(lines, ("nowhere",)) == 1


def test_windows_line_ends_count_once() -> None:
    assert line_index('a = 1\r\nb = """x\r\ny"""\r\nc = 3\r\n')[("c",)] == 4


@each("path", sorted(DATA_DIR.glob("*/*.toml")), ids=lambda path: path.stem)
def test_every_value_of_the_catalog_has_a_line_that_holds_its_key(path: Path) -> None:
    text = path.read_text()
    lines = line_index(text)
    rows = text.splitlines()
    for where in _leaves(tomllib.loads(text), ()):
        assert where in lines, where
        key = next(part for part in reversed(where) if isinstance(part, str))
        if not isinstance(where[-1], int):
            assert key in rows[lines[where] - 1], where


def _leaves(value: Any, path: tuple[str | int, ...]) -> list[tuple[str | int, ...]]:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in _leaves(item, (*path, key))]
    if isinstance(value, list):
        return [leaf for index, item in enumerate(value) for leaf in _leaves(item, (*path, index))] or [path]
    return [path]
