"""Puts together what was seen of an attempt that ended: for the verdict, and as evidence for people."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass

from windlass.agents.heartbeat import WatchedBeside
from windlass.errors import WindlassError
from windlass.failure.diagnostics import (
    Looked,
    Standing,
    failed_lines,
    keep_evidence,
    look_at_nodes,
    lost_hosts,
    odd_one_out,
    read_ends,
    stacks_of,
    standings,
    standings_text,
)
from windlass.failure.flight import missing_text
from windlass.failure.root_cause import RESUME_ME, Fate, Seen
from windlass.model.plan import Plan
from windlass.model.record import RunRecord
from windlass.run.folder import RunFolder
from windlass.supervise.attempts import ledger, newest_step
from windlass.supervise.disposition import ask_fate
from windlass.supervise.heartbeat_monitor import RankWatch


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """An attempt that is over. `stacks`: what the nodes said while it hung, if it did."""

    number: int
    plan: Plan
    record: RunRecord
    beside: WatchedBeside
    watch: RankWatch
    started: float
    stacks: Looked | None
    deadline_s: float | None = None


def gather(ended: Ended, folder: RunFolder, environ: Mapping[str, str]) -> tuple[Seen, str]:
    """What was seen, and in words where the ranks stood if they hung. Looks at the nodes once more, which also sweeps
    what the ranks left there; never raises."""
    plan, failure = ended.plan, ended.record.failure
    stopped = ended.record.outcome == "stopped"
    ends = read_ends(plan, folder)
    lines = failed_lines(plan, folder, ends)
    time_up = _time_up(ended, folder)
    after = None if stopped or time_up else _look_after(ended, folder, environ)  # at the end each second counts
    keep_evidence(plan, folder, ends, lines, after)
    where, odd = _standing(ended, folder)
    hang = ended.watch.hang
    seen = Seen(
        exit_code=ended.record.exit_code,
        ends=ends,
        last_lines=lines,
        said=failure.said if failure else "",
        said_rank=failure.rank if failure else None,
        said_host=failure.host if failure else None,
        said_signal=failure.signal if failure else None,
        stopped=stopped,
        time_up=time_up,
        job=_fate(ended, time_up, environ),
        hang=f"{hang}; it is {odd.words()}" if hang and odd else hang,
        hang_rank=odd.rank if odd else None,
        hang_host=odd.host if odd else None,
        lost=lost_hosts(plan, after) if after else (),
        oom=frozenset(ended.beside.oom),
        kernel=_kernel(ended, after),
        step=_step(ended, folder),
    )
    return seen, where


def _fate(ended: Ended, time_up: bool, environ: Mapping[str, str]) -> Fate:
    """Only where somebody told the ranks or windlass to leave: nothing else is the scheduler's doing."""
    code = ended.record.exit_code
    if ended.record.outcome == "stopped":
        told = code == 128 + signal.SIGTERM
    else:
        told = code == RESUME_ME and not time_up
    return ask_fate(ended.plan, environ, ended.deadline_s) if told else ""


def _time_up(ended: Ended, folder: RunFolder) -> bool:
    """The ranks were asked to leave because the time is up, or saw it themselves before they were asked."""
    if ended.watch.time_up or ended.record.exit_code != RESUME_ME:
        return ended.watch.time_up
    return any(line.what == "time-up" and line.at >= ended.started for line in ledger(folder))


def _look_after(ended: Ended, folder: RunFolder, environ: Mapping[str, str]) -> Looked:
    seconds = f"{time.time() - ended.started:.0f}"
    mark = f"WINDLASS_PLACE={folder.run_id}.{ended.number}."
    return look_at_nodes(ended.plan, folder, environ, "after", mark, seconds)


def _standing(ended: Ended, folder: RunFolder) -> tuple[str, Standing | None]:
    """Which ranks stood where, by stacks and flight records, and who holds the others up."""
    missing = missing_text(folder.part("flight"), ended.plan.world_size)
    if ended.stacks is None and not missing:
        return "", None
    with contextlib.suppress(WindlassError, OSError):
        folder.part("evidence").mkdir(mode=0o700, exist_ok=True)
        ranks: tuple[Standing, ...] = ()
        if ended.stacks is not None:
            ranks = standings(ended.plan, ended.stacks, stacks_of(ended.plan, folder))
        where = "; ".join(part for part in (standings_text(ranks), missing) if part)
        folder.write("evidence/standing.txt", where + "\n")
        return where, odd_one_out(ranks)
    return "", None


def _kernel(ended: Ended, after: Looked | None) -> dict[str, tuple[str, ...]]:
    """Kernel messages by host."""
    found: dict[str, tuple[str, ...]] = {}
    for line in after.lines if after else ():
        if "kernel" in line:
            host = str(line.get("host", ended.record.hosts))
            found[host] = (*found.get(host, ()), line["kernel"])
    return found


def _step(ended: Ended, folder: RunFolder) -> int | None:
    """How far it came: by the ranks' own signs, which are exact unless they were killed, else by snapshots."""
    shown = ended.beside.last_step()
    return shown if shown is not None else newest_step(ledger(folder))
