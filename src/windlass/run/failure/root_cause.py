"""Find the root cause of an end among all failures, with rank, node and reason. Pure.

When one rank dies, the others fail too, within milliseconds, each with a different error: a secondary failure. The root
cause is the earliest end that is not a secondary failure: neither a signal that launchers send to the other ranks, nor
the error of a rank that lost its peer.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from typing import Literal

import msgspec

from windlass.model.record import RankFailure
from windlass.run.failure.ends import End
from windlass.run.failure.rank_states import RankState
from windlass.run.failure.signs import (
    LOST_PEERS,
    Origin,
    complains_of_peers,
    died_of,
    error_line,
    first_sign_line,
    kernel_proof,
    lost_peer_line,
    sign_of,
    traceback_of,
)

CauseKind = Literal["stopped", "resume", "walltime", "preempted", "hang", "node", "memory", "disk", "user", "transient"]
"""Kinds of causes.

`stopped`: a user requested it. `resume`: the ranks saved and exited ("resume me"). `walltime`: the time limit, with or
without a save. `preempted`: the scheduler takes the nodes back. `disk`: a file system is full. `user`: an error of the
script. `transient`: an error that another start may not have.
"""

JobDisposition = Literal["", "runs", "cancelled", "preempted", "requeued", "over"]
"""State of the job in the scheduler. `over`: its time is up. Empty: no job, no query or no answer."""

RESUME_ME = 85  # defined in windlass.runtime.codes (a test compares the two)
SCRIPT_BROKEN = 70  # plan.render.rank_script.EXIT_BROKEN: the rank script could not start the command
_ENDERS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_OWN_SIGNALS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
_TOGETHER_S = 1.0
"""Ends this close to the first may have happened before it, because the clocks of nodes differ."""

_CERTAIN = re.compile(
    r"^(?:SyntaxError|IndentationError|TabError|ModuleNotFoundError|ImportError|NameError|UnboundLocalError)\b"
    r"(?!.*cannot open shared object file)"
)
"""Errors that a restart cannot fix. A missing library is excluded: its file system may only be unresponsive."""


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence about an attempt that did not finish."""

    exit_code: int
    ends: tuple[End, ...] = ()
    last_lines: Mapping[int, tuple[str, ...]] = {}
    """Last lines of the ranks that failed."""
    launcher: RankFailure | None = None
    """The first failure that the launcher reports."""
    stopped: bool = False
    """A user asked windlass to stop."""
    time_up: bool = False
    """The ranks were asked to exit because the allocation ends."""
    left_early: bool = False
    """The ranks of a trainer were asked to save and leave. Code 0 does not mean that the work is done."""
    job: JobDisposition = ""
    hang: str | None = None
    straggler: RankState | None = None
    """The rank that holds up the others in a hang."""
    lost: tuple[str, ...] = ()
    """Hosts that no longer respond."""
    oom: frozenset[str] = frozenset()
    """Hosts on which the kernel killed a process for memory."""
    kernel: Mapping[str, tuple[str, ...]] = {}
    step: int | None = None
    """The last step that is known to have been reached."""
    finished: bool = False
    """Every rank reported that it ended with code 0."""

    @property
    def said(self) -> str:
        """The launcher's message about the first failure."""
        return self.launcher.said if self.launcher else ""


class Cause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The root cause of one attempt's end. `reason` is a sentence, or continues one that starts with rank or node."""

    kind: CauseKind
    reason: str
    rank: int | None = None
    host: str | None = None
    code: int | None = None
    signal: int | None = None
    error: str = ""
    """The line that names the error, if the rank printed one."""
    certain: bool = False
    """A restart cannot fix it."""
    origin: Origin = "unknown"
    """The faulty component, as far as the error shows it."""
    proof: str = ""
    """Evidence about the node itself, which the script cannot cause. Only this makes a node bad for later jobs."""
    step: int | None = None
    traceback: tuple[str, ...] = ()

    @property
    def same_as(self) -> tuple[object, ...]:
        """Return a key that is equal for two causes with the same error."""
        if self.kind == "disk":  # the name of the file does not matter
            return (self.kind,)
        return (self.kind, _without_numbers(self.error) if self.error else (self.code, self.signal))

    @property
    def from_code(self) -> bool:
        """Return whether the script's code can cause it: an error, or a signal that a process causes itself."""
        if self.proof or self.origin in {"file system", "network", "job"} or self.kind not in {"user", "transient"}:
            return False
        return bool(self.error) or self.signal in _OWN_SIGNALS or (self.signal is None and self.code is not None)

    def line(self) -> str:
        """Return one sentence with the rank, the node and the reason."""
        who = f"rank {self.rank}" if self.rank is not None else "node" if self.host else ""
        where = f"{'on ' if self.rank is not None else ''}{self.host}" if self.host else ""
        return " ".join(part for part in (who, where, self.reason) if part)


