"""The measured part of a training run: warm-up, timed steps, one profiled step. Both models use it."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from windlass.bench.rank import World
from windlass.bench.train import parallel
from windlass.bench.train.device import Device, StepClock, peak_memory_bytes, synchronize
from windlass.bench.train.interruption import MessagePace, stop_kept
from windlass.bench.train.options import LlmOptions, ResNetOptions

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainResult:
    """The measurements of one run. `step_s` holds only the timed steps. `losses` holds all steps, warm-up first."""

    options: LlmOptions | ResNetOptions
    device: Device
    ranks: int
    parameters: int
    step_s: tuple[float, ...]
    losses: tuple[float, ...]
    gradient_norms: tuple[float, ...]
    peak_memory_bytes: int
    breakdown: Any = None
    """The return value of `MeasuredRun.profile`."""


SoFar = Callable[[TrainResult], None]


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """One run. The step appends to `losses` and, if it has them, to `norms`.

    `so_far` is called from time to time on the first rank with the measurements so far, so that a stopped run has sent
    them. `profile` runs one more step.
    """

    options: LlmOptions | ResNetOptions
    device: Device
    world: World
    parameters: int
    so_far: SoFar | None
    profile: Callable[[Callable[[], None], Device], Any] | None = None
    losses: list[Tensor] = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)

    def measure(self, one_step: Callable[[int], None]) -> TrainResult:
        """Call `one_step` with the number of each step and return the times of the last `steps`."""
        options, device, clock = self.options, self.device, StepClock(self.device)
        # Python's collector would stop one rank at a random moment while all other ranks wait for it.
        gc.collect()
        gc.disable()
        try:
            for step in range(options.warmup):
                one_step(step)
                log.info("warm-up %d/%d", step + 1, options.warmup)
            synchronize(device)
            clock.mark()
            pace = MessagePace()
            with stop_kept(self.world.size == 1, clock):
                for step in range(options.warmup, options.warmup + options.steps):
                    one_step(step)
                    clock.mark()
                    clock.wait_for(back=1)
                    log.info("step %d/%d", step - options.warmup + 1, options.steps)
                    if self.so_far is not None and self.world.first and pace.due():
                        self.so_far(self._result(clock, [float(loss) for loss in self.losses]))
            breakdown = None
            if self.profile is not None:
                breakdown = self.profile(lambda: one_step(options.warmup + options.steps), device)
        finally:
            gc.enable()
        mean = [parallel.mean_over_ranks(float(loss), self.world, options.parallel, device) for loss in self.losses]
        return self._result(clock, mean, breakdown)

    def _result(self, clock: StepClock, losses: list[float], breakdown: Any = None) -> TrainResult:
        return TrainResult(
            options=self.options,
            device=self.device,
            ranks=self.world.size,
            parameters=self.parameters,
            step_s=clock.intervals_s(),
            losses=tuple(losses),
            gradient_norms=tuple(float(norm) for norm in self.norms),
            peak_memory_bytes=peak_memory_bytes(self.device),
            breakdown=breakdown,
        )
