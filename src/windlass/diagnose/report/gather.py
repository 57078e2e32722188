"""Gather all facts of a run folder into one value. A missing or damaged file becomes a note, never an error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec

from windlass.base.notation.counts import counted
from windlass.diagnose.report.measured import Measured, measure
from windlass.diagnose.watch.figures import host_of, own_ms, pace, step_ms, wait_share
from windlass.diagnose.watch.job import Job, read_history
from windlass.diagnose.watch.rules import check
from windlass.errors import WindlassError
from windlass.model.finding import Finding
from windlass.model.plan import Plan
from windlass.model.record import RunRecord
from windlass.plan.profile import PROFILE_FOLDER
from windlass.run.failure.ends import newest_step, read_ledger
from windlass.run.failure.verdict import Times, attempt_folders, read_verdict
from windlass.run.folder import RunFolder, read_plan
from windlass.run.supervise.attempts import records
from windlass.run.supervise.runs import state_of
from windlass.run.supervise.watched import watched

REPORT_VERSION = 3


class AttemptLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One start of the run."""

    number: int
    outcome: str
    seconds: float | None = None
    hosts: str = ""
    cause: str = ""
    then: str = ""
    to_step: int | None = None
    recovery: dict[str, float] = {}
    """Seconds from this end to the first step of the next start, by part. A part includes unknown ones before it."""


class RankSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one rank over the whole run."""

    rank: int
    host: str
    steps: int = 0
    step_ms: float | None = None
    own_ms: float | None = None
    """Step time without waiting for other ranks and for data."""
    p95_ms: float | None = None
    wait_share: float | None = None
    comm_share: float | None = None
    cpu: float | None = None


class Against(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of this run with another run that has the same work per rank."""

    name: str
    nodes: int
    step_ms: float
    efficiency: float
    """The other run's step time divided by this run's: 1 is perfect weak scaling."""


class RunReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All facts about a run, from the plan to the result. Durations are in seconds. None means unknown."""

    version: int = REPORT_VERSION
    name: str
    path: str
    state: str
    why: str = ""
    site: str
    partition: str | None = None
    job_id: str | None = None
    scheduler: str
    launcher: str
    container: str | None = None
    nodes: int
    ranks_per_node: int
    world_size: int
    devices: int
    """Number of devices on all nodes, from the plan."""
    hosts: str = ""
    command: tuple[str, ...] = ()
    started: str = ""
    seconds: float | None = None
    """Total duration of all starts."""
    node_hours: float | None = None
    device_hours: float | None = None
    energy_kwh: float | None = None
    energy_of: str = ""
    startup_s: float | None = None
    steps: int | None = None
    step_ms: float | None = None
    p95_ms: float | None = None
    wait_share: float | None = None
    comm_share: float | None = None
    saved_step: int | None = None
    findings: tuple[Finding, ...]
    attempts: tuple[AttemptLine, ...]
    ranks: tuple[RankSummary, ...] = ()
    measured: Measured
    profiles: tuple[str, ...] = ()
    """Names of the files that profilers wrote."""
    against: Against | None = None
    notes: tuple[str, ...] = ()
    """Facts that this report could not determine, with the reasons."""
    not_checked: tuple[str, ...] = ()
    """`straggler: all ranks share one node`, one entry for each rule without its evidence."""


def gather(folder: RunFolder, environ: Mapping[str, str], *, against: RunFolder | None = None) -> RunReport:
    """The report of a run folder. Raises `WindlassError` if its plan is missing or cannot be read."""
    plan = read_plan(folder.path)
    notes: list[str] = []
    ends = _records(folder, notes)
    job, findings = watched(folder, environ)
    measured = _measured(folder, job, notes)
    figures = pace(job)
    not_checked = check(job).not_checked if figures.steps else ()
    state = state_of(folder, environ)
    last = ends[-1] if ends else None
    seconds = sum(record.seconds for record in ends) if ends else None
    devices = plan.nodes * len({device for rank in plan.binding.ranks for device in rank.devices})
    report = RunReport(
        name=plan.name,
        path=str(folder.path),
        state=state.state,
        why=state.why,
        site=plan.site,
        partition=plan.partition,
        job_id=plan.job_id or state.job_id,
        scheduler=plan.scheduler,
        launcher=plan.launcher,
        container=plan.container.runtime if plan.container else None,
        nodes=plan.nodes,
        ranks_per_node=plan.ranks_per_node,
        world_size=plan.world_size,
        devices=devices,
        hosts=last.hosts if last else plan.hosts or "",
        command=_command(plan),
        started=ends[0].started if ends else "",
        seconds=seconds,
        node_hours=plan.nodes * seconds / 3600 if seconds is not None else None,
        device_hours=devices * seconds / 3600 if seconds is not None and devices else None,
        energy_kwh=measured.energy_wh / 1000 if measured.energy_wh is not None else None,
        energy_of=measured.energy_of,
        startup_s=figures.startup_s,
        steps=figures.steps,
        step_ms=figures.step_ms,
        p95_ms=figures.p95_ms,
        wait_share=figures.wait_share,
        comm_share=figures.comm_share,
        saved_step=newest_step(read_ledger(folder.path)),
        findings=findings,
        attempts=_attempts(folder, notes),
        ranks=_ranks(job),
        measured=measured,
        profiles=_profiles(folder),
        not_checked=not_checked,
        notes=(*notes, *_unchecked_note(not_checked)),
    )
    return msgspec.structs.replace(report, against=_against(report, against, environ)) if against else report


def _unchecked_note(not_checked: tuple[str, ...]) -> list[str]:
    """All rules without their evidence in one line, grouped by reason."""
    reasons = Counter(rule.partition(": ")[2] for rule in not_checked)
    listed = ", ".join(f"{why} ({count})" for why, count in reasons.most_common())
    return [f"{counted(len(not_checked), 'rule')} not checked: {listed}; `report --json` lists them"] if listed else []


def _against(report: RunReport, other: RunFolder, environ: Mapping[str, str]) -> Against | None:
    them = gather(other, environ)
    if not report.step_ms or not them.step_ms:
        return None
    return Against(name=them.name, nodes=them.nodes, step_ms=them.step_ms, efficiency=them.step_ms / report.step_ms)


def _command(plan: Plan) -> tuple[str, ...]:
    return tuple("***" if n in plan.secret_words else word for n, word in enumerate(plan.command))


def _records(folder: RunFolder, notes: list[str]) -> list[RunRecord]:
    try:
        return [record for _, record in records(folder)]
    except WindlassError as error:
        notes.append(f"its result is unknown: {error.message}")
        return []


def _ranks(job: Job) -> tuple[RankSummary, ...]:
    return tuple(
        RankSummary(
            rank=rank.rank,
            host=host_of(job, rank),
            steps=rank.steps,
            step_ms=step_ms(job, rank),
            own_ms=own_ms(rank) if rank.step_ms is not None else None,
            p95_ms=rank.p95_ms,
            wait_share=wait_share(job, rank),
            comm_share=rank.comm_share,
            cpu=rank.cpu,
        )
        for rank in job.ranks
    )


def _measured(folder: RunFolder, job: Job, notes: list[str]) -> Measured:
    head, lines, torn = read_history(folder.path)
    if torn:
        notes.append(f"{counted(torn, 'line')} of the samples' history could not be read")
    return measure(job, head, lines)


def _attempts(folder: RunFolder, notes: list[str]) -> tuple[AttemptLine, ...]:
    found = []
    paths = (*attempt_folders(folder.path), folder.path)
    for number, path in enumerate(paths, start=1):
        verdict = read_verdict(path)
        try:
            record = RunFolder(path).result()
        except WindlassError as error:
            notes.append(f"start {number}: {error.message}")
            record = None
        found.append(
            AttemptLine(
                number=number,
                outcome=record.outcome if record else "no result",
                seconds=record.seconds if record else None,
                hosts=(verdict.hosts if verdict else "") or (record.hosts if record else ""),
                cause=verdict.cause.line() if verdict else "",
                then=f"{verdict.decision.action} ({verdict.decision.why})" if verdict else "",
                to_step=verdict.to_step if verdict else None,
                recovery=_recovery(folder, verdict.times, paths[number]) if verdict and number < len(paths) else {},
            )
        )
    return tuple(found)


def _recovery(folder: RunFolder, times: Times, following: Path) -> dict[str, float]:
    """What the recovery from a failure cost, from the verdict, the reports of the next ranks and the ledger."""
    begun = [path.stat().st_mtime for path in (following / "where").glob("*")]
    moments = [("detect", times.noticed), ("end", times.ended), ("decide", times.decided)]
    moments.append(("start", min(begun) if begun else None))
    lines = [line for line in read_ledger(folder.path) if line.at > times.decided]
    for part, what in (("import", "imported"), ("meet", "met"), ("load", "loaded"), ("first step", "stepped")):
        moments.append((part, next((line.at for line in lines if line.what == what), None)))
    spent: dict[str, float] = {}
    before = times.failed
    for part, at in moments if before is not None else ():
        if at is not None and before is not None:  # a part that overlaps the one before takes no time of its own
            spent[part] = round(max(at - before, 0.0), 3)
            before = max(at, before)
    return spent


def _profiles(folder: RunFolder) -> tuple[str, ...]:
    return tuple(sorted(f"{PROFILE_FOLDER}/{path.name}" for path in folder.part(PROFILE_FOLDER).glob("*")))
