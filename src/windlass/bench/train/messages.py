"""Convert a training run to the message of its rank: plain values with samples, and figures with formulas."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from windlass.bench import measure
from windlass.bench.options import as_values
from windlass.bench.train.options import LlmOptions, ResNetOptions, llama_size
from windlass.bench.train.steps import TrainResult


def train_message(result: TrainResult) -> dict[str, Any]:
    """Return the measurements of a run. Rates are per device, by the median step."""
    options = result.options
    if isinstance(options, LlmOptions):
        case, figures = "llm", _llm_figures(result, options)
    else:
        case, figures = "resnet", _resnet_figures(result, options)
    return {
        "case": case,
        "options": as_values(options),
        "ranks": result.ranks,
        "samples": {"step_s": list(result.step_s)},
        "figures": {name: asdict(figure) for name, figure in figures.items()},
        "losses": list(result.losses),
        "gradient_norms": list(result.gradient_norms),
        "loss_problems": list(check_loss(result.losses)),
        "peak_memory_bytes": result.peak_memory_bytes,
        "breakdown": None if result.breakdown is None else asdict(result.breakdown),
    }


def _llm_figures(result: TrainResult, options: LlmOptions) -> dict[str, measure.Figure]:
    size = llama_size(options.model)
    tokens = options.tokens_per_micro_step * options.accumulation
    median = measure.percentile(result.step_s, 50)
    shape = {"layers": size.layers, "width": size.width, "sequence": options.sequence}
    n = result.parameters
    return {
        "tokens_per_s_per_device": measure.rate(tokens, median, unit="tokens/s"),
        "tflops_6n": measure.tflops(measure.flops_6n(n, tokens), median, formula="6*N*tokens"),
        "tflops_palm": measure.tflops(
            measure.flops_palm(n, tokens, **shape), median, formula="(6*N + 12*L*h*s)*tokens"
        ),
        "tflops_causal": measure.tflops(
            measure.flops_causal(n, tokens, **shape), median, formula="(6*N + 6*L*h*s)*tokens"
        ),
    }


def _resnet_figures(result: TrainResult, options: ResNetOptions) -> dict[str, measure.Figure]:
    """Return the figures of a ResNet run, with mean ± 1.96 σ as in Horovod's benchmark."""
    rates = [options.batch / s for s in result.step_s]
    overall = measure.spread(rates)
    median = measure.percentile(result.step_s, 50)
    return {
        "images_per_s_per_device": measure.rate(options.batch, median, unit="images/s"),
        "images_per_s_whole_run": measure.rate(options.batch * len(result.step_s), sum(result.step_s), unit="images/s"),
        "images_per_s_mean": measure.Figure(value=overall.mean, unit="images/s", formula="mean of batch/step"),
        "images_per_s_band": measure.Figure(value=1.96 * overall.stdev, unit="images/s", formula="1.96*stdev"),
    }


def check_loss(losses: tuple[float, ...]) -> tuple[str, ...]:
    """Return the problems of a loss curve as phrases. The result is empty if the loss is finite and falls."""
    wrong = []
    if not all(math.isfinite(loss) for loss in losses):
        wrong.append("the loss is not finite")
    elif len(losses) >= 6:
        third = len(losses) // 3
        first, last = sum(losses[:third]) / third, sum(losses[-third:]) / third
        if last >= first:
            wrong.append(f"the loss does not fall: {first:.4f} in the first third, {last:.4f} in the last")
    return tuple(wrong)
