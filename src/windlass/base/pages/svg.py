"""Line charts, bar charts and heat maps as SVG text, and the HTML page around them. Pure.

Charts need no library and no script. They are readable in print and in dark mode. Colours are classes (`s0`, `s1`, …).
The page's style assigns their values, so that one drawing serves light and dark mode. Series differ by colour, by
marker and by a label at their end, never by colour alone.

A page has a style for light mode, dark mode and print, and figures with captions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from windlass.base.tables import packaged_text

_WIDTH, _HEIGHT = 720, 320
MAX_MARKERS = 100
At = Callable[[float, float], tuple[float, float]]
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 150, 16, 52


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """Points of one line. `hollow`: published figures, drawn without a line. `band`: x, and the ends of a range."""

    name: str
    points: tuple[tuple[float, float], ...]
    hollow: bool = False
    band: tuple[tuple[float, float, float], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """One chart. `ticks` are the labelled positions on the x axis. `level` is a horizontal line with a label."""

    title: str
    x_name: str
    y_name: str
    series: tuple[Series, ...]
    ticks: tuple[tuple[float, str], ...]
    x_scale: Literal["linear", "log"] = "linear"
    y_scale: Literal["linear", "log"] = "linear"
    level: tuple[float, str] | None = None
    y_from_zero: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One bar: its label, its length, and an optional mark on it (a ceiling, a need)."""

    name: str
    value: float
    text: str
    mark: float | None = None


