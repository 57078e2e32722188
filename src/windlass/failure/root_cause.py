"""Why a run ended: the first cause among the cascade, named with rank, node and reason. Pure.

When one rank dies the others fail too, within milliseconds, each with an error of its own that is only an echo. The
first cause is the earliest end that is no echo: neither a signal that launchers send to the rest, nor the complaint of
a rank that lost its peer.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from typing import Literal

import msgspec

from windlass.failure.last_lines import ECHO, complains_of_peers, died_of, echo_line, error_line, traceback_of

Kind = Literal["stopped", "resume", "walltime", "preempted", "hang", "node", "memory", "disk", "user", "transient"]
"""`stopped`: somebody asked. `resume`: the ranks saved and left ("resume me"). `walltime`: the same, or not, because
the time is up; `preempted`: because the scheduler takes the nodes back. `disk`: a file system is full. `user`: an error
of the script. `transient`: anything that may not happen again."""

Fate = Literal["", "runs", "cancelled", "preempted", "requeued", "over"]
"""Of the job, as the scheduler says. `over`: its time is up. Empty: there is no job, or nobody asked or answered."""

RESUME_ME = 85  # windlass.runtime.codes says what it means; a test holds the two together
SCRIPT_BROKEN = 70  # launch.script.EXIT_BROKEN: the rank script could not start the command
_ENDERS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_TOGETHER_S = 1.0
"""Ends this close to the first may have happened before it: the clocks of nodes differ."""

_MEMORY = re.compile(r"OutOfMemoryError|out of memory|MemoryError|bad_alloc|cannot allocate memory", re.IGNORECASE)
_DISK = re.compile(r"No space left on device|Disk quota exceeded", re.IGNORECASE)
_MACHINE = re.compile(
    r"uncorrectable ECC|CUDA error: (?:an illegal|unspecified launch|device-side|.*ECC)|\bXid\b|HSA_STATUS_ERROR|"
    r"hipErrorLaunchFailure|DEVICE_LOST|Input/output error|Stale file handle|Transport endpoint|Bus error|"
    r"Remote I/O error|No route to host|Network is (?:unreachable|down)",
    re.IGNORECASE,
)
_CERTAIN = re.compile(
    r"^(?:SyntaxError|IndentationError|TabError|ModuleNotFoundError|ImportError|NameError|UnboundLocalError)\b"
)
"""Errors that no second try can mend."""


class End(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's end as its script reported it; `code` as a shell says it."""

    at: float
    rank: int
    host: str
    code: int

    @property
    def signal(self) -> int | None:
        return self.code - 128 if 128 < self.code < 128 + 65 else None


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about an attempt that did not end well."""

    exit_code: int
    ends: tuple[End, ...] = ()
    last_lines: Mapping[int, tuple[str, ...]] = {}
    """Of the ranks that failed."""
    said: str = ""
    """The launcher's own words about the first failure."""
    said_rank: int | None = None
    said_host: str | None = None
    said_signal: int | None = None
    stopped: bool = False
    """Somebody asked windlass to stop."""
    time_up: bool = False
    """The ranks were asked to leave because the allocation ends."""
    job: Fate = ""
    """What the scheduler has in mind with the job, where it was asked."""
    hang: str | None = None
    hang_rank: int | None = None
    hang_host: str | None = None
    lost: tuple[str, ...] = ()
    """Hosts that do not answer any more."""
    oom: frozenset[str] = frozenset()
    """Hosts on which the kernel killed for memory."""
    kernel: Mapping[str, tuple[str, ...]] = {}
    step: int | None = None
    """The last step that is known to have been reached."""


class Cause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The verdict on one attempt."""

    kind: Kind
    reason: str
    rank: int | None = None
    host: str | None = None
    code: int | None = None
    signal: int | None = None
    error: str = ""
    """The line that names the error, where the rank said one."""
    certain: bool = False
    """No second try can mend it."""
    machine: bool = False
    """Looks like the node's fault."""
    step: int | None = None
    traceback: tuple[str, ...] = ()

    @property
    def same_as(self) -> tuple[object, ...]:
        """Two causes with the same of these are the same error."""
        if self.kind == "disk":  # whichever file it was that did not fit
            return (self.kind,)
        return (self.kind, _without_numbers(self.error) if self.error else (self.code, self.signal))

    def line(self) -> str:
        """One line for a person: who, where, why."""
        who = f"rank {self.rank}" if self.rank is not None else ""
        where = f"on {self.host}" if self.host else ""
        place = " ".join(part for part in (who, where) if part)
        return f"{place}: {self.reason}" if place else self.reason


