"""Early ends of a run: Ctrl-C and a rank that dies, which keep the measurements, and a device without free memory."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from windlass.bench.train.device import Device, StepClock
from windlass.errors import MachineError

log = logging.getLogger(__name__)


class MessagePace:
    """When to report the measurements so far: after a second, then each time the run is a tenth longer.

    Each report costs a wait for the device, and a record as long as the run. So it is not sent after every step.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = self._last = clock()

    def due(self) -> bool:
        now = self._clock()
        if now - self._last < max(1.0, 0.1 * (now - self._start)):
            return False
        self._last = now
        return True


@contextmanager
def stop_kept(alone: bool, clock: StepClock) -> Iterator[None]:
    """On Ctrl-C, end the measured steps early and keep the completed steps, if there is at least one.

    Only for a run of one rank, because other ranks would wait in a collective for the stopped one. Their measurements
    were reported during the run (see `MessagePace`).
    """
    try:
        yield
    except KeyboardInterrupt:
        if not alone or clock.count < 2:
            raise
        log.warning("stopped: keeping %d measured steps", clock.count - 1)


@contextmanager
def out_of_memory_explained(device: Device, smaller: str) -> Iterator[None]:
    """Convert torch's out-of-memory error into a `MachineError`. `smaller` is the advice for the hint."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MachineError(
            f"{device.name} ran out of memory ({device.memory_bytes / 2**30:.0f} GiB)",
            hint=f"try {smaller}",
        ) from error
