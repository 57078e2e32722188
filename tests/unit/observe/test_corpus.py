"""Watch and report on a corpus of seeded runs: every fault is named, and healthy runs get no warning."""

from __future__ import annotations

import msgspec
import pytest

from planning import plan_for
from unit.observe.corpus import EXPECTED, FAULTS, ONLY_HISTORY, ONLY_LIVE, Case, make_case
from windlass.diagnose.report.measured import measure
from windlass.diagnose.report.rules import Subject
from windlass.diagnose.report.rules import find as find_all
from windlass.diagnose.watch.findings import find as find_now
from windlass.model.finding import SERIOUS, Finding
from windlass.model.plan import Plan

_PLAN = plan_for("workstation", "true", ranks_per_node=1)[0]


def _plan(case: Case) -> Plan:
    topology = msgspec.structs.replace(_PLAN.topology, allowed=tuple(range(case.cores)))
    return msgspec.structs.replace(_PLAN, topology=topology, ranks_per_node=case.ranks_per_node)


def _watched(case: Case) -> tuple[Finding, ...]:
    return find_now(case.job)


def _reported(case: Case) -> tuple[Finding, ...]:
    job = msgspec.structs.replace(case.job, ended=True)
    return find_all(Subject(plan=_plan(case), measured=measure(job, case.head, case.lines)))


def _serious(found: tuple[Finding, ...]) -> list[str]:
    return [finding.kind for finding in found if finding.severity in SERIOUS]


def _named(case: Case, found: tuple[Finding, ...]) -> bool:
    """Whether the fault is there with its culprit, and no other one is."""
    hits = [finding for finding in found if finding.kind == EXPECTED[case.fault]]
    others = set(_serious(found)) - {EXPECTED[case.fault]}
    if not hits or others:
        return False
    facts, subject = hits[0].facts, hits[0].subject
    ranks = not case.ranks or set(facts.get("ranks", ())) == case.ranks
    return ranks and all(host in subject or host in facts.get("hosts", ()) for host in case.hosts)


def _missed(cases: list[Case]) -> list[tuple[str, int, str, list[str]]]:
    missed = []
    for case in cases:
        for name, look, without in (("watch", _watched, ONLY_HISTORY), ("report", _reported, ONLY_LIVE)):
            found = look(case)
            good = _named(case, found) if case.fault else not _serious(found)
            if case.fault not in without and not good:
                missed.append((name, case.seed, case.fault, _serious(found)))
    return missed


def _corpus(seeds: range, *, aside: bool | None = None) -> list[Case]:
    cases = [make_case(seed, fault) for seed in seeds for fault in ("", *FAULTS)]
    return [case for case in cases if aside is None or case.aside == aside]


def test_a_tenth_of_the_corpus_is_judged_right() -> None:
    assert _missed(_corpus(range(3), aside=False)) == []


@pytest.mark.slow
def test_the_whole_corpus_is_judged_right() -> None:
    developed, aside = _corpus(range(30), aside=False), _corpus(range(30), aside=True)
    healthy = [make_case(seed, "") for seed in range(100, 200)]
    assert _missed(healthy) == []
    missed = _missed(developed)
    assert len(missed) <= 0.01 * len(developed), missed
    missed = _missed(aside)
    assert len(missed) <= 0.05 * len(aside), missed
