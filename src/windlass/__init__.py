"""windlass: take a training script that works on one box and run it on any supercomputer."""

__version__ = "0.1.0"