def find_cause(seen: Observed) -> Cause:
    """Return the root cause. If there is no evidence, returns a cause that states so."""
    if seen.job == "cancelled" or (seen.stopped and seen.job not in {"preempted", "requeued", "over"}):
        return Cause(kind="stopped", reason="the run was stopped on request", step=seen.step)
    if seen.job in {"preempted", "requeued"}:
        return Cause(kind="preempted", reason="the scheduler takes the nodes back", step=seen.step)
    if seen.job == "over":
        return Cause(kind="walltime", reason="the allocation's time is up", step=seen.step)
    if seen.lost:
        said = seen.launcher.host if seen.launcher else None
        host = said if said in seen.lost else seen.lost[0]
        more = f" (and {len(seen.lost) - 1} more)" if len(seen.lost) > 1 else ""
        reason = f"no longer responds{more}"
        return Cause(kind="node", host=host, reason=reason, step=seen.step, origin="node", proof="it does not respond")
    if seen.hang is not None:
        return _hang(seen.hang, seen)
    if seen.time_up:
        return Cause(kind="walltime", reason="the allocation's time is up", step=seen.step)
    first = first_end(seen)
    if first is None:
        return _from_launcher(seen)
    early = _left_early(first, seen)
    if early is not None:
        reason = "exited with code 0 while the other ranks still needed it"
        left = Cause(kind="user", reason=reason, rank=early.rank, host=early.host or None, code=0, origin="script")
        return msgspec.structs.replace(left, step=seen.step)
    if first.code == RESUME_ME:
        return Cause(kind="resume", reason="the ranks saved and exited on request", code=first.code, step=seen.step)
    return _proven(_judge(first, seen), seen)


def _hang(hang: str, seen: Observed) -> Cause:
    rank = seen.straggler
    if rank is None:
        return _proven(Cause(kind="hang", reason=f"the ranks hang: {hang}", step=seen.step), seen)
    end = next((end for end in seen.ends if end.rank == rank.rank), None)
    where = f"it exited with code {end.code}" if end is not None and rank.gone else rank.text()
    reason = f"blocks the others: {hang}; it is {where}"
    return _proven(Cause(kind="hang", rank=rank.rank, host=rank.host, reason=reason, step=seen.step), seen)


def _proven(cause: Cause, seen: Observed) -> Cause:
    """Add the kernel's evidence about the node to the cause. If no rank is the cause, evidence of any node counts."""
    hosts = (cause.host,) if cause.rank is not None and cause.host else tuple(seen.kernel)
    for host in hosts:
        found = kernel_proof(seen.kernel.get(host, ()))
        if found is not None:
            sign, line = found
            reason = cause.reason if line in cause.reason else f"{cause.reason} ({line})"
            proof = f"{sign.name}: {line}"
            return msgspec.structs.replace(cause, host=host, origin=sign.origin, proof=proof, reason=reason)
    return cause


def first_end(seen: Observed) -> End | None:
    """Return the earliest failed end that is not a secondary failure, or the earliest end if all are secondary.

    An end that only the launcher reported comes before the ranks that exited on request: they were asked because of it.
    """
    failed = sorted((end for end in seen.ends if end.code != 0), key=lambda end: end.at)
    if not failed:
        return None
    first = failed[0]
    causes = [end for end in failed if end.reported and not is_secondary(end, first, seen.last_lines.get(end.rank, ()))]
    unreported = [end for end in failed if not end.reported]
    if unreported and all(end.code == RESUME_ME for end in causes):
        alone = [end for end in unreported if not is_secondary(end, end, seen.last_lines.get(end.rank, ()))]
        causes = alone + causes
    return _own_end(causes[0] if causes else first, seen.last_lines)


def _left_early(first: End, seen: Observed) -> End | None:
    """Return the first rank that ended with code 0, if the others failed later and only because they lost a peer."""
    lines = seen.last_lines.get(first.rank, ())
    if not complains_of_peers(lines) or not is_secondary(first, first, lines):
        return None
    left = [end for end in seen.ends if end.code == 0 and end.at < first.at]
    return min(left, key=lambda end: end.at, default=None)


def end_code(seen: Observed) -> int:
    """Return the exit code of the attempt as a shell reports it: of the first failed rank, else of the launcher."""
    first = first_end(seen)
    if first is not None:
        return first.code
    return seen.launcher.exit_code if seen.launcher is not None else seen.exit_code


