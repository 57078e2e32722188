"""Decide what follows an attempt: restart, restart on other nodes, continue later, or give up. Pure.

Three limits prevent endless restarts: restarts in a row without a newer snapshot, the same error at the same step
twice, and jobs in a row without progress.
"""

from __future__ import annotations

import signal
from typing import Literal

import msgspec

from windlass.base.notation.counts import counted
from windlass.run.failure.root_cause import Cause

Action = Literal["done", "restart", "resubmit", "stop"]
IDLE_JOBS = 3
"""Jobs in a row that end without a newer snapshot, after which --until-done gives up."""
_IN_SCRIPT = "the script causes it, so a restart would fail the same way"
_STRIKES = 2
"""Number of failures on one node, without a failure on another node in between, that make it a bad node."""


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """One ended attempt of the run. `progress`: the attempt saved a newer snapshot."""

    cause: Cause
    job: str | None = None
    progress: bool = False


class RestartOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Restarts that the user allows, and the available resources."""

    restarts: int = 0
    until_done: bool = False
    spare_hosts: int = 0
    """Hosts of the allocation that are neither in use nor bad."""
    several_hosts: bool = True
    """Whether a node can be the cause. On a single machine there is no other node."""
    seconds_left: float | None = None
    """Seconds until the allocation ends, if known."""
    needed_s: float = 120.0
    """With less time than this, another start is not useful."""
    requeued: bool = False
    """The scheduler has already requeued the job."""


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What happens next, and why.

    `bad` is a host that this run avoids from now on. Later jobs avoid it too if there is `proof` about the node.
    Otherwise it is only stored as a suspect. `lifted` are hosts that were avoided because of an error that the script
    causes.
    """

    action: Action
    why: str
    bad: str | None = None
    proof: str = ""
    lifted: tuple[str, ...] = ()
    hint: str = ""


def decide(cause: Cause, past: tuple[Past, ...], options: RestartOptions) -> Decision:
    """Decide what to do. `past` contains all attempts in order. The last one ended with `cause`."""
    if cause.kind == "stopped":
        return Decision(action="stop", why="stopped on request")
    if cause.kind == "walltime":
        return _later(past, options, "the time of this allocation is up")
    if cause.kind == "preempted" and options.requeued:
        return Decision(action="stop", why="the scheduler has put the job back into its queue and starts it again")
    if cause.kind == "preempted":
        return _later(past, options, "this allocation is taken back")
    if cause.kind == "disk" and (cause.certain or _repeated(cause, past)):
        return Decision(action="stop", why="a file system is full", hint="free space, then `windlass runs resume`")
    if elsewhere := _elsewhere(cause, past):
        return Decision(
            action="stop",
            why=f"the same error on {cause.host} as on {', '.join(elsewhere)}: the script causes it, not a node",
            hint=_IN_SCRIPT,
            lifted=elsewhere,
        )
    if cause.kind == "user" and (again := _bug(cause, past)):
        return Decision(action="stop", why=again, hint=_IN_SCRIPT)
    if cause.kind == "memory" and _repeated(cause, past):
        return Decision(
            action="stop",
            why="out of memory twice at the same place",
            hint="use fewer ranks per node (--ranks-per-node), a smaller batch, or shard the model",
        )
    bad = _bad_host(cause, past, options)
    idle = _idle_restarts(past)
    if cause.kind != "resume" and idle >= options.restarts:
        how = f"after {counted(idle, 'restart')} without a newer snapshot" if idle else "no restart left"
        return _give_up(past, options, how, bad)
    if options.seconds_left is not None and options.seconds_left < options.needed_s:
        return _later(past, options, f"only {max(options.seconds_left, 0):.0f} s of this allocation are left", bad)
    if bad is not None and options.spare_hosts < 1:
        if cause.kind == "node":
            return _give_up(past, options, f"{bad} is lost and there is no spare node", bad, "add --spares 1")
        return Decision(action="restart", why=f"{bad} looks bad, but there is no spare node: trying again", bad=None)
    if bad is not None:
        return Decision(action="restart", why=f"a spare node replaces {bad}", bad=bad, proof=cause.proof)
    return Decision(
        action="restart",
        why="the failure looks transient" if cause.kind != "resume" else "the run continues from its last snapshot",
    )


