"""The verdict on a run that is started once; and where verdicts are kept."""

from __future__ import annotations

import contextlib
import signal
import time

import msgspec

from windlass.errors import MachineError
from windlass.model.jsontext import to_json
from windlass.model.plan import Plan
from windlass.model.record import RunRecord
from windlass.run.failure.decide import Options
from windlass.run.failure.evidence import observe
from windlass.run.failure.rank_logs import rank_logs
from windlass.run.failure.root_cause import RESUME_ME, Observed, first_end
from windlass.run.failure.snapshot_ledger import read_ledger
from windlass.run.failure.verdict import VERDICT_FILE, Attempt, Verdict, attempt_folders, judge, past_attempts
from windlass.run.folder import RunFolder

_LATE_S = 5.0
"""Schedulers look at the clock only now and then: an end this close to the limit may be because of it."""


def is_late(deadline_s: float | None) -> bool:
    """Whether the allocation's time is up, or so nearly that an end now is because of it."""
    return deadline_s is not None and time.time() >= deadline_s - _LATE_S


def ranks_saw_time_up(folder: RunFolder, since: float) -> bool:
    """Whether the ranks themselves saved and left because the allocation ends."""
    return any(line.what == "time-up" and line.at >= since for line in read_ledger(folder.path))


def judge_run(plan: Plan, folder: RunFolder, record: RunRecord, deadline_s: float | None = None) -> Verdict:
    """The verdict on a run that did not finish and is not supervised: as supervision would find it, from the run's
    files alone. Writes it down with its evidence; never raises."""
    now = time.time()
    started = now - record.seconds
    attempt = Attempt(
        folder=folder.path,
        number=len(attempt_folders(folder.path)),
        session=f"{plan.job_id or 'here'}/{started:.0f}",
        hosts=record.hosts,
        started=started,
        ended=now,
    )
    stopped = record.outcome == "stopped"
    seen = observe(rank_logs(plan, folder.path), record.exit_code, record.failure, stopped=stopped)
    if is_late(deadline_s) and _ended_by_scheduler(seen, record):
        seen = msgspec.structs.replace(seen, job="over")
    elif record.exit_code == RESUME_ME and ranks_saw_time_up(folder, started):
        seen = msgspec.structs.replace(seen, time_up=True)
    verdict = judge(attempt, seen, past_attempts(folder.path), lambda _: Options(several_hosts=plan.nodes > 1))
    save_verdict(folder, verdict)
    return verdict


def _ended_by_scheduler(seen: Observed, record: RunRecord) -> bool:
    """Whether windlass or the ranks were told to end (`salloc` sends a hang-up, Slurm ends the step itself), and no
    rank failed by itself."""
    if record.outcome == "stopped":
        return record.exit_code in {128 + signal.SIGTERM, 128 + signal.SIGHUP}
    end = first_end(seen)
    return end is None or end.signal == signal.SIGTERM


def save_verdict(folder: RunFolder, verdict: Verdict) -> None:
    """Write `verdict.json`; a full disk is no reason to end otherwise."""
    with contextlib.suppress(MachineError):
        folder.write_bytes(VERDICT_FILE, to_json(verdict))
