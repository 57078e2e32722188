"""Run `explain-log` on the corpus and count: the table of docs/reference/verdicts-logs.md."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from log_corpus.noise import Case, Log, Shape, broken_log, cases, healthy, healthy_log
from windlass.diagnose.doctor.explain_log import LogReader
from windlass.diagnose.doctor.log_findings import LogReport


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
        and (first.kind, first.facts.get("origin")) == (case.kind, case.origin)
        and log.subject in {first.subject, None}
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


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "verdicts-logs.md"
_AREAS = {
    "collectives": "NCCL, RCCL, oneCCL",
    "devices": "CUDA, ROCm, Level Zero, MIOpen, Triton",
    "environments": "containers, Python environments, file systems, limits",
    "fabric": "libfabric, CXI, UCX, MPI",
    "frameworks": "torch, DeepSpeed, Hugging Face, Lightning, JAX, Ray",
    "schedulers": "Slurm, PBS, PALS, Flux, Open MPI",
}
_PAGE = """# How often explain-log is right

`windlass explain-log` is measured with {count} error texts of public issues. A seeded generator puts each of them
inside the output of 2 to 16 ranks: progress bars, warnings, labels of launchers, and the errors of other ranks that
follow. An answer is right if the first finding has the right kind and origin, names the right rank, and its advice
contains the remedy. Three in ten cases were kept aside, by a hash of the address of the thread, until the signs were
written. The same people collected the texts and wrote the signs, so texts of other threads may do worse.

| area | cases | right | missed | kept aside | right |
|---|---|---|---|---|---|
{rows}

{misses}

{healthy} logs of healthy runs, with handled tracebacks, retries, warnings and deprecations, give {findings}.

The cases are in `tests/log_corpus`, each with the address of its thread. `scripts/log_corpus_table.py` renews this
page, and the slow tests compare it with a run.
"""


def page_text() -> str:
    """The page for one run over the corpus, with the first seed."""
    answers = [answer(case, 0) for case in cases()]
    known = {row[0]: row[1:] for row in table(one for one in answers if not one.case.kept_aside)}
    aside = {row[0]: row[1:] for row in table(one for one in answers if one.case.kept_aside)}
    sums = [tuple(map(sum, zip(*part.values(), strict=True))) for part in (known, aside)]
    rows = [
        f"| {_AREAS[area]} | {n} | {right} | {missed} | {aside[area][0]} | {aside[area][1]} |"
        for area, (n, right, missed) in known.items()
    ]
    rows.append(f"| all | {sums[0][0]} | {sums[0][1]} | {sums[0][2]} | {sums[1][0]} | {sums[1][1]} |")
    missed = [
        f"- `{one.case.lines[0][:80]}` (`{one.case.at.partition('.com/')[2]}`): {one.case.kind}"
        for one in answers
        if not one.right
    ]
    logs = [healthy_log(row, seed) for row in healthy() for seed in range(3)]
    found = sum(any(one.severity != "ok" for one in read(log).findings) for log in logs)
    return _PAGE.format(
        count=len(answers),
        rows="\n".join(rows),
        misses="Missed:\n\n" + "\n".join(missed) if missed else "None was missed.",
        healthy=len(logs),
        findings="no finding" if not found else f"findings in {found}",
    )
