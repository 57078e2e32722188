"""Everything that a run folder can tell, as one value. What is missing or damaged becomes a note, never an error."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

import msgspec

from windlass.base.notation.counts import counted
from windlass.diagnose.report.measured import Measured, measure
from windlass.diagnose.report.rules import Subject, find, not_checked, share_of
from windlass.diagnose.watch.job import read_history, read_job
from windlass.errors import WindlassError
from windlass.model.finding import Finding, worst_first
from windlass.model.plan import Plan
from windlass.model.record import RunRecord
from windlass.plan.profile import PROFILE_FOLDER
from windlass.run.failure.ends import newest_step, read_ledger
from windlass.run.failure.verdict import attempt_folders, read_verdict
from windlass.run.folder import RunFolder, read_plan
from windlass.run.supervise.attempts import records
from windlass.run.supervise.runs import state_of

REPORT_VERSION = 2


class AttemptLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One start of the run."""

    number: int
    outcome: str
    seconds: float | None = None
    hosts: str = ""
    cause: str = ""
    then: str = ""
    to_step: int | None = None


class Against(msgspec.Struct, frozen=True, kw_only=True):
    """This run beside another one of the same work per rank."""

    name: str
    nodes: int
    step_ms: float
    efficiency: float
    """The other's step over this one's: 1 is perfect weak scaling."""


class RunReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run from its plan to its end. Durations in seconds; None: not known."""

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
    """Of all nodes, as planned."""
    hosts: str = ""
    command: tuple[str, ...] = ()
    started: str = ""
    seconds: float | None = None
    """Of all starts together."""
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
    measured: Measured
    profiles: tuple[str, ...] = ()
    """Files that profilers left, by name."""
    against: Against | None = None
    notes: tuple[str, ...] = ()
    """What this report could not know, and why."""


def gather(folder: RunFolder, environ: Mapping[str, str], *, against: RunFolder | None = None) -> RunReport:
    """The report of a run folder. Raises `WindlassError` where it holds no plan that can be read."""
    plan = read_plan(folder.path)
    notes: list[str] = []
    ends = _records(folder, notes)
    measured = _measured(folder, notes)
    state = state_of(folder, environ)
    last = ends[-1] if ends else None
    seconds = sum(record.seconds for record in ends) if ends else None
    began = _moment(ends[-1].started) if ends else None  # samples are of the last start
    steps = [rank.step_ms for rank in measured.ranks if rank.step_ms is not None]
    tails = [rank.p95_ms for rank in measured.ranks if rank.p95_ms is not None]
    devices = plan.nodes * len({device for rank in plan.binding.ranks for device in rank.devices})
    started = measured.first_step_at - began if measured.first_step_at is not None and began is not None else None
    attempts = _attempts(folder, notes)
    subject = Subject(
        plan=plan, measured=measured, seconds=last.seconds if last else None, started=began, state=state.state
    )
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
        startup_s=started if started is not None and started >= 0 else None,
        steps=max((rank.steps for rank in measured.ranks), default=0) or None,
        step_ms=_middle(steps),
        p95_ms=max(tails) if tails else None,
        wait_share=share_of(measured, "wait_share"),
        comm_share=share_of(measured, "comm_share"),
        saved_step=newest_step(read_ledger(folder.path)),
        findings=worst_first((*failures(attempts), *find(subject))),
        attempts=attempts,
        measured=measured,
        profiles=_profiles(folder),
        notes=(*notes, *measured.notes, *(not_checked(subject) if measured.spans else ())),
    )
    return msgspec.structs.replace(report, against=_against(report, against, environ)) if against else report


def failures(attempts: tuple[AttemptLine, ...]) -> tuple[Finding, ...]:
    """How many starts failed, and the last cause: bad where the run ended with it, a note where it went on."""
    failed = [attempt for attempt in attempts if attempt.cause]
    if not failed:
        return ()
    last = failed[-1]
    over = last is attempts[-1]
    return (
        Finding(
            kind="failure" if over else "went-on",
            severity="error" if over else "note",
            evidence=f"{len(failed)} of {counted(len(attempts), 'start')} failed, the last one because {last.cause}"
            + (f" ({last.then})" if last.then else ""),
            advice="`windlass runs show` has every start with its evidence" if over else "",
        ),
    )


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
        notes.append(f"how it ended is not known: {error.message}")
        return []


def _measured(folder: RunFolder, notes: list[str]) -> Measured:
    try:
        job = read_job(folder.path)
    except WindlassError as error:
        job = None
        notes.append(f"the last samples cannot be read: {error.message}")
    head, lines, torn = read_history(folder.path)
    if torn:
        notes.append(f"{counted(torn, 'line')} of the samples' history could not be read")
    if job is None and head is None:
        notes.append("no samples: the run was started without --watch")
    return measure(job, head, lines)


def _attempts(folder: RunFolder, notes: list[str]) -> tuple[AttemptLine, ...]:
    found = []
    for number, path in enumerate((*attempt_folders(folder.path), folder.path), start=1):
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
            )
        )
    return tuple(found)


def _profiles(folder: RunFolder) -> tuple[str, ...]:
    return tuple(sorted(f"{PROFILE_FOLDER}/{path.name}" for path in folder.part(PROFILE_FOLDER).glob("*")))


def _moment(text: str) -> float | None:
    try:
        return datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except ValueError:
        return None


def _middle(values: list[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None
