"""The lease of a snapshot folder: a small file allows one run at a time to write.

File locks cannot be used: on Lustre they are often off or local to a node. A file created by `link` (atomic everywhere)
names the holder, and a thread renews its time stamp. A holder is replaced if it is provably dead, or silent for the
duration of the lease. The newcomer measures silence with its own clock. It compares time stamps of two nodes only if
minutes of difference do not matter. A holder that lost its lease (stopped, swapped out) detects that at its next commit
and does not commit.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from windlass.errors import MachineError
from windlass.node.sys import identity
from windlass.node.sys.atomic import replace_file
from windlass.node.sys.reading import read_object
from windlass.runtime import codes
from windlass.runtime.store import disk_error, new_token

HOLDER = "holder.json"
RENEW_S = 5.0
LEASE_S = 30.0
_POLL_S = 0.25


class HeldError(MachineError):
    """Another run writes into this folder."""

    transient = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """The process that writes into a folder, as it described itself."""

    token: str
    host: str
    pid: int
    started: str
    boot: str
    pid_space: str
    user: str
    job: str
    run_id: str
    attempt: int
    since: float

    def describe(self) -> str:
        """Describe the holder for people: process, host, start time."""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        job = f", job {self.job}" if self.job else ""
        run = f", run {self.run_id}" if self.run_id else ""
        return f"process {self.pid} of {self.user} on {self.host}{job}{run}, since {when}"


def this_process(environ: Mapping[str, str] | None = None) -> Holder:
    """Return this process as a holder."""
    env = identity.own_environ() if environ is None else environ
    attempt = env.get(codes.ATTEMPT, "0")
    own = identity.this_process()
    boot_id, _, pid_space = own.boot.partition(" ")
    return Holder(
        token=new_token() + new_token(),
        host=own.host,
        pid=own.pid,
        started=own.started,
        boot=boot_id,
        pid_space=pid_space,
        user=_user(),
        job=env.get("SLURM_JOB_ID") or env.get("PBS_JOBID") or env.get("FLUX_JOB_ID") or "",
        run_id=env.get(codes.RUN_ID, ""),
        attempt=int(attempt) if attempt.isdigit() else 0,
        since=time.time(),
    )


class Lease:
    """The lease of a folder, created by `acquire`. `release` returns it and may be called twice."""

    def __init__(self, folder: Path, me: Holder, renew_s: float) -> None:
        self._folder = folder
        self._me = me
        self._done = threading.Event()
        self._renew_s = renew_s
        self._thread = threading.Thread(target=self._renew, name="windlass-lease", daemon=True)
        self._thread.start()

    def still_mine(self) -> bool:
        """True while no other process has replaced this holder."""
        other = read_holder(self._folder)
        return other is not None and other.token == self._me.token

    def require(self) -> None:
        """Raise `HeldError` if another run has taken the folder meanwhile."""
        if not self.still_mine():
            other = read_holder(self._folder)
            who = other.describe() if other else "nobody now"
            raise HeldError(
                f"{self._folder} is no longer held by this run (now: {who}); nothing was committed",
                hint="this run did not renew its lease in time: stop it, because the other run continues",
            )

    def release(self) -> None:
        """Release the folder. The claim of another run is not changed."""
        if self._done.is_set() or os.getpid() != self._me.pid:
            return
        self._done.set()
        self._thread.join(self._renew_s)
        with contextlib.suppress(OSError):
            if self.still_mine():
                (self._folder / HOLDER).unlink()

    def _renew(self) -> None:
        while not self._done.wait(self._renew_s):
            with contextlib.suppress(OSError):  # a slow file server: retry at the next renewal
                if self.still_mine():
                    os.utime(self._folder / HOLDER)


def acquire(
    folder: Path,
    *,
    me: Holder | None = None,
    lease_s: float = LEASE_S,
    renew_s: float = RENEW_S,
    tell: Callable[[str], None] = lambda line: None,
) -> Lease:
    """Lease `folder`, and create it if needed. `HeldError` names the run that holds it.

    Waits at most about `lease_s`, and only if it cannot determine at once whether the holder is alive.
    """
    me = me or this_process()
    claim = folder / f".claim-{me.token}"
    try:
        folder.mkdir(mode=0o775, parents=True, exist_ok=True)  # not for every user, whatever the umask
        replace_file(claim, json.dumps(asdict(me)).encode(), 0o644)
    except OSError as error:
        raise disk_error(error, folder, "write snapshots in") from error
    try:
        _claim(folder, claim, me, lease_s, tell)
    finally:
        claim.unlink(missing_ok=True)
    return Lease(folder, me, renew_s)


def read_holder(folder: Path) -> Holder | None:
    """Return the holder of the folder, or None. A file in another format counts as none."""
    try:
        return Holder(**read_object(folder / HOLDER))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _claim(folder: Path, claim: Path, me: Holder, lease_s: float, tell: Callable[[str], None]) -> None:
    """Turn the claim into the holder's file, or raise. Every iteration reads the state again."""
    target = folder / HOLDER
    watched: tuple[float, float] | None = None  # the holder's stamp, and when it was first seen
    began = time.monotonic()
    while True:
        try:
            os.link(claim, target)
            return
        except FileExistsError:
            pass
        except OSError as error:
            raise disk_error(error, folder, "write snapshots in") from error
        other = read_holder(folder)
        stamp = _stamp(target)
        if stamp is None:
            continue  # released between the two calls
        silent = watched is not None and time.monotonic() - watched[1] > lease_s
        if (
            other is None
            or _replaced_by(other, me)
            or _alive(other) is False
            or silent
            or _long_silent(claim, stamp, lease_s)
        ):
            round_number = int((time.monotonic() - began) / (2 * lease_s))
            if _take_over(claim, target, other, round_number):
                return
            time.sleep(_POLL_S / 10)
            continue
        if _alive(other) or (watched is not None and stamp != watched[0]):
            raise HeldError(
                f"{folder} is in use by another run: {other.describe()}",
                hint="wait for it, stop it, or give this run another folder",
            )
        if watched is None:
            watched = (stamp, time.monotonic())
            tell(
                f"{folder}: waiting up to {lease_s:.0f} s to find out whether its last holder is alive: "
                f"{other.describe()}"
            )
        time.sleep(_POLL_S)


