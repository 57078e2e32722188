"""`windlass.step()`: the explicit way to say that a training step has ended, for loops that torch's hook cannot see."""

from __future__ import annotations

import atexit
import os
import sys
from types import ModuleType

from windlass.node.sampler import recorder

_own: recorder.Recorder | None = None


def step(data_wait_s: float | None = None) -> None:
    """A step has ended here; `data_wait_s` is the part of it that the rank waited for data, where the loop knows.

    From the first call on these steps count, and no longer those of optimizers. Cheap, and fine without a launcher:
    nothing is recorded where nobody watches."""
    current = _recorder()
    if data_wait_s is not None:
        current.waited(data_wait_s)
    current.explicit()


def _recorder() -> recorder.Recorder:
    """The recorder of the start-up hook, else one of our own (`python -I`, a container without the hook)."""
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
