"""Random number generators of one rank: Python, NumPy (where the script uses it), torch, and this rank's device."""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any

_DEVICES = ("cuda", "xpu")


def capture() -> dict[str, Any]:
    """The state of every generator, as plain values and tensors."""
    import torch

    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state["numpy"] = numpy.random.get_state(legacy=True)
    for kind in _DEVICES:
        module = getattr(torch, kind, None)
        if module is not None and module.is_available():
            state[kind] = module.get_rng_state()
    return state


def restore(state: dict[str, Any]) -> None:
    """Put every generator that was saved and is here back."""
    import torch

    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        import numpy as np

        np.random.set_state(state["numpy"])
    for kind in _DEVICES:
        module = getattr(torch, kind, None)
        if kind in state and module is not None and module.is_available():
            module.set_rng_state(state[kind])


def seed_newcomer(state: dict[str, Any], rank: int) -> None:
    """Seed a rank that did not exist when the snapshot was made: from rank 0's state, the same at every resume."""
    import torch

    digest = hashlib.sha256(state["torch"].numpy().tobytes() + rank.to_bytes(8, "big")).digest()
    seed = int.from_bytes(digest[:8], "big") >> 1
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in state:
        import numpy as np

        np.random.seed(seed % 2**32)
