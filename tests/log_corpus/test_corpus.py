"""The corpus of logs: the first cause is right in real error texts inside noise, and healthy logs have no finding."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from log_corpus.noise import SHAPES, Case, broken_log, cases, healthy, healthy_log
from log_corpus.score import PAGE, Answer, answer, page_text, read
from looping import each
from windlass.diagnose.doctor.log_findings import kind_of
from windlass.run.failure.signs import log_signs

SEEDS = range(3)
_SHARE = 10
_RIGHT = 0.95


def _misses(answers: Sequence[Answer]) -> str:
    return "\n".join(f"{one.case.at} ({one.case.kind}): {one.told}" for one in answers if not one.right)


def _check(chosen: Sequence[Case], seeds: Sequence[int]) -> None:
    answers = [answer(case, seed) for case in chosen for seed in seeds]
    assert sum(one.right for one in answers) >= _RIGHT * len(answers), _misses(answers)


def test_the_corpus_names_what_the_table_knows_and_each_thread_once() -> None:
    found = cases()
    kinds = {kind_of(sign.title) for sign in log_signs() if sign.kind == "cause"} | {"error-of-the-script"}
    assert len(found) >= 150 and len({case.at for case in found}) == len(found)
    assert {case.kind for case in found} <= kinds
    assert len(healthy()) >= 30 and 0.2 < sum(case.kept_aside for case in found) / len(found) < 0.4


def test_the_first_cause_of_every_tenth_case_is_right() -> None:
    _check(cases()[::_SHARE], SEEDS)


def test_a_healthy_log_has_no_finding() -> None:
    for row in healthy()[::4]:
        assert not [one for one in read(healthy_log(row, 0)).findings if one.severity != "ok"], row["name"]


@each("shape", SHAPES)
def test_the_same_seed_gives_the_same_log(shape: str) -> None:
    case = cases()[0]
    assert broken_log(case, 7, shape) == broken_log(case, 7, shape)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("kept_aside", [False, True])
def test_the_first_cause_is_right_in_the_whole_corpus(kept_aside: bool) -> None:
    _check([case for case in cases() if case.kept_aside == kept_aside], SEEDS)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_no_healthy_log_has_a_finding(shape: str) -> None:
    for row in healthy():
        report = read(healthy_log(row, 1, shape))  # type: ignore[arg-type]
        assert not [one for one in report.findings if one.severity != "ok"], row["name"]


@pytest.mark.slow
def test_the_page_has_the_table_of_this_run() -> None:
    assert PAGE.read_text() == page_text(), "renew it: scripts/log_corpus_table.py"
