"""Whatever a user writes, the check answers with problems and never with a crash."""

from __future__ import annotations

import sys

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windlass.model.site import SiteFile
from windlass.sites.check import check_text
from windlass.sites.folders import DATA_DIR, catalog_names

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TEXTS = [path.read_text(encoding="utf-8") for path in sorted(DATA_DIR.glob("*/*.toml"))]
WORDS = ["[", "]", '"', "'", '"""', "=", "{", "}", ",", "#", "\\", "\n", "\r\n", "x = 1\n", "[[settings]]\n", "-1", "ü"]


@st.composite
def damaged_texts(draw: st.DrawFn) -> str:
    """A file of the catalog with some lines lost, doubled, moved or with something put into them."""
    lines = draw(st.sampled_from(TEXTS)).splitlines(keepends=True)
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(lines) - 1))
        how = draw(st.sampled_from(["lose", "double", "move", "insert"]))
        if how == "lose" and len(lines) > 1:
            del lines[at]
        elif how == "double":
            lines.insert(at, lines[at])
        elif how == "move":
            lines.insert(draw(st.integers(0, len(lines) - 1)), lines.pop(at))
        else:
            cut = draw(st.integers(0, len(lines[at])))
            lines[at] = lines[at][:cut] + draw(st.sampled_from(WORDS)) + lines[at][cut:]
    return "".join(lines)


@given(text=damaged_texts())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_damaged_file_gives_problems_on_lines_that_exist(text: str) -> None:
    problems = check_text(text, file="f", stem="f", known=catalog_names)
    last = text.count("\n") + 1
    assert all(1 <= problem.facts["line"] <= last and problem.evidence for problem in problems)


@given(text=damaged_texts())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_file_without_problems_fits_the_schema(text: str) -> None:
    if not check_text(text, file="f", stem="f", known=catalog_names):
        msgspec.convert(tomllib.loads(text), SiteFile)
