"""The search for settings: on objectives whose best is known, with noise, drift, failures and plateaus."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from looping import each
from windlass.bench.tune.search import Search, SearchResult, Trial
from windlass.bench.tune.space import Choice, TunedSetting

ALGO = TunedSetting(name="ALGO", values=("unset", "Ring", "Tree"))
PROTO = TunedSetting(name="PROTO", values=("unset", "LL", "Simple"))
THREADS = TunedSetting(name="THREADS", values=("1", "2", "4", "8", "16"), ordered=True)
SPACE = (ALGO, PROTO, THREADS)
DEFAULT = {"ALGO": "unset", "PROTO": "unset", "THREADS": "1"}


def search(
    cost: Callable[[Choice], float | None], *, budget: int = 80, noise: float = 0.0, seed: int = 3
) -> SearchResult:
    rnd = random.Random(seed)

    def measure(choice: Choice) -> Trial:
        value = cost(choice)
        if value is None:
            return Trial(choice=dict(choice), failure="it hung")
        return Trial(choice=dict(choice), value=value * (1 + noise * (2 * rnd.random() - 1)))

    return Search(SPACE, DEFAULT, measure, repeats=3, budget=budget).run()


def planted(choice: Choice) -> float:
    """Best: Tree and Simple together with 4 threads."""
    value = 100.0 - {"unset": 0, "Ring": -5, "Tree": 10}[choice["ALGO"]]
    value -= {"unset": 0, "LL": -10, "Simple": 8}[choice["PROTO"]]
    return value + 3 * abs(int(choice["THREADS"]).bit_length() - 3)


@each("seed", range(10))
def test_a_planted_optimum_is_found(seed: int) -> None:
    verdict = search(planted, noise=0.004, seed=seed)
    assert verdict.winner == {"ALGO": "Tree", "PROTO": "Simple", "THREADS": "4"}
    assert verdict.gain is not None
    assert verdict.gain > 0.2


@each("seed", range(10))
def test_noise_alone_is_no_verdict(seed: int) -> None:
    verdict = search(lambda choice: 100.0, noise=0.05, seed=seed)
    assert verdict.winner == {}
    assert verdict.default_value == pytest.approx(100, rel=0.06)


def test_a_gain_below_twice_the_spread_is_no_verdict() -> None:
    verdict = search(lambda choice: 99.0 if choice["ALGO"] == "Ring" else 100.0, noise=0.02, seed=1)
    assert verdict.winner == {}


def test_a_choice_that_loses_the_last_turns_is_not_told_to_have_gained() -> None:
    tried = 0

    def once(choice: Choice) -> float:
        nonlocal tried
        tried += choice["ALGO"] == "Ring"
        return 90.0 if choice["ALGO"] == "Ring" and tried <= 3 else 110.0 if choice["ALGO"] == "Ring" else 100.0

    verdict = search(once)
    assert verdict.winner == {}
    assert verdict.why == "the best choice was no better when both were tried again in turn"


def test_leaving_it_unset_is_a_result() -> None:
    default = {**DEFAULT, "ALGO": "Ring"}

    def measure(choice: Choice) -> Trial:
        return Trial(choice=dict(choice), value=90.0 if choice["ALGO"] == "unset" else 100.0)

    verdict = Search((ALGO,), {"ALGO": default["ALGO"]}, measure, repeats=2, budget=40).run()
    assert verdict.winner == {"ALGO": "unset"}


def test_a_trial_that_fails_is_a_result_and_is_not_tried_again() -> None:
    verdict = search(lambda choice: None if choice["ALGO"] == "Tree" else planted(choice))
    assert verdict.winner["PROTO"] == "Simple"
    assert "ALGO" not in verdict.winner
    failed = [tuple(sorted(trial.choice.items())) for trial in verdict.trials if trial.failure]
    assert failed
    assert len(failed) == len(set(failed))


def test_a_default_that_fails_ends_the_search_with_its_reason() -> None:
    verdict = search(lambda choice: None)
    assert (verdict.winner, verdict.default_value) == ({}, None)
    assert "it hung" in verdict.why
    assert len(verdict.trials) == 1


def test_the_budget_is_kept_and_the_last_turns_are_of_it() -> None:
    verdict = search(planted, budget=20)
    assert len(verdict.trials) <= 20
    assert [trial.final for trial in verdict.trials].count(True) in (0, 6)


def test_drift_is_told_and_does_not_make_a_winner() -> None:
    count = 0

    def slower(choice: Choice) -> float:
        nonlocal count
        count += 1
        return 100.0 - min(count, 40)  # the machine gets faster while we look, whatever we choose

    verdict = search(slower, budget=60)
    assert verdict.winner == {}
    if verdict.drift is not None:
        assert verdict.drift < 0


def test_what_is_clearly_worse_is_looked_at_once() -> None:
    verdict = search(lambda choice: 200.0 if choice["ALGO"] == "Ring" else planted(choice))
    rings = [tuple(sorted(t.choice.items())) for t in verdict.trials if t.choice["ALGO"] == "Ring"]
    assert len(rings) == len(set(rings)) > 0
