"""A record as text for people, whatever its case, with the verdict of the published figures."""

from __future__ import annotations

from collections.abc import Sequence

from windlass.bench.cases import table_text
from windlass.bench.record import BenchRecord


def about_lines(record: BenchRecord) -> list[str]:
    """Where and with what it ran, in a few lines."""
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
    """What stands under a table: skipped sizes, remarks, and the findings as the caller rendered them."""
    lines = [f"skipped: {line}" for line in record.skipped]
    lines += [f"remark: {line}" for line in record.remarks]
    if not record.complete:
        lines.append("partial: it was stopped, or a part of it failed; this is what was measured until then")
    return [*lines, *findings]


def text(record: BenchRecord, findings: Sequence[str]) -> str:
    lines = [*about_lines(record), "", table_text(record), *end_lines(record, findings)]
    return "\n".join(lines)
