"""Run a command of the user on a node of a running job, next to the ranks, with the common node step."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from windlass.agents.step import start_node_step
from windlass.backends.launchers.base import NodeStep
from windlass.backends.schedulers import get_scheduler
from windlass.base.notation.hostlist import expand_hostlist
from windlass.base.notation.shell import quote, quote_words
from windlass.base.procs.command import which
from windlass.base.settings import read_settings
from windlass.errors import MachineError, UsageError
from windlass.model.origin import Argument
from windlass.model.plan import Plan
from windlass.node.sys.reading import open_plain
from windlass.plan.agents import plan_node_step
from windlass.run.failure.ends import read_seats
from windlass.run.folder import RunFolder, read_plan
from windlass.run.supervise.attempts import read_owner
from windlass.run.supervise.runs import state_of
from windlass.run.trust import require_trust

RANK_PID = "WINDLASS_RANK_PID"
_POLL_S = 0.05
_STOP_S = 2.0

# The process of the rank: start at its first process, follow wrappers to the first Python, otherwise use the last one.
_FIND_RANK = (
    'p=$1; shift; for i in 1 2 3 4 5 6 7 8; do n=; read -r n < "/proc/$p/comm" 2>/dev/null; '
    'case $n in *python*) break ;; esac; c=; read -r c w < "/proc/$p/task/$p/children" 2>/dev/null; '
    '[ -n "$c" ] || break; p=$c; done; '
    f'[ -d "/proc/$p" ] && export {RANK_PID}="$p"; exec "$@"'
)

# A program started by ssh gets no signal when ssh is ended, but its input closes.
_UNTIL_HUNG_UP = "sh -c " + quote(
    'exec 3<&0; "$@" < /dev/null & p=$!; (cat <&3; kill "$p") > /dev/null 2>&1 & exec 3<&-; wait "$p"'
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The node (and rank) to examine."""

    host: str
    rank: int | None = None
    first_pid: int | None = None
    """First process of the rank, if it reported one."""


def find_place(plan: Plan, folder: RunFolder, *, node: str | None, rank: int | None) -> Place:
    """Find the node by its name or number, or the node of a rank. The first node if neither is given."""
    hosts = expand_hostlist(plan.hosts) if plan.hosts else (socket.gethostname().split(".", 1)[0],)
    if rank is not None:
        if not 0 <= rank < plan.world_size:
            raise UsageError(
                f"--rank {rank}: the run has ranks 0 to {plan.world_size - 1}",
                hint="`windlass logs --where` lists them",
            )
        seat = next((seat for seat in read_seats(folder.part("where")) if seat.rank == rank), None)
        return Place(host=hosts[rank // plan.ranks_per_node], rank=rank, first_pid=seat.pid if seat else None)
    if node is None:
        return Place(host=hosts[0])
    if node.isdigit() and node not in hosts:
        if int(node) >= len(hosts):
            raise UsageError(
                f"--node {node}: the run has nodes 0 to {len(hosts) - 1}",
                hint="give its number, or its name as `windlass logs --where` shows it",
            )
        return Place(host=hosts[int(node)])
    found = next((host for host in hosts if node in {host, host.split(".", 1)[0]}), None)
    if found is None:
        raise UsageError(f"--node {node}: not a node of this run", hint=f"it has {plan.hosts or hosts[0]}")
    return Place(host=found)


def look(
    folder: RunFolder,
    command: tuple[str, ...],
    environ: Mapping[str, str],
    *,
    node: str | None = None,
    rank: int | None = None,
    timeout_s: float,
    show: Callable[[bytes, bool], None],
) -> int:
    """Run the command on a node of a running job until it ends, and return its exit code (124: timeout).

    `show` receives the output as it arrives, and whether it is from the error stream. No process is left on return.
    Raises `NotTrustedError` for a run folder that is not ours.
    """
    require_trust(folder.path, read_settings(environ).state_dir)
    plan = read_plan(folder.path)
    _refuse_ended(folder, environ)
    place = find_place(plan, folder, node=node, rank=rank)
    inside = _job_environ(plan, folder, environ)
    if place.first_pid is not None:
        command = ("/bin/sh", "-c", _FIND_RANK, "windlass", str(place.first_pid), *command)
    if inside is None:
        step, command = _over_ssh(place.host), (f"{_UNTIL_HUNG_UP} sh {quote_words(command)}",)
    else:
        step = plan_node_step(plan, "exec", hosts=(place.host,), host_file=f"exec-hosts-{os.getpid()}", devices=True)
        step = msgspec.structs.replace(step, follows_stdin=False)  # the command may never read it: it ends by signal
    out, log = f"exec-{os.getpid()}.out", f"exec-{os.getpid()}.log"
    try:
        running = start_node_step(step, command, environ=inside or environ, folder=folder, files=(out, log))
        deadline = time.monotonic() + timeout_s
        read = {out: 0, log: 0}
        try:
            while True:
                code = running.code
                for name, at in read.items():
                    data = _new_bytes(folder, name, at)
                    if data:
                        read[name] = at + len(data)
                        show(data, name == log)
                if code is not None:
                    return code if 0 <= code < 256 else 128 - code
                if time.monotonic() > deadline:
                    return 124
                time.sleep(_POLL_S)
        finally:
            running.stop(_STOP_S)
    finally:
        for name in (out, log, f"exec-hosts-{os.getpid()}"):
            folder.part(name).unlink(missing_ok=True)


def _new_bytes(folder: RunFolder, name: str, at: int) -> bytes:
    with contextlib.suppress(OSError), open_plain(folder.part(name)) as file:
        file.seek(at)
        return file.read()
    return b""


def _refuse_ended(folder: RunFolder, environ: Mapping[str, str]) -> None:
    state = state_of(folder, environ)
    if state.state != "running" and not state.may_live:
        raise UsageError(
            f"{folder.path} does not run: {state.state}" + (f", {state.why}" if state.why else ""),
            hint="`windlass logs` and `windlass runs show` show its results",
        )


def _over_ssh(host: str) -> NodeStep:
    options = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--", host)
    because = "only nodes of a running job accept its user"
    return NodeStep(arguments=(Argument(words=("ssh", *options), because=because),), place=(), follows_stdin=True)


def _job_environ(plan: Plan, folder: RunFolder, environ: Mapping[str, str]) -> Mapping[str, str] | None:
    """Return the environment in which a launcher finds the job: ours inside the job, otherwise the scheduler's.

    None: the scheduler provides none, and the node is reached by ssh.
    """
    owner = read_owner(folder)
    if plan.scheduler == "none":
        here = socket.gethostname()
        if plan.launcher == "local" and owner is not None and owner.host.split(".")[0] != here.split(".")[0]:
            raise MachineError(f"the run is on {owner.host}, this is {here}", hint=f"run this command on {owner.host}")
        return environ
    job_id = plan.job_id or (owner.job_id if owner else None)
    scheduler = get_scheduler(plan.scheduler)
    offered = scheduler.job_environ(job_id) if job_id else None
    if offered is not None:
        return {**environ, **offered}
    if scheduler.in_allocation(environ):
        return environ
    if not which("ssh", environ):
        raise UsageError(
            f"{plan.scheduler} does not allow access to job {job_id} from outside, and ssh is not installed here",
            hint="run this command in a shell of that job",
        )
    return None