def find_cause(seen: Seen) -> Cause:
    """The first cause. Always one: where nothing is known, it says so."""
    if seen.job == "cancelled" or (seen.stopped and seen.job not in {"preempted", "requeued", "over"}):
        return Cause(kind="stopped", reason="stopped on request", step=seen.step)
    if seen.job in {"preempted", "requeued"}:
        return Cause(kind="preempted", reason="the scheduler takes the nodes back", step=seen.step)
    if seen.job == "over":
        return Cause(kind="walltime", reason="the allocation's time is up", step=seen.step)
    if seen.lost:
        host = _first_lost(seen)
        more = f" (and {len(seen.lost) - 1} more)" if len(seen.lost) > 1 else ""
        return Cause(kind="node", host=host, reason=f"the node does not answer any more{more}", step=seen.step)
    if seen.hang is not None:
        return Cause(kind="hang", rank=seen.hang_rank, host=seen.hang_host, reason=seen.hang, step=seen.step)
    if seen.time_up:
        return Cause(kind="walltime", reason="the allocation's time is up", step=seen.step)
    first = first_end(seen)
    if first is None:
        return _from_launcher(seen)
    if first.code == RESUME_ME:
        return Cause(kind="resume", reason="the ranks saved and left on request", code=first.code, step=seen.step)
    return _judge(first, seen)


def _first_lost(seen: Seen) -> str:
    return seen.said_host if seen.said_host in seen.lost and seen.said_host is not None else seen.lost[0]


def first_end(seen: Seen) -> End | None:
    """The earliest failed end that is no echo of another; the earliest of all where every one looks like an echo."""
    failed = sorted((end for end in seen.ends if end.code != 0), key=lambda end: end.at)
    if not failed:
        return None
    causes = [end for end in failed if not _is_echo(end, failed[0], seen)]
    return causes[0] if causes else failed[0]


def _is_echo(end: End, first: End, seen: Seen) -> bool:
    lines = seen.last_lines.get(end.rank, ())
    own = died_of(lines)
    if own and not ECHO.search(own):  # it failed by itself, even if it was ended before it was quite gone
        return False
    if end.signal in _ENDERS:
        return True
    if end.signal == signal.SIGKILL:  # launchers kill the rest in the end; at the beginning it came from elsewhere
        return end.at > first.at + _TOGETHER_S
    if end.signal not in {None, signal.SIGABRT} or end.code == RESUME_ME:  # watchdogs of collectives abort
        return False
    return complains_of_peers(lines)


def _judge(end: End, seen: Seen) -> Cause:
    lines = seen.last_lines.get(end.rank, ())
    error = error_line(lines)
    trace = traceback_of(lines)
    kernel = "; ".join(seen.kernel.get(end.host, ())[-1:])
    number = end.signal
    base = Cause(
        kind="transient",
        reason="",
        rank=end.rank,
        host=end.host,
        code=end.code if number is None else None,
        signal=number,
        step=seen.step,
        error=error,
        traceback=trace,
    )

    def found(kind: Kind, reason: str, *, machine: bool = False, certain: bool = False) -> Cause:
        return msgspec.structs.replace(base, kind=kind, reason=reason, machine=machine, certain=certain)

    if (number == signal.SIGKILL and end.host in seen.oom) or "Out Of Memory" in seen.said:
        reason = "killed for memory: the node had no more" + (f" ({kernel})" if kernel else "")
        return found("memory", reason)
    if _MEMORY.search(error):
        return found("memory", error)
    if number == signal.SIGABRT and not trace and (gave_up := echo_line(lines)):
        return found("transient", f"lost its peers ({gave_up})")
    # The threads of collectives may abort a process that ends by an exception, or a launcher end it meanwhile.
    if number is not None and not (number in {signal.SIGABRT, *_ENDERS} and died_of(lines)):
        reason = f"killed by {_signal_name(number)}" + (f" ({kernel})" if kernel else "")
        return found("transient", reason, machine=number == signal.SIGBUS)
    if end.code == SCRIPT_BROKEN and not trace:
        said = next((line for line in reversed(lines) if line.startswith("windlass: rank")), "it could not start")
        return found("transient", said.removeprefix("windlass: "), machine=True)
    if ECHO.search(error):
        return found("transient", f"lost its peers ({error})")
    if _DISK.search(error):
        # Snapshots have tried several times over many steps; anything else may have met a full disk by chance.
        return found("disk", error, certain=error.startswith("windlass."))
    if _MACHINE.search(error):
        return found("transient", error, machine=True)
    certain = bool(_CERTAIN.match(error)) or (end.code == 2 and not trace and _says_usage(lines))
    return found("user", error or f"exited with code {end.code}", certain=certain)


def _from_launcher(seen: Seen) -> Cause:
    """No rank reported its end: all that is left are the launcher's words."""
    kind: Kind = "memory" if "Out Of Memory" in seen.said else "transient"
    if seen.exit_code == RESUME_ME:
        return Cause(kind="resume", reason="the ranks saved and left on request", code=RESUME_ME, step=seen.step)
    how = seen.said or f"the launcher ended with code {seen.exit_code}, and no rank said why"
    return Cause(
        kind=kind,
        rank=seen.said_rank,
        host=seen.said_host,
        reason=how,
        code=seen.exit_code,
        signal=seen.said_signal,
        step=seen.step,
    )


def _says_usage(lines: tuple[str, ...]) -> bool:
    return any(re.match(r"usage: |.*: error: ", line) for line in lines)


def _without_numbers(text: str) -> str:
    """Addresses, ports and times differ from start to start; the error does not."""
    return re.sub(r"0x[0-9a-f]+|\d+", "#", text)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
