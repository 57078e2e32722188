"""What ends a run early: Ctrl-C, which keeps what was measured, and a device without room."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from windlass.bench.train.device import Device, StepClock
from windlass.errors import MachineError

log = logging.getLogger(__name__)


@contextmanager
def stop_kept(alone: bool, clock: StepClock) -> Iterator[None]:
    """Let Ctrl-C end the measured steps early and keep those that are done, where there is at least one.

    Only for a run of one rank: others would wait in a collective for the one that stopped.
    """
    try:
        yield
    except KeyboardInterrupt:
        if not alone or clock.count < 2:
            raise
        log.warning("stopped: keeping %d measured steps", clock.count - 1)


@contextmanager
def out_of_memory_explained(device: Device, smaller: str) -> Iterator[None]:
    """Turn torch's out-of-memory error into ours, with what to change."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MachineError(
            f"{device.name} ran out of memory ({device.memory_bytes / 2**30:.0f} GiB)",
            hint=f"try a smaller {smaller}, --checkpointing selective or full, or --parallel fsdp on more ranks",
        ) from error
