"""Writing one snapshot, in the background where torch allows: shards, digests, commit, prune.

All ranks go through the same calls on a group of their own; the main rank alone commits. Every outcome, good or bad,
is the same on every rank.
"""

from __future__ import annotations

import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.errors import MachineError, WindlassError
from windlass.runtime import store
from windlass.runtime.hold import Hold
from windlass.runtime.peers import Peers
from windlass.runtime.store import FileEntry, Manifest
from windlass.runtime.tier import FastTier, copy_checked
from windlass.runtime.writer import write_shards


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a save ended."""

    step: int
    seconds: float
    error: WindlassError | None = None


class Saver:
    """Saves one snapshot at a time into `folder`. `hold` is None on all but the main rank."""

    def __init__(
        self, folder: Path, *, keep: int, peers: Peers, hold: Hold | None, fast: FastTier | None, wait_s: float
    ) -> None:
        self._folder = folder
        self._keep = keep
        self._peers = peers
        self._hold = hold
        self._fast = fast
        self._wait_s = wait_s
        self._thread: threading.Thread | None = None
        self._outcome: Outcome | None = None
        self._stager: Any = None

    @property
    def busy(self) -> bool:
        """True while a save is under way."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, step: int, state: dict[str, Any], notes: dict[str, Any]) -> None:
        """Copy `state` to host memory and save it in the background. On return training may change the tensors."""
        staged = self._stage(state)
        self._thread = threading.Thread(target=self._run, args=(step, staged, notes), name="windlass-save", daemon=True)
        self._thread.start()

    def save_now(self, step: int, state: dict[str, Any], notes: dict[str, Any]) -> Outcome:
        """Save and wait for it."""
        self._run(step, state, notes)
        outcome = self.take_outcome()
        assert outcome is not None
        return outcome

    def take_outcome(self) -> Outcome | None:
        """The outcome of the last finished save, once."""
        if self.busy:
            return None
        outcome, self._outcome = self._outcome, None
        return outcome

    def wait(self) -> Outcome | None:
        """The outcome of the save under way; `MachineError` where it does not end in time."""
        if self._thread is not None:
            self._thread.join(self._wait_s)
            if self._thread.is_alive():
                raise MachineError(
                    f"saving into {self._folder} did not end within {self._wait_s:.0f} s",
                    hint="is the file system hanging? the last committed snapshot is untouched",
                )
        return self.take_outcome()

    def _stage(self, state: dict[str, Any]) -> dict[str, Any]:
        if self._stager is None:
            self._stager = _make_stager()
        staged: dict[str, Any] = self._stager.stage(state)
        return staged

    def _run(self, step: int, state: dict[str, Any], notes: dict[str, Any]) -> None:
        began = time.monotonic()
        error: WindlassError | None = None
        try:
            self._save(step, state, notes)
        except WindlassError as known:
            error = known
        except OSError as problem:
            error = store.disk_error(problem, self._folder, "save into")
        except Exception as unknown:  # the top of a background thread: nobody above would see it
            error = MachineError(f"saving step {step} failed: {type(unknown).__name__}: {unknown}")
        self._outcome = Outcome(step=step, seconds=time.monotonic() - began, error=error)

    def _save(self, step: int, state: dict[str, Any], notes: dict[str, Any]) -> None:
        token = self._peers.tell_all(store.new_token())
        saving = store.saving_path(self._folder, step, token)
        local = saving if self._fast is None else store.saving_path(self._fast.path, step, token)
        try:
            mine = write_shards(state, local, self._peers.group, alone=self._peers.world_size == 1)
            manifest = self._manifest(step, mine, notes)
            if self._fast is not None:
                self._fast.keep_local(local, manifest, self._peers)
                self._drain(self._fast.snapshot_path(step), saving, mine)
            self._commit(saving, manifest)
        except BaseException:
            if self._peers.is_main:
                shutil.rmtree(saving, ignore_errors=True)
            if local != saving:
                shutil.rmtree(local, ignore_errors=True)
            raise

    def _manifest(self, step: int, mine: tuple[FileEntry, ...], notes: dict[str, Any]) -> Manifest:
        """The manifest over all ranks' files: on the main rank, and with a fast tier on every rank."""
        parts = self._peers.collect(mine)
        manifest = Manifest(
            step=step,
            world_size=self._peers.world_size,
            saved_at=time.time(),
            files=store.entries(entry for part in parts for entry in part),
            notes=notes,
        )
        if self._fast is None:
            return manifest
        text = self._peers.tell_all(store.manifest_text(manifest) if self._peers.is_main else None)
        return store.parse_manifest(text, "the main rank's manifest")

    def _drain(self, source: Path, saving: Path, mine: tuple[FileEntry, ...]) -> None:
        """Copy this rank's files from the fast tier to the shared folder; every rank learns of any failure."""
        problem: WindlassError | None = None
        try:
            saving.mkdir(parents=True, exist_ok=True)
            for entry in mine:
                copy_checked(source / entry.name, saving / entry.name, entry)
        except OSError as error:
            problem = store.disk_error(error, saving, "write")
        except WindlassError as error:
            problem = error
        for rank, failed in enumerate(self._peers.gather(problem)):
            if failed is not None:
                raise MachineError(f"rank {rank}: {failed.message}", hint=failed.hint)

    def _commit(self, saving: Path, manifest: Manifest) -> None:
        problem: WindlassError | None = None
        if self._peers.is_main:
            try:
                if self._hold is not None:
                    self._hold.require()
                store.commit(self._folder, saving, manifest)
                store.prune(self._folder, self._keep)
            except OSError as error:
                problem = store.disk_error(error, saving, "commit")
            except WindlassError as error:
                problem = error
        problem = self._peers.tell_all(problem)
        if problem is not None:
            raise problem


def _make_stager() -> Any:
    """torch's own staging: pinned memory and overlapped copies where there is a device, plain copies elsewhere."""
    import torch

    try:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    except ImportError:  # before torch 2.9
        from torch.distributed.checkpoint.staging import BlockingAsyncStager

        return BlockingAsyncStager()
    pinned = bool(torch.cuda.is_available())
    return DefaultStager(StagingOptions(pinned, False, False, pinned))