def _elsewhere(cause: Cause, past: tuple[Past, ...]) -> tuple[str, ...]:
    """Return other hosts on which an error that code can cause ended an earlier attempt at the same or a later step."""
    if not cause.from_code or cause.host is None:
        return ()
    same = [one.cause for one in past[:-1] if one.cause.from_code and _same_place(one.cause, cause)]
    return tuple(sorted({before.host for before in same if before.host and before.host != cause.host}))


def _bug(cause: Cause, past: tuple[Past, ...]) -> str | None:
    if cause.certain:
        return "an error that a restart cannot fix"
    if _repeated(cause, past):
        return "the same error at the same step twice"
    return None


def _repeated(cause: Cause, past: tuple[Past, ...]) -> bool:
    """Return whether an earlier attempt ended with the same error, and this one did not get further."""
    return any(_same_place(one.cause, cause) for one in past[:-1])


def _same_place(before: Cause, cause: Cause) -> bool:
    further = cause.step is not None and before.step is not None and cause.step > before.step
    return before.same_as == cause.same_as and not further


def _bad_host(cause: Cause, past: tuple[Past, ...], options: RestartOptions) -> str | None:
    """Return the host to avoid, or None.

    It is a host with evidence about the node, a host on which windlass itself could not start a rank, or a host whose
    ranks die or hang twice in a row without a reason. An error of a shared file system makes no host bad.
    """
    if cause.host is None or not options.several_hosts or cause.origin == "file system":
        return None
    if cause.kind == "node" or cause.proof or (cause.kind == "transient" and cause.origin == "node"):
        return cause.host
    if cause.kind not in {"transient", "hang"} or cause.signal == signal.SIGTERM:
        return None
    in_a_row = 0
    for one in reversed(past):
        if one.cause.kind not in {"transient", "hang"} or one.cause.host != cause.host:
            break
        in_a_row += 1
    return cause.host if in_a_row >= _STRIKES else None


def _idle_restarts(past: tuple[Past, ...]) -> int:
    """Return the number of restarts in this job since the last newer snapshot."""
    count = 0
    for one in reversed(past):
        if one.progress or one.job != past[-1].job:
            break
        count += 1
    # The last entry has just ended. It was a restart unless it was the first of this row.
    return max(0, count - 1) if count == len([p for p in past if p.job == past[-1].job]) else count


def _later(past: tuple[Past, ...], options: RestartOptions, why: str, bad: str | None = None) -> Decision:
    proof = past[-1].cause.proof if bad else ""
    if not options.until_done:
        hint = "continue with `windlass runs resume`, or use --until-done"
        return Decision(action="stop", why=why, bad=bad, hint=hint, proof=proof)
    idle = _idle_jobs(past)
    if idle >= IDLE_JOBS:
        why = f"{idle} jobs in a row ended without a newer snapshot"
        return Decision(action="stop", why=why, bad=bad, hint="read the logs: `windlass logs`", proof=proof)
    return Decision(action="resubmit", why=why, bad=bad, proof=proof)


def _idle_jobs(past: tuple[Past, ...]) -> int:
    """Return the number of last jobs in a row in which no newer snapshot was saved."""
    jobs: dict[str | None, bool] = {}
    for one in past:
        jobs[one.job] = jobs.get(one.job, False) or one.progress
    count = 0
    for progress in reversed(list(jobs.values())):
        if progress:
            break
        count += 1
    return count


def _give_up(past: tuple[Past, ...], options: RestartOptions, why: str, bad: str | None, hint: str = "") -> Decision:
    """Decide against more starts in this allocation.

    After a lost node, a new job is submitted if the user allows it.
    """
    if options.until_done and past[-1].cause.kind == "node":
        return _later(past, options, why, bad)
    return Decision(action="stop", why=why, bad=bad, hint=hint, proof=past[-1].cause.proof if bad else "")
