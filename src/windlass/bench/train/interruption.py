"""What ends a run early: Ctrl-C and a rank that dies, which keep what was measured, and a device without room."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from windlass.bench.train.device import Device, StepClock
from windlass.errors import MachineError

log = logging.getLogger(__name__)


class Pace:
    """When to tell what was measured so far: after a second, then whenever a tenth more time has passed.

    Each time costs a wait for the device, and a record as long as the run: so not after every step."""

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
    """Let Ctrl-C end the measured steps early and keep those that are done, where there is at least one.

    Only for a run of one rank: others would wait in a collective for the one that stopped. What they measured was told
    on the way (see `Pace`).
    """
    try:
        yield
    except KeyboardInterrupt:
        if not alone or clock.count < 2:
            raise
        log.warning("stopped: keeping %d measured steps", clock.count - 1)


@contextmanager
def out_of_memory_explained(device: Device, smaller: str) -> Iterator[None]:
    """Turn torch's out-of-memory error into ours; `smaller` says what to change."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MachineError(
            f"{device.name} ran out of memory ({device.memory_bytes / 2**30:.0f} GiB)",
            hint=f"try {smaller}",
        ) from error
