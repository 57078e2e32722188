"""Checks every environment of the corpus, and writes the page with the results."""

from __future__ import annotations

import tempfile
from pathlib import Path

from env_corpus.faults import FAULTS
from env_corpus.healthy import HEALTHY
from env_corpus.make import EnvCase, Workshop, said

CASES = (*HEALTHY, *FAULTS)
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "verdicts-environments.md"
_HEAD = """\
# How often `windlass env check` is right

A script makes {count} small environments: {healthy} that work, and {faults} that were moved, damaged or mixed. Each
expectation was written before the check ran. An answer is right if its errors and warnings are the expected ones, no
more and no fewer.

**{right} of {count} right. {alarms} of {healthy} healthy environments with an alarm.**

The environments are in `tests/env_corpus`. `scripts/env_corpus_table.py` renews this page, and `make test-all`
compares it with a new run. `make test` checks every tenth environment. Packages and libraries are small stand-ins: the
venvs, ELF files, wheel tags and metadata are real, the code in them does nothing. In the first run, 68 of 70 were
right: the check took the remains of an interrupted pip for a second installation, and accepted a library that had lost
its last part.

| state | environment | expected | found |
|---|---|---|---|
"""


def answer(case: EnvCase, folder: Path, compiled: Path) -> frozenset[str]:
    return said(case.build(Workshop(folder, compiled)).check())


def page_text() -> str:
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        found = {case: answer(case, top / str(number), top / "compiled") for number, case in enumerate(CASES)}
    healthy = [case for case in CASES if not case.expected]
    rows = [f"| {c.group} | {c.what} | {_listed(c.expected)} | {_listed(found[c])} |" for c in CASES]
    head = _HEAD.format(
        count=len(CASES),
        healthy=len(healthy),
        faults=len(CASES) - len(healthy),
        right=sum(found[case] == case.expected for case in CASES),
        alarms=sum(bool(found[case]) for case in healthy),
    )
    return head + "\n".join(rows) + "\n"


def _listed(kinds: frozenset[str]) -> str:
    return ", ".join(sorted(kinds)) or "nothing"
