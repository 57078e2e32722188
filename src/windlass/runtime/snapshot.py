"""`windlass.Snapshot`: a loop that can be interrupted and resumed.

    snapshot = windlass.Snapshot("ckpt", model=model, optimizer=opt, loader=sampler, every_s=300, keep=3)
    for step in snapshot.resume(range(total)):
        ...
        snapshot.step(step)

The constructor only stores its arguments. `resume` leases the folder, loads, and starts listening for stop requests.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from windlass.errors import UsageError
from windlass.runtime.loop import Loop, Options
from windlass.runtime.state import Parts, as_optimizers


class Snapshot:
    """Saves and restores one training run in `folder`.

    - `every_s` or `every_steps`: how often to save.
    - `keep`: how many good snapshots to keep.
    - `loader`: an object with `state_dict` and `load_state_dict` that contains the data position.
    - `also`: more such objects by name (schedulers, scalers).
    - `fast`: a node-local folder that is written first.
    - `buddy=True`: each node keeps the newest snapshot of another node in its memory (or in `fast`), so that the run
      continues from there when a node is lost. None: with `windlass run --spares`.
    - `background=False`: a save blocks training.
    - `wait_for_save=True`: a save that is due while the last one is still being written waits for it. Otherwise it is
      left out.
    - `wait_s`: the deadline of every wait for other ranks and for the disk.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        model: Any,
        optimizer: Any = None,
        loader: Any = None,
        also: Mapping[str, Any] | None = None,
        every_s: float | None = None,
        every_steps: int | None = None,
        keep: int = 3,
        fast: str | os.PathLike[str] | None = None,
        buddy: bool | None = None,
        background: bool = True,
        wait_for_save: bool = False,
        wait_s: float = 1800.0,
    ) -> None:
        if every_s is None and every_steps is None:
            every_s = 300.0
        _require(every_s is None or every_s > 0, f"every_s is {every_s}", "give seconds greater than zero, e.g. 300")
        _require(every_steps is None or every_steps > 0, f"every_steps is {every_steps}", "give at least 1")
        _require(keep >= 1, f"keep is {keep}", "keep at least one snapshot to resume from")
        _require(wait_s > 0, f"wait_s is {wait_s}", "give seconds greater than zero")
        for name, thing in (("loader", loader), *(also or {}).items()):
            fits = thing is None or (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"))
            _require(fits, f"{name} has no state_dict and load_state_dict", "wrap it in an object that has both")
        self._options = Options(
            folder=Path(folder).expanduser(),
            parts=Parts(model=model, optimizers=as_optimizers(optimizer), loader=loader, also=also),
            every_s=every_s,
            every_steps=every_steps,
            keep=keep,
            fast_root=None if fast is None else Path(fast).expanduser(),
            buddy=buddy,
            background=background,
            wait_for_save=wait_for_save,
            wait_s=wait_s,
        )
        self._loop: Loop | None = None

    def resume(self, steps: range | int) -> Iterator[int]:
        """Load the newest good snapshot and return the remaining steps of `steps`.

        On return, model, optimizer, loader and the other objects have their saved state. Random generators are restored
        when the first step is drawn. Raises before any change if another run holds the folder, or if the folder belongs
        to another model or a newer windlass. Raises if no snapshot is intact. Tensors may have changed in that case.
        After the last step, the final state is saved too.
        """
        steps = range(steps) if isinstance(steps, int) else steps
        rising = isinstance(steps, range) and steps.step > 0
        _require(rising, f"steps must be a rising range, not {steps!r}", "as range(1000)")
        _require(self._loop is None, "resume was called twice", "create one Snapshot per loop")
        self._loop = Loop(self._options)
        loaded = self._loop.load()
        left = steps if loaded is None else steps[bisect_right(steps, loaded.step) :]
        return self._loop.run(left)

    def step(self, step: int) -> None:
        """Report that `step` is complete. Saves when due. Leaves with `RESUME_ME` after a stop request.

        Costs about a microsecond if nothing is due. The ranks communicate about twice a second.
        """
        if self._loop is None:
            raise UsageError(
                "windlass.Snapshot: step was called outside a loop over resume(...)",
                hint="call it inside: for step in snapshot.resume(range(steps)): …",
            )
        self._loop.step(step)


def _require(fits: bool, what: str, hint: str) -> None:
    if not fits:
        raise UsageError(f"windlass.Snapshot: {what}", hint=hint)
