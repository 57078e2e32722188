"""A report as one HTML page: style, charts and tables inside, nothing loaded from anywhere, no script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from windlass.bench import compare
from windlass.bench.charts import charts, compare_charts, reference_charts
from windlass.bench.records import BenchRecord
from windlass.bench.reference import References
from windlass.bench.report import about_lines, table_text
from windlass.bench.verdict import judge

_STYLE = """
:root { --ink: #1c2733; --soft: #5b6875; --line: #dde3e9; --paper: #ffffff; --card: #f6f8fa;
  --c0: #1f6fd0; --c1: #d9621e; --c2: #1d8a5f; --c3: #8a4fc4; --c4: #b8334a; --c5: #6b7785;
  --good: #1d7a4c; --warn: #9a5b00; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf0; --soft: #9aa7b4; --line: #313c47; --paper: #12181f;
  --card: #1a222b; --c0: #6aa9f4; --c1: #f2965c; --c2: #57c596; --c3: #bb8ff0; --c4: #ef7f91; --c5: #a3afbb;
  --good: #6ad09c; --warn: #e8b25a; --bad: #f28b82; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 40px 0 8px; }
p.lead, figcaption, .soft { color: var(--soft); }
ul.verdicts { list-style: none; padding: 0; margin: 12px 0; }
ul.verdicts li { padding: 6px 12px; margin: 6px 0; background: var(--card); border-left: 4px solid var(--c5); }
li.normal { border-color: var(--good) !important; } li.low { border-color: var(--warn) !important; }
li.bad { border-color: var(--bad) !important; }
li b { display: inline-block; min-width: 5.5em; }
li.normal b { color: var(--good); } li.low b { color: var(--warn); } li.bad b { color: var(--bad); }
figure { margin: 16px 0 24px; } svg { width: 100%; max-width: 860px; height: auto; display: block; }
pre { background: var(--card); padding: 12px 16px; overflow-x: auto; font: 12.5px/1.45 ui-monospace, monospace; }
table { border-collapse: collapse; font-size: 14px; } td, th { padding: 3px 16px 3px 0; text-align: left;
  vertical-align: top; overflow-wrap: anywhere; } th { color: var(--soft); font-weight: 500; white-space: nowrap; }
details { margin: 8px 0; } summary { cursor: pointer; color: var(--soft); }
svg text { font: 12px system-ui, sans-serif; fill: var(--ink); }
svg .tick, svg .axis, svg .note { fill: var(--soft); }
svg .note { paint-order: stroke; stroke: var(--paper); stroke-width: 4px; }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .level { stroke: var(--soft); stroke-width: 1.2; stroke-dasharray: 5 4; }
svg .mark { stroke: var(--ink); stroke-width: 2; }
svg .line { fill: none; stroke-width: 2; } svg .hollow { fill: var(--paper); stroke-width: 1.6; }
svg .line.s0, svg .hollow.s0 { stroke: var(--c0); } svg .dot.s0, svg .bar.s0 { fill: var(--c0); }
svg .line.s1, svg .hollow.s1 { stroke: var(--c1); } svg .dot.s1, svg .bar.s1 { fill: var(--c1); }
svg .line.s2, svg .hollow.s2 { stroke: var(--c2); } svg .dot.s2, svg .bar.s2 { fill: var(--c2); }
svg .line.s3, svg .hollow.s3 { stroke: var(--c3); } svg .dot.s3, svg .bar.s3 { fill: var(--c3); }
svg .line.s4, svg .hollow.s4 { stroke: var(--c4); } svg .dot.s4, svg .bar.s4 { fill: var(--c4); }
svg .line.s5, svg .hollow.s5 { stroke: var(--c5); } svg .dot.s5, svg .bar.s5 { fill: var(--c5); }
@media print { main { max-width: none; padding: 0; } }
"""
_WORDS = {"normal": "normal", "low": "low", "bad": "bad", "unknown": "no figure"}


def page(records: Sequence[BenchRecord], references: References) -> str:
    """One page about these records."""
    title = records[0].title if len(records) == 1 else f"{len(records)} benchmark records"
    return _whole(title, [_section(record, references, alone=len(records) == 1) for record in records])


def compare_page(a: BenchRecord, b: BenchRecord, names: tuple[str, str]) -> str:
    """Two records in the same charts, and the table of their differences."""
    parts = _figures(compare_charts(a, b))
    return _whole(f"{a.case}: {names[0]} and {names[1]}", [*parts, f"<pre>{escape(compare.text(a, b, names))}</pre>"])


def reference_page(case: str, references: References, lines: Sequence[str]) -> str:
    """Published figures of a case: a chart where there are sizes to draw them by, and the list with its sources."""
    parts = _figures(reference_charts(references)) if case == "collectives" else []
    return _whole(f"published figures: {case}", [*parts, f"<pre>{escape(chr(10).join(lines))}</pre>"])


def _whole(title: str, parts: Sequence[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape(title)}</h1>\n" + "\n".join(parts) + "\n</main>\n</body>\n</html>\n"
    )


def _figures(drawn: Sequence[tuple[str, str]]) -> list[str]:
    return [f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>" for caption, svg in drawn]


def _section(record: BenchRecord, references: References, *, alone: bool) -> str:
    lines = about_lines(record)
    out = [] if alone else [f"<h2>{escape(lines[0])}</h2>"]
    out.append('<p class="lead">' + "<br>".join(escape(line) for line in lines[1:]) + "</p>")
    if not record.complete:
        out.append('<ul class="verdicts"><li class="low"><b>partial</b> what was measured until it stopped</li></ul>')
    verdicts = judge(record, references)
    if verdicts:
        items = [f'<li class="{v.level}"><b>{_WORDS[v.level]}</b> {escape(v.text)}</li>' for v in verdicts]
        out.append('<ul class="verdicts">' + "".join(items) + "</ul>")
    out += _figures(charts(record, references))
    out.append(f"<pre>{escape(table_text(record))}</pre>")
    notes = [f"skipped: {line}" for line in record.skipped] + [f"remark: {line}" for line in record.remarks]
    out += [f'<p class="soft">{escape(line)}</p>' for line in notes]
    out.append(_details(record))
    return "\n".join(out)


def _details(record: BenchRecord) -> str:
    where = record.where
    rows = [
        ("site", where.site),
        ("hosts", where.hosts),
        ("launcher", where.launcher),
        ("container", where.container or ""),
        *((f"software: {name}", str(value)) for name, value in record.software.items()),
        *((f"option: {name}", str(value)) for name, value in record.options.items()),
        *record.environment.items(),
    ]
    body = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows if value)
    seats = "".join(
        f"<tr><td>{seat.rank}</td><td>{escape(seat.host)}</td><td>{escape(seat.cpus)}</td>"
        f"<td>{escape(seat.device)}</td></tr>"
        for seat in where.ranks[:256]
    )
    place = f"<table><tr><th>rank</th><th>host</th><th>cpus</th><th>device</th></tr>{seats}</table>" if seats else ""
    return f"<details><summary>what ran where, and with what</summary><table>{body}</table>{place}</details>"
