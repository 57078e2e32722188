"""`windlass.Snapshot`: a loop that can be interrupted and goes on where it was.

    snapshot = windlass.Snapshot("ckpt", model=model, optimizer=opt, loader=sampler, every_s=300, keep=3)
    for step in snapshot.resume(range(total)):
        ...
        snapshot.step(step)

The constructor only remembers; `resume` takes the folder, loads and starts listening for stop requests.
"""

from __future__ import annotations

import atexit
import os
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from windlass.errors import MachineError, UsageError, WindlassError
from windlass.runtime import codes, rng, store
from windlass.runtime.codes import ResumeLater
from windlass.runtime.heartbeat import Heartbeat
from windlass.runtime.hold import Hold, take
from windlass.runtime.loader import Loaded, load_newest
from windlass.runtime.pace import Pace
from windlass.runtime.peers import GLOO_RANKS, meet
from windlass.runtime.place import find_place
from windlass.runtime.run import close_group, say
from windlass.runtime.saver import Outcome, Saver
from windlass.runtime.state import Parts, as_optimizers, own_values, pack, rank_key, tensors_of
from windlass.runtime.stop import REASONS, StopFlag, find_deadline
from windlass.runtime.tier import FastTier, folder_identity

_FAILURES = 3


class Snapshot:
    """Saves and restores one training run in `folder`.

    `every_s` or `every_steps`: how often; `keep`: how many good ones stay; `loader`: anything with `state_dict` and
    `load_state_dict` that knows the data position; `also`: more of those by name (schedulers, scalers);
    `fast`: a node-local folder that is written first; `background=False`: saves block; `wait_s`: the deadline of
    every wait for other ranks and for the disk.
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
        background: bool = True,
        wait_s: float = 1800.0,
    ) -> None:
        if every_s is None and every_steps is None:
            every_s = 300.0
        _require(every_s is None or every_s > 0, f"every_s is {every_s}", "give seconds greater than zero, as 300")
        _require(every_steps is None or every_steps > 0, f"every_steps is {every_steps}", "give at least 1")
        _require(keep >= 1, f"keep is {keep}", "keep at least one snapshot: there is nothing to resume from else")
        _require(wait_s > 0, f"wait_s is {wait_s}", "give seconds greater than zero")
        for name, thing in (("loader", loader), *(also or {}).items()):
            fits = thing is None or (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"))
            _require(fits, f"{name} has no state_dict and load_state_dict", "wrap it in an object that has both")
        self._folder = Path(folder).expanduser()
        self._parts = Parts(model=model, optimizers=as_optimizers(optimizer), loader=loader, also=also)
        self._every_s = every_s
        self._every_steps = every_steps
        self._keep = keep
        self._fast_root = None if fast is None else Path(fast).expanduser()
        self._background = background
        self._wait_s = wait_s
        self._open = False
        self._pace: Pace | None = None
        self._failure: WindlassError | None = None

    def resume(self, steps: range | int) -> Iterator[int]:
        """The steps that are left of `steps`, after loading the newest good snapshot.

        On return model, optimizer, loader and the rest are as they were saved; random generators follow when the
        first step is drawn. Raises before anything is changed where the folder is held, of another model, of a newer
        windlass, or where no snapshot in it is good.
        """
        steps = range(steps) if isinstance(steps, int) else steps
        rising = isinstance(steps, range) and steps.step > 0
        _require(rising, f"steps must be a rising range, not {steps!r}", "as range(1000)")
        _require(not self._open, "resume was called twice", "make one Snapshot per loop")
        self._heartbeat = Heartbeat(None)
        self._flag = StopFlag(find_deadline(os.environ))
        self._peers, background = meet(find_place(os.environ).world_size, self._wait_s)
        self._hold = self._take_folder()
        self._open = True
        try:
            fast = self._open_fast_tier()
            loaded = load_newest(self._folder, self._parts, self._peers, fast)
        except BaseException:
            self._close()
            raise
        self._saver = Saver(
            self._folder, keep=self._keep, peers=background, hold=self._hold, fast=fast, wait_s=self._wait_s
        )
        self._saved_step = loaded.step if loaded else None
        self._failures = 0
        self._save_s = 0.0
        left = steps if loaded is None else steps[bisect_right(steps, loaded.step) :]
        self._last = left[-1] if left else None
        return self._loop(left, loaded)

    def step(self, step: int) -> None:
        """Tell that `step` is complete. Saves when due; leaves with `RESUME_ME` when asked to stop.

        Costs about a microsecond where nothing is due; the ranks talk to each other about twice a second.
        """
        now = time.monotonic()
        pace = self._pace
        if pace is None:
            raise UsageError("windlass.Snapshot: step was called outside a loop over resume(...)")
        if now >= self._heartbeat.next_s:
            self._heartbeat.beat(step, now)
        if pace.quiet(now) and (self._flag.reason == 0 or self._peers.world_size > 1):
            return
        self._agree(step, now, pace)

    def _loop(self, left: range, loaded: Loaded | None) -> Iterator[int]:
        self._heartbeat = Heartbeat(os.environ.get(codes.HEARTBEAT))
        self._flag.listen()
        self._pace = Pace(
            every_s=self._every_s,
            every_steps=self._every_steps,
            shared=self._peers.world_size > 1,
            now=time.monotonic(),
        )
        try:
            if loaded is not None:
                loaded.restore_generators()
            yield from left
            self._wait_for_save()
            if self._last is not None and self._saved_step != self._last:
                self._save(self._last, background=False)
                self._raise_failure()
        finally:
            self._close()

    def _agree(self, step: int, now: float, pace: Pace) -> None:
        """The end of a step at which the ranks decide together. The same answer on every rank."""
        self._note_outcome(self._saver.take_outcome())
        if self._peers.is_main:
            self._flag.check_deadline(self._save_s, pace.agree_s)
        step_us = pace.step_us(now)
        mine = [
            self._flag.reason,
            int(self._peers.is_main and pace.due(now)),
            int(self._saver.busy),
            self._failures,
            step,
            -step,
            step_us,
        ]
        reason, due, busy, failures, highest, lowest, step_us = self._peers.largest(mine)
        if highest != -lowest:
            raise UsageError(
                f"the ranks are at different steps: {-lowest} to {highest}",
                hint="call snapshot.step(step) on every rank, once per step",
            )
        self._failures = max(failures, self._failures)
        if self._failures >= _FAILURES:
            self._raise_failure()
        pace.agreed(now, step_us)
        if reason and step != self._last:
            self._leave(step, REASONS[reason])
        elif due and not busy:
            self._save(step, background=self._background and self._peers.world_size <= GLOO_RANKS)

    def _save(self, step: int, *, background: bool) -> None:
        if self._pace is not None:
            self._pace.saving(time.monotonic())
        parts = self._parts
        empty = parts.optimizer_is_empty
        state = tensors_of(parts, with_optimizer=not empty)
        state[rank_key(self._peers.rank)] = pack(own_values(parts, rng.capture()))
        kind = "none" if not parts.optimizers else "empty" if empty else "tensors"
        notes = {"optimizer": kind, "torch": _torch_version()}
        if background:
            self._saver.start(step, state, notes)
        else:
            self._note_outcome(self._saver.save_now(step, state, notes))

    def _leave(self, step: int, reason: str) -> None:
        """Save what is not saved yet and end the process with the code that means "resume me"."""
        self._wait_for_save()
        if self._saved_step != step:
            self._save(step, background=False)
            self._raise_failure()
        if self._peers.is_main:
            say(f"{reason}: saved step {step} in {self._folder} and leaving with code {codes.RESUME_ME} (resume me)")
        self._close()
        close_group(30.0)
        raise ResumeLater(step, reason)

    def _wait_for_save(self) -> None:
        self._note_outcome(self._saver.wait())

    def _note_outcome(self, outcome: Outcome | None) -> None:
        if outcome is None:
            return
        self._save_s = max(self._save_s, outcome.seconds)
        if outcome.error is None:
            self._saved_step, self._failures, self._failure = outcome.step, 0, None
            return
        self._failures += 1
        self._failure = outcome.error
        if self._peers.is_main:
            hint = f" ({outcome.error.hint})" if outcome.error.hint else ""
            say(f"step {outcome.step} was not saved: {outcome.error.message}{hint}; older snapshots are untouched")

    def _raise_failure(self) -> None:
        """Raise the last save's error, if it failed."""
        if self._failure is not None:
            raise self._failure
        if self._failures >= _FAILURES:
            raise MachineError(f"{self._failures} saves into {self._folder} failed in a row")

    def _take_folder(self) -> Hold | None:
        """Hold the folder, on the main rank for all; a refusal is raised on every rank."""
        hold: Hold | None = None
        problem: WindlassError | None = None
        if self._peers.is_main:
            try:
                hold = take(self._folder, tell=say)
                store.sweep(self._folder)
                atexit.register(hold.release)
            except WindlassError as error:
                problem = error
            except OSError as error:
                problem = store.disk_error(error, self._folder, "clean")
        problem = self._peers.tell_all(problem)
        if problem is not None:
            raise problem
        return hold

    def _open_fast_tier(self) -> FastTier | None:
        if self._fast_root is None:
            return None
        identity = self._peers.tell_all(folder_identity(self._folder) if self._peers.is_main else None)
        return FastTier(self._fast_root, identity, self._peers)

    def _close(self) -> None:
        """Stop listening and give the folder back. A save under way is left alone: its thread ends with the process."""
        if not self._open:
            return
        self._open = False
        self._pace = None
        self._flag.restore()
        self._heartbeat.close()
        if self._hold is not None:
            self._hold.release()
            atexit.unregister(self._hold.release)


def _require(fits: bool, what: str, hint: str) -> None:
    if not fits:
        raise UsageError(f"windlass.Snapshot: {what}", hint=hint)


def _torch_version() -> str:
    import torch

    return str(torch.__version__)
