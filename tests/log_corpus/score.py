"""Run `explain-log` on the corpus and count: the table of docs/reference/verdicts-logs.md."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import NamedTuple

from log_corpus.noise import Case, Log, Shape, broken_log
from windlass.diagnose.doctor.explain_log import LogReader, LogReport


class Answer(NamedTuple):
    case: Case
    right: bool
    told: str


def read(log: Log) -> LogReport:
    reader = LogReader()
    for name, data in log.files.items():
        reader.read(name, io.BytesIO(data), len(data))
    return reader.report()


def answer(case: Case, seed: int, shape: Shape | None = None) -> Answer:
    """Whether the first finding is the cause of this case, with its origin, rank and remedy."""
    log = broken_log(case, seed, shape)
    report = read(log)
    if not report.findings:
        return Answer(case, False, "nothing")
    first = report.findings[0]
    right = (
        first.severity == "error"
        and (first.kind, first.facts.get("origin"), first.subject) == (case.kind, case.origin, log.subject)
        and case.remedy.lower() in first.advice.lower()
    )
    told = f"{first.severity} {first.kind} ({first.facts.get('origin')}) {first.subject!r}: {first.facts.get('line')}"
    return Answer(case, right, told)


def table(answers: Iterable[Answer]) -> list[tuple[str, int, int, int]]:
    """For each area: cases, right, missed."""
    rows: dict[str, list[bool]] = {}
    for one in answers:
        rows.setdefault(one.case.area, []).append(one.right)
    return [(area, len(found), sum(found), len(found) - sum(found)) for area, found in sorted(rows.items())]
