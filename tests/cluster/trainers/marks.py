"""What the training scripts of this folder share: they record each step, and one rank may kill itself once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def end_step(step: int, loss: float) -> None:
    """Record the step on rank 0. `PAUSE` seconds per step. At step `FAULT`, rank 0 kills itself, once."""
    if os.environ["RANK"] == "0":
        folder = Path(os.environ["MARKS"])
        with (folder / "losses").open("a") as file:
            file.write(f"{step} {loss:.4f}\n")
        if str(step) == os.environ.get("FAULT") and not (folder / "killed").exists():
            (folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(float(os.environ.get("PAUSE", "0")))
