"""Every command that judges a run, on a corpus of seeded runs: faults are named, and healthy runs get no warning."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

import pytest

from node_corpus.table import node_table
from unit.observe.corpus import ASIDE, FAULTS, Asked, Case, make_case
from windlass.diagnose.watch.findings import find
from windlass.diagnose.watch.rules import check
from windlass.model.finding import SERIOUS, Finding
from windlass.run.failure.ends import End
from windlass.run.failure.rank_states import Frames, RankState, straggler
from windlass.run.failure.root_cause import Cause, Observed, find_cause

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "verdicts.md"
RECORDED = Path(__file__).parents[3] / "results" / "real" / "verdicts.json"
_HEALTHY, _HEALTHY_ASIDE = 80, 35
_SIDE = {"lost": {"stalled"}, "oversubscribed": {"noise"}}
"""Findings that are true beside the expected one."""


class Judged(NamedTuple):
    asked: Asked | str
    case: Case
    good: bool
    said: list[str]


def _named(case: Case, found: tuple[Finding, ...]) -> bool:
    """Whether the fault is there with its culprit, and no other one is."""
    expected = FAULTS[case.fault]
    hits = [finding for finding in found if finding.kind == expected.kind]
    others = {finding.kind for finding in found if finding.severity in SERIOUS} - {expected.kind}
    if len(hits) != 1 or others - _SIDE.get(expected.kind, set()):
        return False
    facts = hits[0].facts
    if expected.culprit == "rank":
        return list(facts["ranks"]) == [case.rank]
    return expected.culprit != "host" or list(facts["hosts"]) == [case.host]


def _cause(case: Case) -> Cause:
    seen = case.seen
    states = tuple(RankState(rank=r, host=h, state=s, frames=Frames(f)) for r, h, s, f in seen.get("states", ()))
    return find_cause(
        Observed(
            exit_code=1,
            ends=tuple(End(at=at, rank=rank, host=host, code=code) for at, rank, host, code in seen.get("ends", ())),
            last_lines={rank: tuple(lines) for rank, lines in seen.get("lines", {}).items()},
            oom=frozenset(seen.get("oom", ())),
            hang=seen.get("hang"),
            straggler=straggler(states),
            lost=tuple(seen.get("lost", ())),
        )
    )


def _judge(case: Case) -> list[Judged]:
    found = {"watch": find(case.live), "report": check(case.ended).findings}
    if not case.fault:
        return [
            Judged(name, case, not any(one.severity in SERIOUS for one in findings), [one.line() for one in findings])
            for name, findings in found.items()
        ]
    judged = []
    for asked in FAULTS[case.fault].asked:
        if asked == "cause":
            cause, expected = _cause(case), FAULTS[case.fault]
            who = cause.rank == case.rank if expected.culprit == "rank" else cause.host == case.host
            judged.append(Judged(asked, case, cause.kind == expected.kind and who, [cause.line()]))
        else:
            judged.append(Judged(asked, case, _named(case, found[asked]), [one.line() for one in found[asked]]))
    return judged


def _missed(cases: list[Case]) -> list[str]:
    return [
        f"{one.asked}: {one.case.fault or 'healthy'} (seed {one.case.seed}, {one.case.shape}): {one.said}"
        for case in cases
        for one in _judge(case)
        if not one.good
    ]


def _cases(seeds: range, *faults: str) -> list[Judged]:
    return [one for seed in seeds for fault in faults for one in _judge(make_case(seed, fault))]


def test_a_tenth_of_the_corpus_is_judged_right() -> None:
    assert _missed([make_case(0, fault) for fault in FAULTS]) == []
    assert _missed([make_case(seed, "") for seed in range(_HEALTHY // 10)]) == []


@pytest.mark.slow
def test_the_whole_corpus_is_judged_right_and_its_page_is_up_to_date() -> None:
    """The page has what was missed. `WINDLASS_GOLDEN=write` renews it, with the real runs that were recorded last."""
    developed, aside = _cases(range(7), *FAULTS), _cases(range(ASIDE, ASIDE + 3), *FAULTS)
    healthy = _cases(range(_HEALTHY), "") + _cases(range(ASIDE, ASIDE + _HEALTHY_ASIDE), "")
    assert [(one.case.seed, one.said) for one in healthy if not one.good] == []
    for judged, least in ((developed, 0.99), (aside, 0.95)):
        missed = [f"{one.asked}: {one.case.fault} (seed {one.case.seed}): {one.said}" for one in judged if not one.good]
        assert len(missed) <= (1 - least) * len(judged), missed
    text = _page(developed, aside, healthy)
    if os.environ.get("WINDLASS_GOLDEN") == "write":
        PAGE.write_text(text)
    assert PAGE.read_text() == text, "renew it: WINDLASS_GOLDEN=write"


def _page(developed: list[Judged], aside: list[Judged], healthy: list[Judged]) -> str:
    real = real_runs()
    rows = []
    for fault, expected in FAULTS.items():
        cells = [_count([one for one in judged if one.case.fault == fault]) for judged in (developed, aside)]
        rows.append(f"| {fault} | `{expected.kind}` | {' | '.join(cells)} | {real.get(fault, '')} |")
    missed = [one for one in (*developed, *aside) if not one.good]
    lines = [f"- {one.case.fault}, seed {one.case.seed}, {one.asked}: {'; '.join(one.said)}" for one in missed]
    return _TEXT.format(
        nodes=node_table(),
        rows="\n".join(rows),
        healthy=_count(healthy),
        real_healthy=real.get("", "none"),
        missed="\n".join(lines)
        or "Of the simulated runs nothing was missed. The column of real runs has what was missed there.",
    )


def _count(judged: list[Judged]) -> str:
    return f"{sum(one.good for one in judged)} of {len(judged)}"


_TEXT = """# Verdicts: how often they are right

