"""Rows of training runs, of the language model and of ResNet, from what their ranks sent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from windlass.base.notation.counts import counted
from windlass.bench.measure import Figure
from windlass.bench.record import Label, Measurement
from windlass.bench.runner import PartResult


def row_of(result: PartResult, **labels: Label) -> Measurement | None:
    """The row of one training launch, with the step times of all ranks (of the first alone where it did not get to its
    end); None where no step was measured."""
    last = _last_sent(result)
    if last is None:
        return None
    steps = sorted(result.of_kind("steps"), key=lambda sent: int(sent["rank"]))
    all_steps = tuple(float(value) for sent in steps for value in sent["step_s"])
    return train_measurement(last["record"], nodes=result.plan.nodes, step_s=all_steps or None, **labels)


def train_measurement(
    raw: Mapping[str, Any], *, nodes: int, step_s: tuple[float, ...] | None = None, **labels: Label
) -> Measurement:
    """The row of one training run; `step_s` where samples of more ranks than the first are known."""
    options = raw["options"]
    row: dict[str, Label] = {
        "model": options["model"],
        "precision": options["precision"],
        "parallel": options["parallel"],
        "batch": options.get("batch") or options.get("micro_batch"),
        "ranks": int(raw["ranks"]),
        "nodes": nodes,
    }
    for name in ("sequence", "accumulation", "checkpointing"):
        if options.get(name) not in (None, 1, "none"):
            row[name] = options[name]
    if options.get("fp16_allreduce"):
        row["gradients"] = "fp16"
    samples = {"step_s": step_s or tuple(raw["samples"]["step_s"]), "loss": tuple(raw["losses"])}
    if raw.get("gradient_norms"):
        samples["gradient_norm"] = tuple(raw["gradient_norms"])
    figures = {name: msgspec.convert(value, Figure) for name, value in raw["figures"].items()}
    return Measurement(labels=row | labels, samples=samples, figures=figures | _memory_and_profile(raw))


def _memory_and_profile(raw: Mapping[str, Any]) -> dict[str, Figure]:
    """Memory, and where the time of one more step went, where that was asked."""
    found = {}
    if raw.get("peak_memory_bytes"):
        how = "most that tensors took at once, first rank"
        found["peak_memory"] = Figure(value=raw["peak_memory_bytes"] / 2**30, unit="GiB", formula=how)
    profile = raw.get("breakdown") or {}
    for kind, value in [*profile.get("kinds_ms", ()), *([["idle", profile["idle_ms"]]] if profile else ())]:
        found[f"profile_{kind}"] = Figure(value=value, unit="ms", formula="one step under the profiler, first rank")
    return found


def _last_sent(result: PartResult) -> dict[str, Any] | None:
    """The last that a launch sent of its training: all of it, or what was measured until it was stopped."""
    trained = result.of_kind("train")
    return trained[-1] if trained else None


def decided_options(results: Iterable[PartResult]) -> dict[str, Any]:
    """What the ranks decided to do, in full: what was asked, and the defaults for the device."""
    decided = [last["record"]["options"] for result in results if (last := _last_sent(result))]
    return dict(decided[0]) if decided else {}


def loss_remarks(results: Iterable[PartResult], *, must_fall: bool = True) -> list[str]:
    """What is wrong with losses, in words. Without `must_fall` they only have to be finite."""
    found = []
    for result in results:
        last = _last_sent(result)
        if last is None:
            continue
        finite = all(loss is not None and math.isfinite(loss) for loss in last["record"]["losses"])
        if must_fall or not finite:
            found += [f"{result.part.name}: {problem}" for problem in last["record"]["loss_problems"]]
        if not last.get("whole", True):
            steps = len(last["record"]["samples"]["step_s"])
            found.append(f"{result.part.name}: ended early; these are the first {counted(steps, 'step')} of rank 0")
    return found