def sample_series(name: str, values: Sequence[float]) -> Series:
    """Return a series of samples in the order in which they were taken."""
    return Series(name=name, points=tuple((float(number), value) for number, value in enumerate(values)))


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round values that cover low to high."""
    span = high - low
    if not 1e-300 < span < 1e300 or span <= max(abs(low), abs(high)) * 1e-9:  # flat within the precision of a float
        return [low, low + (abs(low) or 1.0)]
    raw = span / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.999)
    first = math.floor(low / step) * step
    ticks = [first]
    while ticks[-1] < high - step * 1e-9:
        ticks.append(ticks[-1] + step)
    return ticks


def tick_text(value: float) -> str:
    """Format a number on an axis as short as possible."""
    if value == 0:
        return "0"
    if abs(value) >= 1e3:
        return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.2g}"
    return f"{value:.3g}" if abs(value) >= 1e-3 else f"{value:.1e}"


def line_chart(chart: Chart) -> str:
    """Return the chart as one <svg> element."""
    points = [point for series in chart.series for point in series.points]
    if not points:
        return ""
    xs = [_scaled(chart.x_scale, x) for x, _ in points]
    ends = [end for series in chart.series for _, *both in series.band for end in both]
    top = max([y for _, y in points] + ends + ([chart.level[0]] if chart.level else []))
    ticks = _y_ticks(chart, min([y for _, y in points] + ends), top)
    x_low, x_high = min(xs), max(xs)
    y_low, y_high = (_scaled(chart.y_scale, tick) for tick in (ticks[0], ticks[-1]))
    if x_low == x_high:
        x_low, x_high = x_low - 0.5, x_high + 0.5

    def at(x: float, y: float) -> tuple[float, float]:
        right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
        part = (_scaled(chart.x_scale, x) - x_low) / (x_high - x_low)
        height = (_scaled(chart.y_scale, y) - y_low) / (y_high - y_low)
        return _LEFT + 12 + part * (right - _LEFT - 24), bottom - height * (bottom - _TOP)

    body = _grid(chart, ticks, at)
    if chart.level:
        y = at(chart.series[0].points[0][0], chart.level[0])[1]
        body.append(f'<line class="level" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        body.append(f'<text class="note" x="{_LEFT + 6}" y="{y - 5:.1f}">{escape(chart.level[1])}</text>')
    labels: list[tuple[float, int, Series]] = []
    for number, series in enumerate(chart.series):
        body += _line(series, number, at, chart)
        labels.append((at(*series.points[-1])[1], number, series))
    body += _end_labels(labels)
    return _svg(chart.title, _HEIGHT, body)


def _scaled(scale: str, value: float) -> float:
    return math.log2(max(value, 1e-12)) if scale == "log" else value


def _y_ticks(chart: Chart, low: float, high: float) -> list[float]:
    if chart.y_scale == "linear":
        return nice_ticks(0.0 if chart.y_from_zero else low, high)
    first, last = math.floor(math.log10(max(low, 1e-12))), math.ceil(math.log10(max(high, 1e-12)))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def _grid(chart: Chart, ticks: Sequence[float], at: At) -> list[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    body = []
    some_x = chart.series[0].points[0][0]
    for tick in ticks:
        y = at(some_x, tick)[1]
        body.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        body.append(f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick_text(tick)}</text>')
    last = -1e9
    for value, name in chart.ticks:
        x = at(value, ticks[0])[0]
        if x - last < 46:
            continue
        last = x
        body.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{escape(name)}</text>')
    middle = (_LEFT + right) / 2
    body.append(
        f'<text class="axis" x="{middle:.0f}" y="{bottom + 40}" text-anchor="middle">{escape(chart.x_name)}</text>'
    )
    body.append(
        f'<text class="axis" transform="translate(14 {(_TOP + bottom) / 2:.0f}) rotate(-90)" '
        f'text-anchor="middle">{escape(chart.y_name)}</text>'
    )
    return body


def _line(series: Series, number: int, at: At, chart: Chart) -> list[str]:
    body = []
    if series.band:
        edge = [at(x, low) for x, low, _ in series.band] + [at(x, high) for x, _, high in reversed(series.band)]
        body.append(f'<polygon class="band s{number % 6}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in edge)}"/>')
    placed = [(at(x, y), x, y) for x, y in series.points]
    if not series.hollow and len(placed) > 1:
        path = " ".join(f"{x:.1f},{y:.1f}" for (x, y), _, _ in placed)
        body.append(f'<polyline class="line s{number % 6}" points="{path}"/>')
    names = dict(chart.ticks)
    if len(placed) > MAX_MARKERS:
        return body
    for (x, y), value, height in placed:
        said = escape(f"{series.name}: {tick_text(height)} {chart.y_name} at {names.get(value, tick_text(value))}")
        kind = "hollow" if series.hollow else "dot"
        body.append(f"{_marker(number, x, y, f'{kind} s{number % 6}')[:-2]}><title>{said}</title></{_shape(number)}>")
    return body


def _shape(number: int) -> str:
    return ("circle", "rect", "polygon")[number % 3]


def _marker(number: int, x: float, y: float, kind: str) -> str:
    if number % 3 == 0:
        return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
    if number % 3 == 1:
        return f'<rect class="{kind}" x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7"/>'
    corners = f"{x:.1f},{y - 4.5:.1f} {x + 4.5:.1f},{y + 3.5:.1f} {x - 4.5:.1f},{y + 3.5:.1f}"
    return f'<polygon class="{kind}" points="{corners}"/>'


def _end_labels(labels: Sequence[tuple[float, int, Series]]) -> list[str]:
    """Draw the names of the series at the right, and move them apart if they would overlap."""
    body, last = [], -1e9
    x = _WIDTH - _RIGHT + 10
    for y, number, series in sorted(labels, key=lambda label: (round(label[0] / 12), label[1])):
        last = max(y, last + 17)
        body.append(_marker(number, x + 4, last, f"{'hollow' if series.hollow else 'dot'} s{number % 6}"))
        body.append(f'<text class="name" x="{x + 14}" y="{last + 4:.1f}">{escape(series.name)}</text>')
    return body


def bar_chart(title: str, unit: str, bars: Sequence[Bar], mark_name: str = "") -> str:
    """Draw horizontal bars with their values as text."""
    if not bars:
        return ""
    high = max([bar.value for bar in bars] + [bar.mark or 0.0 for bar in bars]) or 1.0
    left, room, step = 150, 420, 30
    body = []
    for index, bar in enumerate(bars):
        y = 12 + index * step
        width = max(1.0, bar.value / high * room)
        body.append(f'<text class="name" x="{left - 10}" y="{y + 15}" text-anchor="end">{escape(bar.name)}</text>')
        said = escape(f"{bar.name}: {bar.text} {unit}")
        body.append(
            f'<rect class="bar s0" x="{left}" y="{y}" width="{width:.1f}" height="20"><title>{said}</title></rect>'
        )
        end = width
        if bar.mark is not None:
            x = left + bar.mark / high * room
            body.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 3}" y2="{y + 23}"/>')
            end = max(end, bar.mark / high * room)
        body.append(
            f'<text class="value" x="{left + end + 8:.1f}" y="{y + 15}">{escape(bar.text)} {escape(unit)}</text>'
        )
    height = 24 + len(bars) * step
    if mark_name:
        body.append(f'<text class="note" x="{left}" y="{height + 8}">upright line: {escape(mark_name)}</text>')
        height += 20
    return _svg(title, height, body)


def heat_map(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Sequence[Sequence[float | None]],
    top: float,
    unit: str,
) -> str:
    """Draw one coloured cell per row and column. The colour is stronger near `top`.

    Cells without a measurement are hatched. Adjacent cells with the same value are one element.
    """
    left, right, room = 150, 20, max(1, len(columns))
    height = 14 if len(rows) <= 24 else 8
    width = (_WIDTH - left - right) / room
    body = []
    for number, row in enumerate(cells):
        y = 8 + number * (height + 1)
        if len(rows) <= 24 or number % 4 == 0:
            name = escape(rows[number][:22])
            body.append(f'<text class="tick" x="{left - 8}" y="{y + height - 3}" text-anchor="end">{name}</text>')
        for start, end, value in _runs(row):
            said = f"{rows[number]}, {columns[start]}: " + ("not measured" if value is None else f"{value:.0f} {unit}")
            shade = (
                'class="empty"'
                if value is None
                else f'class="heat" fill-opacity="{min(1.0, max(0.04, value / top)):.2f}"'
            )
            body.append(
                f'<rect {shade} x="{left + start * width:.1f}" y="{y}" width="{(end - start) * width:.1f}" '
                f'height="{height}"><title>{escape(said)}</title></rect>'
            )
    bottom = 8 + len(rows) * (height + 1)
    for place in sorted({0, room // 2, room - 1}):
        x = left + min(place + 0.5, room - 0.5) * width
        body.append(
            f'<text class="tick" x="{x:.0f}" y="{bottom + 16}" text-anchor="middle">{escape(columns[place])}</text>'
        )
    return _svg(title, bottom + 24, body)


def _runs(row: Sequence[float | None]) -> list[tuple[int, int, float | None]]:
    """Merge neighbours of (nearly) the same value. Returns begin, end and value of each run."""
    runs: list[tuple[int, int, float | None]] = []
    for number, value in enumerate(row):
        rounded = None if value is None else float(f"{value:.2g}")
        if runs and runs[-1][2] == rounded:
            runs[-1] = (runs[-1][0], number + 1, rounded)
        else:
            runs.append((number, number + 1, rounded))
    return runs


def _svg(title: str, height: int, body: Sequence[str]) -> str:
    inner = "\n".join(body)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title, quote=True)}" '
        f'xmlns="http://www.w3.org/2000/svg">\n{inner}\n</svg>'
    )


def standalone(title: str, svg: str) -> str:
    """Return a chart as a separate file, with its style, title and background."""
    head, body = svg.split("\n", 1)
    height = _HEIGHT + 28
    head = head.replace(f'viewBox="0 0 {_WIDTH} {_HEIGHT}"', f'viewBox="0 -28 {_WIDTH} {height}"')
    paper = f'<rect y="-28" width="{_WIDTH}" height="{height}" fill="var(--paper)"/>'
    style = packaged_text(__file__, "chart.css")
    return f'{head}\n<style>\n{style}</style>\n{paper}\n<text x="14" y="-10">{escape(title)}</text>\n{body}\n'


def whole_page(title: str, parts: Sequence[str]) -> str:
    """Return the page as one file. `title` is text, `parts` are HTML."""
    style = packaged_text(__file__, "chart.css") + "\n" + packaged_text(__file__, "page.css")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape(title)}</h1>\n" + "\n".join(parts) + "\n</main>\n</body>\n</html>\n"
    )


def figures(drawn: Sequence[tuple[str, str]]) -> list[str]:
    """Return figures from pairs of caption and drawing."""
    return [f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>" for caption, svg in drawn]
