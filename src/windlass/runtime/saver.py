"""One snapshot at a time: all ranks stage and plan it, a thread writes it, and a later step commits it.

The main thread controls the save. `start` begins it, and the thread writes this rank's files. When no rank writes any
longer, all ranks call `advance` at the same step. It starts the next phase (drain, commit). Every outcome is the same
on every rank.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.errors import MachineError, WindlassError
from windlass.runtime import store
from windlass.runtime.lease import Lease
from windlass.runtime.partner import room_for
from windlass.runtime.peers import Peers, on_main
from windlass.runtime.run import say
from windlass.runtime.staging import Stager
from windlass.runtime.store import FileEntry, Manifest
from windlass.runtime.tier import FastTier, copy_checked
from windlass.runtime.writer import ShardWriter, WritePlan, first_failure

_COPIES = 4
"""With partners, a node holds two snapshots of its own part and of its partner's while the newest one is sent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveResult:
    """The outcome of a save."""

    step: int
    seconds: float
    error: WindlassError | None = None


@dataclass(kw_only=True, slots=True)
class _SaveJob:
    """The save in progress. `manifest` is set after all ranks have written. Then the files only have to be moved."""

    step: int
    notes: dict[str, Any]
    saving: Path
    writer: ShardWriter
    began: float
    manifest: Manifest | None = None


