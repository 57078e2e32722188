"""Two records against each other, and against their noise."""

from __future__ import annotations

import random
from pathlib import Path

from unit.bench.made import collectives_record, told, training_rowed
from windlass.bench import compare
from windlass.bench.reading import read_record
from windlass.bench.record import BenchRecord, new_record


def _noisy(middle: float, spread: float, seed: int, count: int = 20) -> list[float]:
    rng = random.Random(seed)
    return [middle * (1 + rng.gauss(0, spread)) for _ in range(count)]


def _record(steps: list[float], **more: object) -> BenchRecord:
    return new_record("ddp", rows=(training_rowed("1M/4G", 4, 1, steps),), **more)


def _word(a: list[float], b: list[float]) -> str:
    (found,) = compare.compare(_record(a), _record(b)).differences
    return found.word


def test_a_clear_difference_is_told() -> None:
    assert _word(_noisy(0.1, 0.01, 1), _noisy(0.08, 0.01, 2)) == "faster"
    assert _word(_noisy(0.1, 0.01, 1), _noisy(0.12, 0.01, 2)) == "slower"


def test_two_runs_of_the_same_are_the_same() -> None:
    for seed in range(50):
        assert _word(_noisy(0.1, 0.05, seed), _noisy(0.1, 0.05, seed + 1000)) == "same"


def test_the_same_difference_in_more_noise_is_no_difference() -> None:
    assert _word(_noisy(0.1, 0.005, 1), _noisy(0.103, 0.005, 2)) == "slower"
    assert _word(_noisy(0.1, 0.1, 1), _noisy(0.103, 0.1, 2)) == "same"


def test_faster_and_slower_need_the_same_evidence() -> None:
    a, b = [1.0, 2.0, 9.0, 9.5, 9.0, 1.0, 8.0, 10.0], [1.6, 1.5, 8.0, 1.7, 1.2, 9.0, 1.6, 7.0]
    assert _word(a, b) == _word(b, a) == "same"


def test_one_outlier_does_not_make_a_verdict() -> None:
    steady = _noisy(0.1, 0.01, 1)
    assert _word(steady, [*_noisy(0.1, 0.01, 2), 9.0]) == "same"


def test_too_few_samples_are_said_to_be_that() -> None:
    assert _word([0.1], [0.05]) == "unsure"
    text = compare.text(_record([0.1]), _record([0.05]), ("a.json", "b.json"))
    assert "too few samples to say" in text


def test_what_differs_besides_the_figures_is_told() -> None:
    a = _record([0.1] * 5, device={"name": "GH200"}, environment={"NCCL_ALGO": "Tree"})
    b = _record([0.1] * 5, device={"name": "H200"}, environment={})
    assert compare.compare(a, b).unlike == ("device: GH200 / H200", "NCCL_ALGO: Tree / unset")


def test_rows_of_only_one_record_are_counted() -> None:
    found = compare.compare(collectives_record(told(1024, 5.0), told(2048, 5.0)), collectives_record(told(2048, 5.0)))
    assert (len(found.differences), found.only_a, found.only_b) == (1, 1, 0)


GOLDEN = """\
A: collectives on somewhere: 2 nodes x 4 NVIDIA GH200 120GB  (a.json)
B: collectives on somewhere: 2 nodes x 4 NVIDIA GH200 120GB  (b.json)

case                                                    A            B   B against A    noise
all_reduce 1 MiB out-of-place                    100.0 us      80.0 us        +25.0%     1.0%  faster
all_reduce 1 GiB out-of-place                    12.17 ms     12.18 ms         -0.0%     1.0%  same

of 2 cases, B is faster in 1, the same within noise in 1"""


def test_the_text_of_a_comparison() -> None:
    a = collectives_record(told(1 << 20, 100.0), told(1 << 30, 12174.0))
    b = collectives_record(told(1 << 20, 80.0), told(1 << 30, 12180.0))
    assert compare.text(a, b, ("a.json", "b.json")) == GOLDEN


def test_records_without_a_common_case_say_so() -> None:
    a, b = collectives_record(told(1024, 5.0)), _record([0.1] * 5)
    assert "no case in common" in compare.text(a, b, ("a", "b"))


def test_one_model_in_two_precisions_is_compared_and_the_difference_is_named() -> None:
    folder = Path(__file__).parents[3] / "results" / "h200" / "commands"
    found = compare.compare(*(read_record(folder / f"llama2-7b-{name}.json") for name in ("bf16", "fp8")))
    assert [one.word for one in found.differences] == ["faster"]
    assert "precision: bf16 / fp8" in found.unlike


def test_two_models_are_not_compared() -> None:
    rows = [training_rowed("1M/4G", 4, 1, [0.1] * 5), training_rowed("1M/4G", 4, 1, [0.1] * 5)]
    rows[1].labels["model"] = "resnet101"
    found = compare.compare(*(new_record("ddp", rows=(row,)) for row in rows))
    assert not found.differences
    assert (found.only_a, found.only_b) == (1, 1)
