"""A plot of predicted start-up as SVG, made of plain text: lines for the middle, bands for the range, dots for what was
published. It says on its face that it is simulated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from windlass.bench.start.simulate import PUBLISHED, Predicted

_WIDTH, _HEIGHT = 860, 520
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 190, 60, 60
_COLORS = {"direct": "#b3412e", "copper": "#b8860b", "windlass": "#2f6f9f", "windlass+trace": "#1f7a4d"}
_NAMES = {"direct": "direct", "copper": "Copper-like", "windlass": "windlass", "windlass+trace": "windlass, with trace"}


def plot_svg(series: Sequence[Sequence[Predicted]]) -> str:
    """One line and band for each way; both axes logarithmic."""
    points = [point for way in series for point in way]
    x = _Axis([point.nodes for point in points], _LEFT, _WIDTH - _RIGHT)
    y = _Axis([1.0, *(point.high for point in points), *(point.low for point in points)], _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="13">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_LEFT, 24, "Simulated, not measured: start of `import torch`, 12 ranks a node", size=16),
        _text(_LEFT, 44, "lines: middle of the draws; bands: 10 % to 90 %; dots: published times (Lustre, Copper)"),
        *_grid(x, y, points[0].ranks if points else 0),
        *(part for way in series for part in _way(way, x, y)),
        *_dots(x, y),
        *_legend(series),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


class _Axis:
    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low, self.high = math.log(min(values)), math.log(max(values))
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        share = (math.log(value) - self.low) / ((self.high - self.low) or 1.0)
        return round(self._start + share * (self._end - self._start), 1)

    def shows(self, value: float) -> bool:
        return self.low - 1e-9 <= math.log(value) <= self.high + 1e-9


def _text(x: float, y: float, text: str, *, size: int = 13, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}">{escape(text)}</text>'


def _grid(x: _Axis, y: _Axis, ranks: int) -> list[str]:
    parts = []
    for seconds in (1, 3, 10, 30, 100, 300, 1000, 3000, 10000):
        if y.shows(seconds):
            at = y.at(seconds)
            parts.append(f'<line x1="{_LEFT}" y1="{at}" x2="{_WIDTH - _RIGHT}" y2="{at}" stroke="#ddd"/>')
            parts.append(_text(_LEFT - 8, at + 4, f"{seconds:,} s", anchor="end"))
    for nodes in (1, 4, 16, 64, 256, 1024, 4096, 16384):
        if x.shows(nodes):
            at = x.at(nodes)
            parts.append(f'<line x1="{at}" y1="{_TOP}" x2="{at}" y2="{_HEIGHT - _BOTTOM}" stroke="#eee"/>')
            parts.append(_text(at, _HEIGHT - _BOTTOM + 20, f"{nodes:,}", anchor="middle"))
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    return [*parts, _text(middle, _HEIGHT - 14, f"nodes (times {ranks} ranks)", anchor="middle")]


def _way(points: Sequence[Predicted], x: _Axis, y: _Axis) -> list[str]:
    color = _COLORS[points[0].way]
    upper = " ".join(f"{x.at(p.nodes)},{y.at(p.high)}" for p in points)
    lower = " ".join(f"{x.at(p.nodes)},{y.at(p.low)}" for p in reversed(points))
    line = " ".join(f"{x.at(p.nodes)},{y.at(p.middle)}" for p in points)
    return [
        f'<polygon points="{upper} {lower}" fill="{color}" opacity="0.18"/>',
        f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>',
    ]


def _dots(x: _Axis, y: _Axis) -> list[str]:
    return [
        f'<circle cx="{x.at(nodes)}" cy="{y.at(seconds)}" r="3.5" fill="{_COLORS[way]}" stroke="black"/>'
        for nodes, lustre, copper in PUBLISHED
        for way, seconds in (("direct", lustre), ("copper", copper))
        if x.shows(nodes) and y.shows(seconds)
    ]


def _legend(series: Sequence[Sequence[Predicted]]) -> list[str]:
    parts = []
    left = _WIDTH - _RIGHT + 16
    for at, way in enumerate(points[0].way for points in series):
        top = _TOP + 20 + 24 * at
        parts.append(f'<rect x="{left}" y="{top - 10}" width="18" height="10" fill="{_COLORS[way]}"/>')
        parts.append(_text(left + 26, top, _NAMES[way]))
    return parts