def _own_end(end: End, last_lines: Mapping[int, tuple[str, ...]]) -> End:
    """Return the end with the rank's own code.

    A rank that dies from an exception closes its connections first. Its peers may fail before it has exited, and then
    the launcher ends it, or a thread of a collective aborts it. Python's exit code for an exception is 1.
    """
    interrupted = end.signal in {signal.SIGABRT, *_ENDERS} and died_of(last_lines.get(end.rank, ()))
    return msgspec.structs.replace(end, code=1) if interrupted else end


def is_secondary(end: End, first: End, lines: tuple[str, ...]) -> bool:
    """Return whether another end caused this one.

    `first` is the earliest of all, `lines` are this rank's last lines.
    """
    own = died_of(lines)
    if own and not LOST_PEERS.search(own):  # it failed on its own, even if it was ended before it had exited
        return False
    if end.signal in _ENDERS:
        return True
    if end.signal == signal.SIGKILL:  # launchers kill the other ranks last, an early SIGKILL has another source
        return end.at > first.at + _TOGETHER_S
    if end.signal not in {None, signal.SIGABRT} or end.code == RESUME_ME:  # watchdogs of collectives abort
        return False
    return complains_of_peers(lines)


def _judge(end: End, seen: Observed) -> Cause:
    lines = seen.last_lines.get(end.rank, ())
    trace = traceback_of(lines)
    error = error_line(lines) or (first_sign_line(lines) if end.signal in _OWN_SIGNALS else "")
    kernel = "; ".join(seen.kernel.get(end.host, ())[-1:])
    number = end.signal
    how = f"exited with code {end.code}" if number is None else f"failed with {signal_name(number)}"
    failed = how + (f": {error}" if error else "")
    base = Cause(
        kind="transient",
        reason="",
        rank=end.rank,
        host=end.host or None,
        code=end.code if number is None else None,
        signal=number,
        step=seen.step,
        error=error,
        traceback=trace,
    )

    def found(kind: CauseKind, reason: str, origin: Origin = "unknown", *, certain: bool = False) -> Cause:
        return msgspec.structs.replace(base, kind=kind, reason=reason, origin=origin, certain=certain)

    if (number == signal.SIGKILL and end.host in seen.oom) or ("Out Of Memory" in seen.said and not trace):
        reason = "was killed for memory: the node ran out of memory" + (f" ({kernel})" if kernel else "")
        return found("memory", reason, "job")
    sign = sign_of(error)
    if sign is not None and sign.ends == "memory":
        return found("memory", failed, "job")
    if number == signal.SIGABRT and not trace and (gave_up := lost_peer_line(lines)):
        return found("transient", f"lost its peers ({gave_up})")
    if number is not None and sign is None:
        reason = f"was killed by {signal_name(number)}" + (f" ({kernel})" if kernel else "")
        return found("transient", reason)
    if end.code == SCRIPT_BROKEN and not trace:
        said = next((line for line in reversed(lines) if line.startswith("windlass: rank")), "")
        why = said.partition(": ")[2].partition(": ")[2] or "the script printed no reason"
        return found("transient", f"could not start: {why}", "node")
    if LOST_PEERS.search(error):
        return found("transient", f"lost its peers ({error})", "network")
    if sign is not None and sign.ends == "disk":
        # Snapshots have tried several times over many steps. Other writes may have met a full disk by chance.
        return found("disk", failed, "job", certain=error.startswith("windlass."))
    if sign is not None and sign.origin != "script":
        proof = f"{sign.name}: {error}" if sign.proves else ""
        return msgspec.structs.replace(found("transient", failed, sign.origin), proof=proof)
    certain = bool(_CERTAIN.match(error)) or (end.code == 2 and not trace and _says_usage(lines))
    return found("user", failed, "script", certain=certain)


def _from_launcher(seen: Observed) -> Cause:
    """Return a cause from the launcher's message only. No rank is known to have failed."""
    said = seen.launcher
    if end_code(seen) == RESUME_ME:
        return Cause(kind="resume", reason="the ranks saved and exited on request", code=RESUME_ME, step=seen.step)
    if said is None or not (said.said or said.signal):
        reason = f"the launcher ended with code {end_code(seen)}, and no rank reported a reason"
    else:
        how = said.said or f"a rank was killed by {signal_name(said.signal or 0)}"
        reason = f"failed; the launcher says: {how}" if said.host else f"the launcher says: {how}"
    return Cause(
        kind="memory" if "Out Of Memory" in seen.said else "transient",
        host=said.host if said else None,
        reason=reason,
        code=end_code(seen),
        signal=said.signal if said else None,
        step=seen.step,
    )


def _says_usage(lines: tuple[str, ...]) -> bool:
    return any(re.match(r"usage: |.*: error: ", line) for line in lines)


def _without_numbers(text: str) -> str:
    """Remove numbers, because addresses, ports and times differ between starts while the error is the same."""
    return re.sub(r"0x[0-9a-f]+|\d+", "#", text)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
