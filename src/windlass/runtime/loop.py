"""A running training loop: leases the folder, loads, and decides with all ranks when to save and when to leave."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.errors import UsageError, WindlassError
from windlass.node.sys.identity import own_environ
from windlass.runtime import codes, ledger, store
from windlass.runtime.codes import ResumeLater
from windlass.runtime.lease import Lease, acquire
from windlass.runtime.ledger import Heartbeat
from windlass.runtime.loader import Loaded, load_newest
from windlass.runtime.peers import Peers, meet, on_main
from windlass.runtime.place import find_place
from windlass.runtime.run import close_group, say
from windlass.runtime.saver import Saver, SaveResult
from windlass.runtime.staging import Stager
from windlass.runtime.state import Parts, capture_rng, own_values, pack, rank_key, tensors_of
from windlass.runtime.stop import REASONS, WALLTIME, StopFlag, find_deadline
from windlass.runtime.tier import MEMORY, FastTier, folder_identity

_AGREE_S = 0.5
_HURRY_S = 0.05  # used while a snapshot is being written. The ranks commit it at their next agreement
_MAX_STEPS = 64  # if steps suddenly become slow, a stop request is delayed by at most this many steps


class SavePace:
    """Counts calls between two agreements and the time between two snapshots.

    Ranks must communicate at the same step. So the number of steps until the next communication is computed from values
    that all ranks have.
    """

    def __init__(self, *, every_s: float | None, every_steps: int | None, shared: bool, now: float) -> None:
        self._every_s = every_s
        self._every_steps = every_steps
        self._shared = shared
        self.agree_s = min(_AGREE_S, every_s / 4) if every_s else _AGREE_S
        self._calls = 0
        self._wait_calls = 1
        self._unsaved_steps = 0
        self._last_agreed = now
        self._last_saved = now

    def quiet(self, now: float, *, hurry: bool = False) -> bool:
        """Return True if this call needs no check.

        Several ranks count calls. A single rank may read the clock. `hurry`: a snapshot is being written.
        """
        self._calls += 1
        self._unsaved_steps += 1
        if self._calls < self._wait_calls:
            return True
        return (
            not self._shared
            and self._every_steps is None
            and now - self._last_agreed < (_HURRY_S if hurry else self.agree_s)
        )

    def due(self, now: float) -> bool:
        """Return True if a snapshot is due by time or by count."""
        by_count = self._every_steps is not None and self._unsaved_steps >= self._every_steps
        return by_count or (self._every_s is not None and now - self._last_saved >= self._every_s)

    def step_us(self, now: float) -> int:
        """Return the microseconds per call since the last agreement."""
        return int((now - self._last_agreed) / max(self._calls, 1) * 1e6)

    def agreed(self, now: float, step_us: int, *, hurry: bool = False) -> None:
        """Record an agreement. `step_us` is the slowest rank's, so that every rank computes the same next count."""
        wish = int((_HURRY_S if hurry else self.agree_s) * 1e6 / max(step_us, 1))
        self._wait_calls = max(1, min(wish, 2 * self._wait_calls, _MAX_STEPS))
        if self._every_steps is not None:
            self._wait_calls = max(1, min(self._wait_calls, self._every_steps - self._unsaved_steps))
        self._calls = 0
        self._last_agreed = now

    def saving(self, now: float) -> None:
        """Record that a save begins now."""
        self._last_saved = now
        self._unsaved_steps = 0
        if self._every_steps is not None:
            self._wait_calls = max(1, min(self._wait_calls, self._every_steps))


_FAILURES = 3  # saves that may fail in a row before the run ends: a disk that is full for a minute must not end it
_CLOSE_S = 30.0
_PREPARE_AT = 2  # at this agreement the optimizer has its state, and memory for the copies is allocated


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The user's options, checked."""

    folder: Path
    parts: Parts
    every_s: float | None
    every_steps: int | None
    keep: int
    fast_root: Path | None
    buddy: bool | None
    background: bool
    wait_for_save: bool
    wait_s: float


