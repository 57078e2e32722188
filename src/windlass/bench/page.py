"""A report as one HTML page: style, charts and tables inside, nothing loaded from anywhere, no script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from windlass.base.pages.html import figures, whole_page
from windlass.bench.cases import charts, table_text
from windlass.bench.record import BenchRecord
from windlass.bench.reference import References
from windlass.bench.report import about_lines
from windlass.bench.verdict import judge

_CLASSES = {"ok": "normal", "warning": "low", "error": "bad", "note": "unknown"}


def page(records: Sequence[BenchRecord], references: References) -> str:
    """One page about these records."""
    title = records[0].title if len(records) == 1 else f"{len(records)} benchmark records"
    return whole_page(title, [_section(record, references, alone=len(records) == 1) for record in records])


def _section(record: BenchRecord, references: References, *, alone: bool) -> str:
    lines = about_lines(record)
    out = [] if alone else [f"<h2>{escape(lines[0])}</h2>"]
    out.append('<p class="lead">' + "<br>".join(escape(line) for line in lines[1:]) + "</p>")
    if not record.complete:
        out.append('<ul class="verdicts"><li class="low"><b>partial</b> what was measured until it stopped</li></ul>')
    verdicts = judge(record, references)
    if verdicts:
        items = [
            f'<li class="{_CLASSES[one.severity]}"><b>{one.severity}</b> {escape(one.text())}</li>' for one in verdicts
        ]
        out.append('<ul class="verdicts">' + "".join(items) + "</ul>")
    out += figures(charts(record, references))
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
    located = "".join(
        f"<tr><td>{seat.rank}</td><td>{escape(seat.host)}</td><td>{escape(seat.cpus)}</td>"
        f"<td>{escape(seat.device)}</td></tr>"
        for seat in where.ranks[:256]
    )
    ranks = (
        f"<table><tr><th>rank</th><th>host</th><th>cpus</th><th>device</th></tr>{located}</table>" if located else ""
    )
    return f"<details><summary>what ran where, and with what</summary><table>{body}</table>{ranks}</details>"
