"""windlass: run a training script on any supercomputer, with the right placement and network settings."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for type checkers alone: at run time `__getattr__` finds them
    from windlass.runtime import Snapshot as Snapshot
    from windlass.runtime import init as init
    from windlass.runtime import step as step

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`windlass.init`, `windlass.Snapshot` and `windlass.step`, loaded when first used: importing stays cheap."""
    if name in {"init", "Snapshot", "step"}:
        from windlass import runtime

        return getattr(runtime, name)
    raise AttributeError(f"module 'windlass' has no attribute {name!r}")