class Loop:
    """A loop that holds the folder from construction until `close`."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._folder = options.folder
        self._pid = os.getpid()  # a forked child that ends must not close its parent's loop
        self._environ: Mapping[str, str] = own_environ()
        self._flag = StopFlag(find_deadline(self._environ))
        self._heartbeat = Heartbeat(None)
        self._peers = meet(options.wait_s)
        self._lease = _acquire_folder(options.folder, self._peers)
        self._saver: Saver | None = None
        self._at: int | None = None
        self._open = True
        self._finished = False
        self._fast: FastTier | None = None
        atexit.register(self.close)  # if an exception ends the script, only this releases the folder
        try:
            self._fast = _open_fast_tier(options, self._peers, self._environ)
        except BaseException:
            self.close()
            raise
        self._pace = SavePace(
            every_s=options.every_s,
            every_steps=options.every_steps,
            shared=self._peers.world_size > 1,
            now=time.monotonic(),
        )
        self._loaded: Loaded | None = None
        self._saved_step: int | None = None
        self._last: int | None = None
        self._save_s = 0.0
        self._failures = 0
        self._told_late = False
        self._agreements = 0
        self._failure: WindlassError | None = None

    def load(self) -> Loaded | None:
        """Load the newest good snapshot into the user's objects, and get ready to save."""
        _import_early()
        try:
            self._loaded = load_newest(self._folder, self._options.parts, self._peers, self._fast)
        except BaseException:
            self.close()
            raise
        self._saved_step = None if self._loaded is None else self._loaded.step
        if self._peers.is_main and self._loaded is not None:
            ledger.note(self._environ, "loaded", self._loaded.step, self._folder)
        return self._loaded

    def run(self, left: range) -> Iterator[int]:
        """Yield the steps. When all are done, save the final state."""
        options = self._options
        saver = Saver(
            self._folder,
            keep=options.keep,
            peers=self._peers,
            lease=self._lease,
            fast=self._fast,
            wait_s=options.wait_s,
            stager=Stager(find_place(self._environ).local_world_size or self._peers.world_size),
        )
        self._saver = saver
        self._last = left[-1] if left else None
        self._heartbeat = Heartbeat(self._environ.get(codes.HEARTBEAT))
        self._flag.listen()
        try:
            if self._loaded is not None:
                self._loaded.restore_generators()
            yield from left
            self._note(saver.finish())
            if self._last is not None and self._saved_step != self._last:
                self._save(saver, self._last, background=False)
                self._raise_failure()
            if self._last is None and self._fast is not None and self._loaded is not None:
                # Loaded from the nodes, and no step is left that would be saved.
                self._fast.finish_drain(self._folder, self._newest_shared(), self._peers)
            self._finished = True
        finally:
            self.close()

    def _newest_shared(self) -> int:
        found = on_main(self._peers, lambda: store.list_snapshots(self._folder), self._folder, "read")
        return found[0].step if found else -1

    def step(self, step: int) -> None:
        """Handle the end of a step. This is the fast path: it costs nothing if nothing is due."""
        now = time.monotonic()
        if self._at is None and self._peers.is_main:
            ledger.note(self._environ, "stepped")
        self._at = step
        if now >= self._heartbeat.next_s:
            self._heartbeat.beat(step, now)
        hurry = self._saver is not None and self._saver.under_way
        if self._pace.quiet(now, hurry=hurry) and (self._flag.reason == 0 or self._peers.world_size > 1):
            return
        self._agree(step, now)

    def close(self) -> None:
        """Stop listening, cancel a save in progress, and release the folder. May be called twice."""
        if not self._open or os.getpid() != self._pid:
            return
        self._open = False
        atexit.unregister(self.close)
        self._flag.restore()
        if self._at is not None:
            self._heartbeat.beat(self._at, time.monotonic())  # record the last step
        self._heartbeat.close()
        if self._saver is not None:
            self._saver.cancel()
        if self._fast is not None:
            self._fast.close(finished=self._finished)
        if self._lease is not None:
            self._lease.release()

    def _agree(self, step: int, now: float) -> None:
        """Decide together with all ranks at the end of a step. The result is the same on every rank."""
        saver = self._saver
        if saver is None or not self._open:
            raise UsageError(
                "windlass.Snapshot: step was called outside a loop over resume(...)",
                hint="call it inside: for step in snapshot.resume(range(steps)): …",
            )
        if self._peers.is_main:
            self._flag.check_deadline(self._save_s, self._pace.agree_s)
        due = self._peers.is_main and self._pace.due(now)
        mine = [self._flag.reason, int(due), int(saver.busy), step, -step, self._pace.step_us(now)]
        reason, agreed_due, busy, highest, lowest, step_us = self._peers.largest(mine)
        if highest != -lowest:
            raise UsageError(
                f"the ranks are at different steps: {-lowest} to {highest}",
                hint="call snapshot.step(step) on every rank, once per step",
            )
        self._pace.agreed(now, step_us, hurry=saver.under_way)
        self._agreements += 1
        if self._agreements == _PREPARE_AT and self._options.background:
            saver.prepare(self._state())
        if not busy and saver.under_way:
            self._note(saver.advance(background=True))
            if self._failures >= _FAILURES:
                self._raise_failure()
        if reason and step != self._last:
            self._leave(saver, step, REASONS[reason])
        late = bool(agreed_due) and saver.under_way
        if late:
            self._still_saving(saver, step)
        waited = late and self._options.wait_for_save
        if agreed_due and (waited or not busy) and not saver.under_way:
            self._save(saver, step, background=self._options.background)

    def _still_saving(self, saver: Saver, step: int) -> None:
        """Handle a snapshot that is due before the last one is written.

        Wait for the last one, or print once what the omission means.
        """
        options = self._options
        if options.wait_for_save:
            self._note(saver.finish())
            if self._failures >= _FAILURES:
                self._raise_failure()
        elif not self._told_late and self._peers.is_main:
            interval = f"{options.every_steps} steps" if options.every_steps else f"{options.every_s:g} s"
            say(
                f"at step {step} the last snapshot is still being written, more than {interval} after it began: the "
                "snapshots that are due meanwhile are skipped, and a failure costs more than one interval (use a "
                "longer "
                "interval, or wait_for_save=True)"
            )
            self._told_late = True

    def _save(self, saver: Saver, step: int, *, background: bool) -> None:
        self._pace.saving(time.monotonic())
        parts = self._options.parts
        kind = "none" if not parts.optimizers else "empty" if parts.optimizer_is_empty else "tensors"
        notes = {"optimizer": kind, "torch": _torch_version()}
        self._note(saver.start(step, self._state(), notes, background=background))
        if not background:
            self._note(saver.finish())

    def _state(self) -> dict[str, Any]:
        """Return the content of a snapshot: the live tensors, and this rank's own values."""
        parts = self._options.parts
        state = tensors_of(parts, with_optimizer=not parts.optimizer_is_empty)
        state[rank_key(self._peers.rank)] = pack(own_values(parts, capture_rng()))
        return state

    def _leave(self, saver: Saver, step: int, reason: str) -> None:
        """Save unsaved state and end the process with the exit code that means "resume me"."""
        self._note(saver.finish())
        if self._saved_step != step:
            self._save(saver, step, background=False)
            self._raise_failure()
        if self._peers.is_main:
            ledger.note(self._environ, "time-up" if reason == WALLTIME else "left", step, self._folder)
            say(f"{reason}: saved step {step} in {self._folder} and exiting with code {codes.RESUME_ME} (resume me)")
        self._finished = True
        self.close()
        self._flag.ignore_late()
        close_group(_CLOSE_S)
        raise ResumeLater(step, reason)

    def _note(self, outcome: SaveResult | None) -> None:
        if outcome is None:
            return
        self._save_s = max(self._save_s, outcome.seconds)
        self._failure = outcome.error
        if outcome.error is None:
            self._saved_step, self._failures = outcome.step, 0
            if self._peers.is_main:
                ledger.note(self._environ, "saved", outcome.step, self._folder)
            return
        self._failures += 1
        if self._peers.is_main:
            hint = f" ({outcome.error.hint})" if outcome.error.hint else ""
            say(f"step {outcome.step} was not saved: {outcome.error.message}{hint}")

    def _raise_failure(self) -> None:
        """Raise the last save's error, if it failed."""
        if self._failure is not None:
            raise self._failure


