"""The HTML report: one file that needs nothing else, and that a browser shows."""

from __future__ import annotations

import re
import subprocess
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from requirements import missing_programs, require
from unit.bench.made import GH200, collectives_record, ddp_record, told, training_rowed
from windlass.base.pages.svg import Bar, Chart, Series, bar_chart, line_chart, nice_ticks, whole_page
from windlass.bench.measure import Figure
from windlass.bench.record import BenchRecord, Measurement, new_record
from windlass.bench.reference import load_references
from windlass.bench.report import page

REFERENCES = load_references()


def _records() -> list[BenchRecord]:
    rows = [told(1 << power, 20 + (1 << power) / 1e5) for power in range(20, 34)]
    rows += [told(1 << power, 19 + (1 << power) / 1e5, placement="in-place") for power in range(20, 34)]
    matmul = Figure(value=700.0, unit="TFLOP/s", formula="2*m*n*k, median")
    return [
        collectives_record(*rows, skipped=("all_reduce of 1 TiB: needs <3 TiB> & more",)),
        ddp_record(
            training_rowed("no ddp", 1, 1, [0.023, 0.024], parallel="none"),
            training_rowed("1M/1G", 1, 1, [0.024, 0.025]),
            training_rowed("2M/8G", 8, 2, [0.026, 0.027]),
        ),
        new_record(
            "matmul",
            device=GH200,
            complete=False,
            rows=(
                Measurement(
                    labels={"type": "bf16", "m": 8, "n": 8, "k": 8}, figures={"burst": matmul, "sustained": matmul}
                ),
            ),
        ),
    ]


class _Reader(HTMLParser):
    """Collects what a page would load, and checks that its elements are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [f"{tag} {name}={value}" for name, value in attrs if name in {"src", "href", "srcset"}]
        self.loads += [tag] if tag in {"script", "link", "iframe", "img"} else []
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_loads_nothing_and_is_well_formed() -> None:
    reader = _Reader()
    reader.feed(page(_records(), REFERENCES))
    assert reader.open == []
    assert reader.loads == []
    assert "needs <3 TiB> & more" in reader.text
    assert "url(" not in page(_records(), REFERENCES)


def test_charts_are_xml_with_a_point_for_every_row() -> None:
    drawings = re.findall(r"<svg.*?</svg>", page(_records(), REFERENCES), flags=re.DOTALL)
    assert len(drawings) == 3
    roots = [ET.fromstring(drawing) for drawing in drawings]
    titles = [title.text for title in roots[0].iter("{http://www.w3.org/2000/svg}title")]
    assert len([text for text in titles if text and text.startswith("out-of-place")]) == 14
    assert len([text for text in titles if text and text.startswith("published")]) == 18


def test_words_of_others_cannot_become_markup() -> None:
    record = collectives_record(
        told(1 << 20, 5.0), device={"name": "<script>alert(1)</script>"}, environment={"NCCL_X": "</td><b>"}
    )
    text = page([record], REFERENCES)
    assert "<script" not in text
    assert "</td><b>" not in text


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(min_value=0, max_value=1e15), min_size=1, max_size=30), st.booleans())
def test_any_values_can_be_drawn(values: list[float], log: bool) -> None:
    points = tuple((float(at + 1), value) for at, value in enumerate(values))
    chart = Chart(
        title="t",
        x_name="x",
        y_name="y",
        series=(Series(name="a<b", points=points),),
        ticks=((1.0, "one"),),
        x_scale="log" if log else "linear",
        y_from_zero=log,
        level=(values[0], "level"),
    )
    drawing = line_chart(chart)
    ET.fromstring(drawing)
    assert "nan" not in drawing
    assert "inf" not in drawing
    ET.fromstring(bar_chart("t", "s", [Bar(name=str(v), value=v, text=str(v), mark=v / 2) for v in values], "mark"))


@settings(deadline=None, max_examples=50)
@given(st.floats(min_value=-1e12, max_value=1e12), st.floats(min_value=1e-6, max_value=1e12))
def test_ticks_cover_what_is_drawn(low: float, span: float) -> None:
    ticks = nice_ticks(low, low + span)
    assert 2 <= len(ticks) <= 20
    assert ticks[-1] > ticks[0]


@pytest.mark.chromium
@pytest.mark.timeout(120)
def test_a_browser_shows_the_page(tmp_path: Path) -> None:
    why = missing_programs("chromium")
    require("chromium", not why, why)
    (tmp_path / "page.html").write_text(page(_records(), REFERENCES))
    picture = tmp_path / "page.png"
    argv = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-extensions"]
    argv += [f"--user-data-dir={tmp_path}/profile", "--window-size=1100,2600", f"--screenshot={picture}"]
    said = subprocess.run(
        [*argv, "--enable-logging=stderr", "--v=0", f"file://{tmp_path}/page.html"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert picture.exists(), said.stderr
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert int.from_bytes(data[16:20], "big") == 1100
    assert len(data) > 60_000, "a page of text and charts is no blank picture"
    assert "CONSOLE" not in said.stderr


def test_tables_of_a_page_scroll_in_themselves_and_not_the_page() -> None:
    style = re.search(r"\btable \{([^}]*)\}", whole_page("a title", ()))
    assert style
    assert {"display: block", "max-width: 100%", "overflow-x: auto"} <= {part.strip() for part in style[1].split(";")}
