"""A result as a record: plain values with the samples, the derived figures with their formulas, and where it ran."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from windlass.bench import measure
from windlass.bench.train.device import Device
from windlass.bench.train.environment import software
from windlass.bench.train.loop import LlmResult
from windlass.bench.train.options import LlmOptions, ResNetOptions, llama_size
from windlass.bench.train.resnet_loop import ResNetResult
from windlass.errors import WindlassError

RECORD_VERSION = 1


def llm_record(result: LlmResult, command: tuple[str, ...]) -> dict[str, Any]:
    """The record of a language-model run. Rates are per device, by the median step."""
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
    record = _common("llm", options, result.device, result.ranks, command)
    record |= {
        "parameters": n,
        "tokens_per_step_per_device": tokens,
        "tokens_per_step": tokens * result.ranks,
        "gradient_norms": list(result.gradient_norms),
    }
    return record | _measured(result, figures)


def resnet_record(result: ResNetResult, command: tuple[str, ...]) -> dict[str, Any]:
    """The record of a ResNet run. Rates are per device, by the median step; mean ± 1.96 σ as the synthetic benchmark
    has it."""
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
    record = _common("resnet", result.options, result.device, result.ranks, command)
    return record | {"parameters": result.parameters} | _measured(result, figures)


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


def _common(
    case: str, options: LlmOptions | ResNetOptions, device: Device, ranks: int, command: tuple[str, ...]
) -> dict[str, Any]:
    shown = {key: str(value) if isinstance(value, Path) else value for key, value in asdict(options).items()}
    return {
        "record": "windlass.bench.train",
        "version": RECORD_VERSION,
        "case": case,
        "command": list(command),
        "options": shown,
        "ranks": ranks,
        "device": {
            "kind": device.kind,
            "vendor": device.vendor,
            "name": device.name,
            "memory_bytes": device.memory_bytes,
        },
        "software": software(),
    }


def _measured(result: LlmResult | ResNetResult, figures: dict[str, measure.Figure]) -> dict[str, Any]:
    return {
        "samples": {"step_s": list(result.step_s)},
        "spread": {"step_s": asdict(measure.spread(result.step_s))},
        "figures": {name: asdict(figure) for name, figure in figures.items()},
        "losses": list(result.losses),
        "loss_problems": list(check_loss(result.losses)),
        "peak_memory_bytes": result.peak_memory_bytes,
        "breakdown": None if result.breakdown is None else asdict(result.breakdown),
    }


def refuse_bad_loss(record: dict[str, Any]) -> None:
    """Raise where the record's loss shows that the step did not train: its speed then means nothing."""
    if record["loss_problems"]:
        raise WindlassError("; ".join(record["loss_problems"]), hint="the figures of this run must not be used")