def _take_over(claim: Path, target: Path, judged: Holder | None, round_number: int) -> bool:
    """Replace the holder that was judged dead. Returns False if another process is replacing it or was faster.

    There is one ticket per judged holder. Of many newcomers, one gets the ticket. It checks again before it replaces
    the holder. So no process replaces a holder that it did not judge. If a newcomer dies with the ticket, one round is
    lost.
    """
    ticket = target.with_name(f".takeover-{judged.token if judged else 'damaged'}-{round_number}")
    try:
        os.link(claim, ticket)
    except FileExistsError:
        return False
    try:
        current = read_holder(target.parent)
        if (current and current.token) != (judged and judged.token) or not target.exists():
            return False
        claim.rename(target)
        return True
    finally:
        ticket.unlink(missing_ok=True)


def _replaced_by(other: Holder, me: Holder) -> bool:
    """Return whether `me` is a restart of the same run.

    The launcher restarts a run only after its former ranks have ended.
    """
    return me.run_id != "" and other.run_id == me.run_id and other.attempt < me.attempt


def _alive(other: Holder) -> bool | None:
    """Return whether the process lives. None if it cannot be looked up from here."""
    return identity.Process(other.host, other.pid, other.started, f"{other.boot} {other.pid_space}").alive()


def _long_silent(claim: Path, stamp: float, lease_s: float) -> bool:
    """Return whether it was silent for so long that no difference between two nodes' clocks can explain it."""
    return claim.stat().st_mtime - stamp > 10 * lease_s


def _stamp(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