Every row is a fault that was planted in runs, one fault in each. A verdict is right if the finding has the expected
kind, names the rank or node that was broken, and no other warning is there. `make test-all` writes this page
(`WINDLASS_GOLDEN=write`); `make test` checks a tenth of it.

The runs of the first two columns are simulated from a seed (`tests/unit/observe/corpus.py`): 1 to 64 ranks, steps of
1 ms to 10 s, with and without evaluation, saves, devices and data loaders, with noise, clocks that differ and samples
that are missing. Rules were developed on seven of ten; three of ten were kept aside. Each is judged by every command
that shows the fault. The last column counts runs of real processes on one machine
(`tests/chaos/test_real_faults.py`); where it is empty, no such run was made. A slow rank is found where
DistributedDataParallel measures how long ranks wait, or where ranks do not wait for each other: elsewhere all ranks
show the same step time.

| fault | finding | developed on | kept aside | real runs |
|---|---|---|---|---|
{rows}

Healthy runs without a warning: {healthy} simulated, {real_healthy} real.

## Missed

{missed}

## Nodes: `windlass doctor`

Every row is a fault that was planted on one of four pretended nodes (`tests/node_corpus`): each has mounts, limits,
processes and variables of its own, and the doctor, its node programs and its ranks are real. Tools of the vendors of
devices are stand-ins. Where the remedy is `applied`, the check was clean after it.

{nodes}

## What the figures come from

`windlass watch`, `windlass report`, `windlass runs show` and `result.json` read the same samples and apply the same
rules. The readers of AMD's and Intel's tools have not run on such devices: findings that rest on them carry the note
"unverified reader".
"""


def real_runs() -> dict[str, str]:
    """`3 of 3` by fault, as the last recorded runs of `tests/chaos/test_real_faults.py` have it."""
    if not RECORDED.exists():
        return {}
    counts: dict[str, list[int]] = {}
    for row in json.loads(RECORDED.read_text()):
        counts.setdefault(row["fault"], []).append(int(row["good"]))
    return {fault: f"{sum(good)} of {len(good)}" for fault, good in counts.items()}
