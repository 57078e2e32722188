"""`windlass.step()`: report the end of a training step, for loops that torch's hook does not detect."""

from __future__ import annotations

import atexit
import os
import sys
from types import ModuleType

from windlass.node.sampler import recorder

_own: recorder.Recorder | None = None


def step(data_wait_s: float | None = None) -> None:
    """Report that a step has ended. `data_wait_s` is the time in it that the rank waited for data, if known.

    From the first call on, these steps count, and those of optimizers no longer count. A call is cheap and needs no
    launcher. Nothing is recorded if no process watches the run.
    """
    current = _recorder()
    if data_wait_s is not None:
        current.waited(data_wait_s)
    current.explicit()


def _recorder() -> recorder.Recorder:
    """Return the recorder of the start-up hook, or a new one (`python -I`, a container without the hook)."""
    global _own  # noqa: PLW0603  one per process
    if _own is None:
        hook: ModuleType | None = sys.modules.get("windlass_recorder")
        shared: recorder.Recorder | None = getattr(hook, "shared", None)
        if shared is None:
            shared = recorder.Recorder(recorder.rank_file())
            atexit.register(shared.close)
            os.register_at_fork(after_in_child=shared.forget)
        _own = shared
    return _own
