"""A training run as the message of its rank: plain values with the samples, and the figures with their formulas."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from windlass.bench import measure
from windlass.bench.options import as_values
from windlass.bench.train.loop import LlmResult
from windlass.bench.train.options import llama_size
from windlass.bench.train.resnet_loop import ResNetResult


def llm_message(result: LlmResult) -> dict[str, Any]:
    """What a language-model run measured. Rates are per device, by the median step."""
    options, size = result.options, llama_size(result.options.model)
    tokens = options.tokens_per_micro_step * options.accumulation
    median = measure.percentile(result.step_s, 50)
    shape = {"layers": size.layers, "width": size.width, "sequence": options.sequence}
    n = result.parameters
    figures = {
        "tokens_per_s_per_device": measure.rate(tokens, median, unit="tokens/s"),
        "tflops_6n": measure.tflops(measure.flops_6n(n, tokens), median, formula="6*N*tokens"),
        "tflops_palm": measure.tflops(
            measure.flops_palm(n, tokens, **shape), median, formula="(6*N + 12*L*h*s)*tokens"
        ),
        "tflops_causal": measure.tflops(
            measure.flops_causal(n, tokens, **shape), median, formula="(6*N + 6*L*h*s)*tokens"
        ),
    }
    return _message("llm", result, figures) | {"gradient_norms": list(result.gradient_norms)}


def resnet_message(result: ResNetResult) -> dict[str, Any]:
    """What a ResNet run measured. Rates are per device, by the median step; mean ± 1.96 σ as Horovod's
    benchmark prints it."""
    rates = [result.options.batch / s for s in result.step_s]
    overall = measure.spread(rates)
    median = measure.percentile(result.step_s, 50)
    figures = {
        "images_per_s_per_device": measure.rate(result.options.batch, median, unit="images/s"),
        "images_per_s_whole_run": measure.rate(
            result.options.batch * len(result.step_s), sum(result.step_s), unit="images/s"
        ),
        "images_per_s_mean": measure.Figure(value=overall.mean, unit="images/s", formula="mean of batch/step"),
        "images_per_s_band": measure.Figure(value=1.96 * overall.stdev, unit="images/s", formula="1.96*stdev"),
    }
    return _message("resnet", result, figures)


def check_loss(losses: tuple[float, ...]) -> tuple[str, ...]:
    """What is wrong with a loss curve, in words; nothing where it is finite and falls."""
    wrong = []
    if not all(math.isfinite(loss) for loss in losses):
        wrong.append("the loss is not finite")
    elif len(losses) >= 6:
        third = len(losses) // 3
        first, last = sum(losses[:third]) / third, sum(losses[-third:]) / third
        if last >= first:
            wrong.append(f"the loss does not fall: {first:.4f} in the first third, {last:.4f} in the last")
    return tuple(wrong)


def _message(case: str, result: LlmResult | ResNetResult, figures: dict[str, measure.Figure]) -> dict[str, Any]:
    return {
        "case": case,
        "options": as_values(result.options),
        "ranks": result.ranks,
        "samples": {"step_s": list(result.step_s)},
        "figures": {name: asdict(figure) for name, figure in figures.items()},
        "losses": list(result.losses),
        "loss_problems": list(check_loss(result.losses)),
        "peak_memory_bytes": result.peak_memory_bytes,
        "breakdown": None if result.breakdown is None else asdict(result.breakdown),
    }
