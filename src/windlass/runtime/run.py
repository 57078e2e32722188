"""What `windlass.init` returns: where this rank stands and what it uses. Frozen; the few verbs act on torch."""

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
        """Return when every rank is here; raise `MachineError` at the deadline (gloo names who is missing)."""
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
                hint="look at the missing rank's log first: it usually failed before",
            ) from error

    def shutdown(self, timeout_s: float = 30.0) -> None:
        """Destroy the process group, waiting at most `timeout_s` for it: a dead peer must not hold the exit."""
        close_group(timeout_s)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            self.shutdown()


def close_group(timeout_s: float, held: list[Any] | None = None) -> None:
    """Destroy all of torch's process groups, or the one that is `held`, if there are any; give up quietly at the
    deadline. Gloo's threads end with the last reference to a group, so it is taken out of the list: it must be the only
    one. The destructor waits for what is under way, so that it runs in a thread of its own."""
    import torch.distributed as dist

    if not dist.is_available() or not (dist.is_initialized() or held):
        return

    def destroy() -> None:
        with contextlib.suppress(ValueError, AssertionError):  # closed already, with all the others
            dist.destroy_process_group(held.pop() if held else None)

    worker = threading.Thread(target=destroy, name="windlass-shutdown", daemon=True)
    worker.start()
    worker.join(timeout_s)
    if worker.is_alive():
        say(f"the process group did not close within {timeout_s:.0f} s; leaving without it")


def close_at_exit(close: Callable[[float], None] = close_group) -> None:
    """Close gloo's groups before the interpreter goes, however the script ends: its threads abort a process that still
    has them then (about one in six that ended by an exception), and the abort hides the script's own error."""
    pid = os.getpid()

    def at_exit() -> None:
        if os.getpid() == pid:  # a forked child has the group, but not its threads
            close(_EXIT_S)

    atexit.register(at_exit)


def say(line: str) -> None:
    """One line for people: through logging where the script has set it up, else on stderr."""
    if _log.hasHandlers() and _log.isEnabledFor(logging.INFO):
        _log.info(line)
    elif sys.stderr is not None:
        sys.stderr.write(f"windlass: {line}\n")
        sys.stderr.flush()


def first_line(error: BaseException) -> str:
    """The message of an error on one line: torch appends C++ stacks."""
    text = str(error).strip().split("\n", 1)[0]
    return text or type(error).__name__
