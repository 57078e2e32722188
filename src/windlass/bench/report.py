"""Show a record of any case as text or as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from windlass.base.pages.svg import figures, whole_page
from windlass.bench.cases import charts, table_text
from windlass.bench.record import BenchRecord
from windlass.bench.reference import References
from windlass.bench.verdict import judge
from windlass.model.finding import findings_html


def about_lines(record: BenchRecord) -> list[str]:
    """Return where and with which software it ran, in a few lines."""
    where = record.where
    lines = [record.title]
    if record.imported_from:
        lines.append(f"imported from {record.imported_from}")
    if record.started:
        host = f" on {where.hosts}" if where.hosts else ""
        job = f", job {where.job_id}" if where.job_id else ""
        lines.append(f"{record.started}{host}{job}, {record.seconds:.0f} s")
    software = ", ".join(f"{name} {value}" for name, value in record.software.items() if value and name != "commit")
    lines += [software] if software else []
    if record.commit:
        lines.append(f"commit {record.commit}")
    if record.command:
        lines.append("$ " + " ".join(record.command))
    return lines


def end_lines(record: BenchRecord, findings: Sequence[str]) -> list[str]:
    """Return the lines below a table: skipped sizes, remarks, and the findings as the caller rendered them."""
    lines = [f"skipped: {line}" for line in record.skipped]
    lines += [f"remark: {line}" for line in record.remarks]
    if not record.complete:
        lines.append("partial: it was stopped, or a part of it failed; this is what was measured until then")
    return [*lines, *findings]


def text(record: BenchRecord, findings: Sequence[str]) -> str:
    lines = [*about_lines(record), "", table_text(record), *end_lines(record, findings)]
    return "\n".join(lines)


def page(records: Sequence[BenchRecord], references: References) -> str:
    """Return one page about these records."""
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
        out.append(findings_html(verdicts))
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