def _acquire_folder(folder: Path, peers: Peers) -> Lease | None:
    """Lease the folder, on the main rank for all. A refusal is raised on every rank."""
    lease: Lease | None = None
    problem: WindlassError | None = None
    if peers.is_main:
        try:
            lease = acquire(folder, tell=say)
            store.sweep(folder)
        except WindlassError as error:
            problem = error
        except OSError as error:
            problem = store.disk_error(error, folder, "clean")
    problem = peers.tell_all(problem)
    if problem is not None:
        if lease is not None:
            lease.release()
        raise problem
    return lease


def _open_fast_tier(options: Options, peers: Peers, environ: Mapping[str, str]) -> FastTier | None:
    """Return the fast tier. With partners and without a folder for it, it is in the memory of the nodes."""
    buddy = options.buddy if options.buddy is not None else codes.PARTNERS in environ
    if options.fast_root is None and not buddy:
        return None
    identity = on_main(peers, lambda: folder_identity(options.folder), options.folder, "write")
    near = environ.get("MASTER_ADDR", "127.0.0.1") if buddy else None
    return FastTier(options.fast_root or MEMORY, identity, peers, near=near)


def _import_early() -> None:
    """Import slow modules before the first step.

    These imports take seconds on a cold file system and must not delay the first save.
    """
    import torch.distributed.checkpoint.state_dict  # noqa: F401


def _torch_version() -> str:
    import torch

    return str(torch.__version__)