class Saver:
    """Saves into `folder`. `lease` is None on all but the main rank."""

    def __init__(
        self,
        folder: Path,
        *,
        keep: int,
        peers: Peers,
        lease: Lease | None,
        fast: FastTier | None,
        wait_s: float,
        stager: Stager,
    ) -> None:
        self._folder = folder
        self._keep = keep
        self._peers = peers
        self._lease = lease
        self._fast = fast
        self._wait_s = wait_s
        self._thread: threading.Thread | None = None
        self._error: WindlassError | None = None
        self._job: _SaveJob | None = None
        self._plan: WritePlan | None = None
        self._stager = stager
        self._told_no_room = self._told_partner = self._room_checked = False

    @property
    def busy(self) -> bool:
        """True while this rank's thread works. For the state of all ranks, the ranks must agree."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def under_way(self) -> bool:
        """True from `start` until the outcome. The same on every rank."""
        return self._job is not None

    def prepare(self, state: dict[str, Any]) -> None:
        """Plan with all ranks and allocate the memory for copies, so that the first save does not have to."""
        writer = ShardWriter(self._folder, state)
        try:
            self._plan = writer.plan(self._peers, self._plan)
        except WindlassError:
            return  # the first save gets the same error and reports it
        self._stager.prepare(writer.tensors())

    def start(self, step: int, state: dict[str, Any], notes: dict[str, Any], *, background: bool) -> SaveResult | None:
        """Begin to save `state`. On return training may change the tensors. Returns an outcome if it failed at once."""
        token = self._peers.tell_all(store.new_token())
        saving = store.saving_path(self._folder, step, token)
        local = saving if self._fast is None else store.saving_path(self._fast.path, step, token)
        writer = ShardWriter(local, state)
        self._job = _SaveJob(step=step, notes=notes, saving=saving, writer=writer, began=time.monotonic())
        try:
            self._plan = writer.plan(self._peers, self._plan)
        except WindlassError as error:
            return self._end(error)
        if self._is_short_of_memory(writer):
            return self.start(step, state, notes, background=background)
        staged = (background or self._stager.is_pinned) and writer.stage(self._stager)
        if background and not staged:
            self._tell_no_room()
        self._run(writer.write, background=background and staged)
        return None

    def advance(self, *, background: bool) -> SaveResult | None:
        """Start the next phase, on all ranks, none of them busy. Returns the outcome after the last phase."""
        job = self._job
        assert job is not None
        try:
            if job.manifest is None:
                job.manifest = self._gather_manifest(job)
                if self._fast is not None:
                    self._fast.keep_local(job.writer.path, job.manifest, self._peers)
                    self._run(lambda: self._drain(job), background=background)
                    return None
            else:
                self._raise_any_failure()
            self._commit(job)
        except WindlassError as error:
            return self._end(error)
        if self._fast is not None:
            self._fast.forget_older()
        outcome = self._end(None)
        if self._peers.is_main:
            self._run(lambda: store.prune(self._folder, self._keep), background=background)
        return outcome

    def finish(self) -> SaveResult | None:
        """Wait for the save in progress and complete it, with all ranks. Returns None if no save is in progress."""
        outcome: SaveResult | None = None
        while self._job is not None and outcome is None:
            self._join()
            outcome = self.advance(background=False)
        self._join()
        return outcome

    def cancel(self) -> None:
        """Cancel this rank's write when the process ends: a thread must not outlive the interpreter."""
        if self._job is not None:
            self._job.writer.cancel()
        if self._thread is not None:
            self._thread.join(5.0)

    def _is_short_of_memory(self, writer: ShardWriter) -> bool:
        """Turn partner copies off, before the first save, if a node has no memory for them. The same on every rank."""
        fast, self._room_checked = (None, True) if self._room_checked else (self._fast, True)
        if fast is None or fast.partners is None:
            return False
        (largest,) = self._peers.largest([sum(tensor.nbytes for tensor in writer.tensors())])
        total = largest * fast.ranks * _COPIES
        short = self._peers.largest([int(not room_for(fast.path, total))])[0]
        if short and self._peers.is_main:
            say(
                f"a node has no memory for {total >> 20} MiB of partner copies: after a lost node, {self._folder} "
                "is used"
            )
        if short:
            self._fast = fast.without_partners()
        return bool(short)

    def _tell_no_room(self) -> None:
        if not self._told_no_room:
            self._told_no_room = True
            say(
                f"rank {self._peers.rank}: this node has no memory for a copy of the state, so training waits until "
                "each snapshot is written"
            )

    def _run(self, work: Callable[[], None], *, background: bool) -> None:
        self._error = None

        def guarded() -> None:
            try:
                work()
            except WindlassError as error:
                self._error = error
            except OSError as error:
                self._error = store.disk_error(error, self._folder, "save into")
            except Exception as error:  # top of a thread: no caller would see it
                self._error = MachineError(
                    f"saving into {self._folder} failed: {type(error).__name__}: {error}",
                    hint="check free space and write access; the last complete snapshot still exists",
                )

        if background:
            self._thread = threading.Thread(target=guarded, name="windlass-save", daemon=True)
            self._thread.start()
        else:
            guarded()

    def _join(self) -> None:
        if self._thread is None:
            return
        self._thread.join(self._wait_s)
        if self._thread.is_alive():
            raise MachineError(
                f"rank {self._peers.rank}: saving into {self._folder} did not end within {self._wait_s:.0f} s",
                hint="the file system may hang; the last committed snapshot is untouched",
            )
        self._thread = None

    def _raise_any_failure(self) -> None:
        failed = first_failure(self._peers.gather(self._error))
        if failed is not None:
            raise failed

    def _gather_manifest(self, job: _SaveJob) -> Manifest:
        """Combine all ranks' files in one manifest.

        It is complete on the main rank, and with a fast tier on every rank.
        """
        reports = self._peers.collect((tuple(job.writer.files.values()), job.writer.results, self._error))
        answer: Manifest | WindlassError | None = None
        if self._peers.is_main:
            answer = first_failure([error for _, _, error in reports])
            if answer is None:
                answer = self._index(job, reports)
        short = None if isinstance(answer, Manifest) and self._fast is None else answer
        told = self._peers.tell_all(short)
        if isinstance(told, WindlassError):
            raise told
        found = answer if isinstance(answer, Manifest) else told
        return found if isinstance(found, Manifest) else _manifest(job, self._peers.world_size, ())

    def _index(self, job: _SaveJob, reports: list[Any]) -> Manifest | WindlassError:
        try:
            index = job.writer.finish([results for _, results, _ in reports])
        except OSError as error:
            return store.disk_error(error, job.writer.path, "write")
        files = [entry for entries, _, _ in reports for entry in entries]
        return _manifest(job, self._peers.world_size, store.entries([*files, index]))

    def _drain(self, job: _SaveJob) -> None:
        """Copy this rank's files from the fast tier to the partner node and to the shared folder."""
        assert self._fast is not None and job.manifest is not None
        problem = self._fast.copy_to_partner(job.manifest, job.writer.cancelled)
        if problem is not None and not self._told_partner:
            self._told_partner = True
            say(f"rank {self._peers.rank}: {problem.message}: after the loss of this node, {self._folder} is used")
        job.saving.mkdir(parents=True, exist_ok=True)
        for entry in job.writer.files.values():
            copy_checked(self._fast.snapshot_path(job.step) / entry.name, job.saving / entry.name, entry)

    def _commit(self, job: _SaveJob) -> None:
        def commit() -> None:
            assert job.manifest is not None
            if self._lease is not None:
                self._lease.require()
            store.commit(self._folder, job.saving, job.manifest)

        on_main(self._peers, commit, job.saving, "commit")

    def _end(self, error: WindlassError | None) -> SaveResult:
        job, self._job = self._job, None
        assert job is not None
        if error is not None:
            if self._peers.is_main:
                shutil.rmtree(job.saving, ignore_errors=True)
            if self._fast is not None:
                shutil.rmtree(job.writer.path, ignore_errors=True)
        return SaveResult(step=job.step, seconds=time.monotonic() - job.began, error=error)


def _manifest(job: _SaveJob, world_size: int, files: tuple[FileEntry, ...]) -> Manifest:
    return Manifest(step=job.step, world_size=world_size, saved_at=time.time(), files=files, notes=job.notes)
