"""The result of `windlass.init`: the position of this rank and its resources. Frozen. A few methods act on torch."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from windlass.errors import MachineError
from windlass.node.sampler import gloo_exit

_EXIT_S = 5.0
_log = logging.getLogger("windlass")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One rank of a job. `device` is a `torch.device`."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int | None
    node_rank: int | None
    device: Any
    backend: str
    launcher: str
    master_addr: str | None
    master_port: int | None
    timeout_s: float

    @property
    def is_main(self) -> bool:
        """True on the one rank that prints and writes for all."""
        return self.rank == 0

    def barrier(self, timeout_s: float | None = None) -> None:
        """Return when every rank has called it. Raise `MachineError` at the deadline (gloo names the missing rank)."""
        import torch.distributed as dist

        if self.world_size == 1 or not dist.is_initialized():
            return
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        limit = timedelta(seconds=limit_s)
        try:
            if dist.get_backend() == "gloo":
                dist.monitored_barrier(timeout=limit)
            else:
                dist.barrier(async_op=True).wait(limit)
        except RuntimeError as error:
            raise MachineError(
                f"rank {self.rank}: not every rank reached the barrier within {limit_s:.0f} s: {first_line(error)}",
                hint="read the missing rank's log first: that rank usually failed earlier",
            ) from error

    def shutdown(self, timeout_s: float = 30.0) -> None:
        """Destroy the process group. Waits at most `timeout_s`, because a dead peer must not block the exit."""
        close_group(timeout_s)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            self.shutdown()


def close_group(timeout_s: float, held: list[Any] | None = None) -> None:
    """Destroy all of torch's process groups, or only the `held` one, if there are any. Gives up at the deadline.

    Gloo's threads end with the last reference to a group. So the group is taken out of the list, which must hold the
    only reference. The destructor waits for pending operations, so it runs in a separate thread.
    """
    import torch.distributed as dist

    if not dist.is_available() or not (dist.is_initialized() or held):
        return

    def destroy() -> None:
        with contextlib.suppress(ValueError, AssertionError):  # already closed, together with all others
            dist.destroy_process_group(held.pop() if held else None)

    worker = threading.Thread(target=destroy, name="windlass-shutdown", daemon=True)
    worker.start()
    worker.join(timeout_s)
    if worker.is_alive():
        say(f"the process group did not close within {timeout_s:.0f} s; exiting without closing it")


def close_at_exit(close: Callable[[float], None] = close_group) -> None:
    """Close gloo's groups before the interpreter ends, however the script ends.

    Otherwise gloo's threads abort the process (about one in six that ended by an exception), and the abort hides the
    script's own error.
    """
    pid = os.getpid()

    def at_exit() -> None:
        if os.getpid() == pid:  # a forked child has the group, but not its threads
            close(_EXIT_S)
            gloo_exit.settle()

    atexit.register(at_exit)


def say(line: str) -> None:
    """Print one line for people: through logging if the script has configured it, otherwise on stderr."""
    if _log.hasHandlers() and _log.isEnabledFor(logging.INFO):
        _log.info(line)
    elif sys.stderr is not None:
        sys.stderr.write(f"windlass: {line}\n")
        sys.stderr.flush()


def first_line(error: BaseException) -> str:
    """Return the message of an error on one line, because torch appends C++ stacks."""
    text = str(error).strip().split("\n", 1)[0]
    return text or type(error).__name__
