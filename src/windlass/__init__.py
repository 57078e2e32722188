"""windlass: take a training script that works on one box and run it on any supercomputer."""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`windlass.init` and `windlass.Snapshot`, loaded when first used: importing windlass stays cheap."""
    if name in {"init", "Snapshot"}:
        from windlass import runtime

        return getattr(runtime, name)
    raise AttributeError(f"module 'windlass' has no attribute {name!r}")
