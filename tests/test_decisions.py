"""Code decides on a kind, never on a sentence: no test of our own messages, reasons and findings in `src`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).parents[1] / "src" / "windlass"
PROSE = {"message", "evidence", "advice", "hint", "because", "meaning", "remedy"}
"""Attributes that hold sentences for people."""
SEARCHES = {
    "startswith",
    "endswith",
    "removeprefix",
    "removesuffix",
    "partition",
    "rpartition",
    "split",
    "find",
    "index",
}
PATTERNS = {"search", "match", "fullmatch", "findall", "finditer"}
ALLOWED = {
    "cli/main.py": "does not print the last line of a command's output twice",
    "plan/site_check.py": "cuts the place off a message that is shown with its place",
}


def _is_prose(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in PROSE


def _decisions(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
            if any(_is_prose(side) for side in node.comparators):
                yield node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            searched = node.func.attr in SEARCHES and _is_prose(node.func.value)
            matched = node.func.attr in PATTERNS and any(_is_prose(argument) for argument in node.args)
            if searched or matched:
                yield node.lineno


def test_no_decision_depends_on_a_sentence() -> None:
    found = {
        f"{path.relative_to(SRC)}:{line}"
        for path in SRC.rglob("*.py")
        if str(path.relative_to(SRC)) not in ALLOWED
        for line in _decisions(ast.parse(path.read_text()))
    }
    assert found == set(), "give the value a kind and decide on that"


def test_the_search_finds_each_form() -> None:
    forms = ('"port" in error.message', 'x.evidence.startswith("a")', "re.search(p, one.because)", "p.match(e.hint)")
    assert all(list(_decisions(ast.parse(form))) == [1] for form in forms)
    assert not list(_decisions(ast.parse("error.message + 'x' in lines")))
