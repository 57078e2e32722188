"""The formulas, checked against published figures that were not made by this code."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looping import each
from windlass.bench import measure
from windlass.errors import UsageError


def test_busbw_matches_the_published_two_node_all_reduce() -> None:
    # 8 ranks on 2 nodes, 8 GiB, 94.75 ms: nccl-tests printed 158.65 GB/s.
    assert measure.busbw("all_reduce", 8 * 2**30, 94.75e-3, 8).value == pytest.approx(158.65, abs=0.02)


@each(
    ("op", "factor"),
    [("all_reduce", 1.75), ("all_gather", 0.875), ("reduce_scatter", 0.875), ("alltoall", 0.875), ("broadcast", 1.0)],
)
def test_bus_factor_of_eight_ranks(op: measure.Collective, factor: float) -> None:
    assert measure.bus_factor(op, 8) == pytest.approx(factor)


def test_one_rank_moves_nothing_in_an_all_reduce() -> None:
    assert measure.bus_factor("all_reduce", 1) == 0.0


def test_published_llama_run_is_reproduced_by_the_6n_formula() -> None:
    # 11.45 samples/s of 4096 tokens on 8 devices, N taken as 7e9: published as 246.2 TFLOP/s per device.
    operations = measure.flops_6n(7_000_000_000, 4096)
    assert measure.tflops(operations, 8 / 11.45, formula="6*N*tokens").value == pytest.approx(246.2, abs=0.2)


def test_palm_and_causal_counts_differ_by_the_known_amounts() -> None:
    # Llama-3-8B at 8192: 57.9 and 51.5 GFLOP per token (N without the embedding) in two well-known tools.
    without_embedding = 8_030_261_248 - 128_256 * 4096
    palm = measure.flops_palm(without_embedding, 1, layers=32, width=4096, sequence=8192)
    causal = measure.flops_causal(without_embedding, 1, layers=32, width=4096, sequence=8192)
    assert palm / 1e9 == pytest.approx(57.9, abs=0.1)
    assert causal / 1e9 == pytest.approx(51.5, abs=0.1)


def test_a_figure_names_its_formula() -> None:
    assert measure.busbw("all_gather", 1, 1.0, 2).formula == "busbw = algbw*(n-1)/n"
    assert measure.tflops(1e12, 1.0, formula="6*N*tokens").formula == "6*N*tokens"


def test_unknown_collective_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        measure.bus_factor("allreduce", 8)  # type: ignore[arg-type]
    assert "all_reduce" in str(caught.value.hint)


@each("time_s", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_time_is_an_error_not_an_infinite_bandwidth(time_s: float) -> None:
    with pytest.raises(UsageError):
        measure.algbw(1, time_s)


def test_no_samples_is_an_error() -> None:
    with pytest.raises(UsageError):
        measure.spread(())


def test_percentiles_of_a_known_list() -> None:
    samples = [float(i) for i in range(1, 12)]
    assert measure.percentile(samples, 50) == 6.0
    assert measure.percentile(samples, 90) == 10.0
    assert measure.percentile(samples, 25) == 3.5


@given(st.lists(st.floats(min_value=1e-6, max_value=1e6), min_size=1, max_size=50))
def test_spread_is_ordered(samples: list[float]) -> None:
    s = measure.spread(samples)
    assert s.low <= s.median <= s.p75 <= s.p90 <= s.p95 <= s.high
    assert s.n == len(samples)
