"""A cache that outlives the command that started it (`windlass cache start`), for example for a whole allocation.

The step of agents is started as a separate process. A file in the run folder stores its process id and start time, so
that `stop` ends exactly that process. When the job ends, the scheduler ends the step.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from windlass.agents.ship import ARCHIVE, agent_file, stop_argv
from windlass.agents.start import BUNDLE_FILE, Agents
from windlass.agents.step import Question, ask_step, run_node_step
from windlass.base.notation.hostlist import expand_hostlist
from windlass.base.settings import read_settings
from windlass.errors import MachineError, UsageError, WindlassError
from windlass.model.jsontext import from_json, to_json
from windlass.model.plan import Plan
from windlass.model.request import Request
from windlass.node.cache.config import state_folder
from windlass.node.sys.identity import start_of
from windlass.node.sys.reading import read_bytes
from windlass.plan.agents import plan_node_step
from windlass.plan.cache import agents_folder
from windlass.plan.inputs import Secrets
from windlass.plan.render.variables import JobFacts
from windlass.run.folder import PLAN_FILE, RunFolder, make_folder, open_folder, read_plan
from windlass.run.jobs import write_host_file
from windlass.run.planning import plan_request
from windlass.run.rendezvous import plan_hosts
from windlass.run.sidecars.cache_service import STATUS_ENTRY
from windlass.run.sidecars.compose import run_agents
from windlass.run.trust import is_own_folder, require_trust

AGENTS_FILE = "agents.json"
_STATUS_S = 30.0
_STOP_S = 30.0


class _Step(msgspec.Struct, frozen=True, kw_only=True):
    """The process that holds the agents: the launcher, or the only agent itself."""

    version: int = 1
    host: str
    pid: int
    started: str
    run_id: str
    uid: int
    what: str = "cache"
    """`cache`, or `images`: staged images, which the agents keep mounted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DetachedCache:
    """A cache that `windlass cache start` started."""

    folder: RunFolder
    plan: Plan
    step: _Step

    @property
    def agents(self) -> str:
        return agents_folder(self.plan, self.step.uid, self.step.run_id)

    def view(self, node: int | str) -> str:
        return f"{state_folder(self.agents, self.step.run_id, node)}/view"

    @property
    def view_word(self) -> str:
        """The path of the view for a task's shell on any node.

        Contains NODE if the launcher provides no node number.
        """
        return self.view({"srun": "$SLURM_NODEID", "local": "0"}.get(self.plan.launcher, "NODE"))


def start_detached(request: Request, environ: Mapping[str, str]) -> DetachedCache:
    """Start the agents of a request's cache and leave them running. All nodes are up on return.

    If a node fails to start, stops all agents and raises.
    """
    settings = read_settings(environ)
    plan = plan_request(request, environ, here=True).plan
    folder = make_folder(request.run_dir, settings.runs_dir, plan.name, state_dir=settings.state_dir)
    hosts = plan_hosts(plan)
    facts = JobFacts(run_dir=str(folder.path), run_id=folder.run_id, uid=os.getuid())
    write_host_file(plan, folder, hosts)
    with folder.used_by("cache start"):
        agents = run_agents(plan, folder, facts, hosts, environ)
        agents.start(detached=True)
        return detach(plan, folder, agents, facts)


def detach(plan: Plan, folder: RunFolder, agents: Agents, facts: JobFacts, what: str = "cache") -> DetachedCache:
    """Save which agents these are, so that a later command can query and stop them."""
    step = _Step(
        host=socket.gethostname(),
        pid=agents.pid,
        started=start_of(agents.pid),
        run_id=facts.run_id,
        uid=facts.uid,
        what=what,
    )
    folder.write_signed(AGENTS_FILE, to_json(step))
    folder.save_plan(plan, Secrets())
    return DetachedCache(folder=folder, plan=plan, step=step)


def detached_caches(folders: Iterable[RunFolder]) -> list[DetachedCache]:
    """Return the caches in these folders whose agents were started with a command and not stopped."""
    found = []
    for folder in folders:
        with contextlib.suppress(OSError, msgspec.DecodeError, WindlassError):
            step = from_json(read_bytes(folder.part(AGENTS_FILE)), _Step)
            found.append(DetachedCache(folder=folder, plan=read_plan(folder.path), step=step))
    return found


def find_detached(wanted: str | None, runs_dir: Path, state_dir: Path) -> DetachedCache:
    """Return the cache of the named run, or the only cache that was started with a command.

    Raises `NotTrustedError` for a run folder that this user did not make.
    """
    held = _find_detached(wanted, runs_dir, state_dir)
    require_trust(held.folder.path, state_dir)
    return held


def _find_detached(wanted: str | None, runs_dir: Path, state_dir: Path) -> DetachedCache:
    if wanted is not None:
        held = detached_caches([open_folder(wanted)])
        if not held:
            raise UsageError(
                f"{wanted} has no cache from `windlass cache start`",
                hint="start one: `windlass cache start --root PATH`",
            )
        return held[0]
    folders = [RunFolder(path.parent) for path in sorted(runs_dir.expanduser().glob(f"*/{PLAN_FILE}"))]
    held = detached_caches(folders)
    held = [one for one in held if is_own_folder(one.folder.path, state_dir)] or held[:1]
    if len(held) == 1:
        return held[0]
    if not held:
        raise UsageError(
            f"no cache is running for {runs_dir}", hint="start one with `windlass cache start --root PATH`"
        )
    names = ", ".join(os.fspath(one.folder.path) for one in held)
    raise UsageError("several caches are running", hint=f"give one of: {names}")


def status_of(held: DetachedCache, environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the status of every node. Node 0 is asked, and asks the others through the tree."""
    state = state_folder(held.agents, held.step.run_id, 0)
    question = Question(
        entry=STATUS_ENTRY,
        purpose="status",
        deadline_s=_STATUS_S,
        settings={"state": state},
        file=agent_file(held.agents, held.step.run_id, 0),
    )
    first = expand_hostlist(held.plan.hosts)[:1] if held.plan.hosts else ()
    step = plan_node_step(held.plan, question.purpose, hosts=first, nodes=1)
    answers = ask_step(step, question, environ=environ, folder=held.folder)
    found = [message["status"] for message in answers.messages if "status" in message]
    if not answers.answered or not found:
        said = answers.complaint.strip().splitlines()
        raise MachineError(
            f"the cache of {held.folder.path} does not answer: {said[-1] if said else 'no message'}",
            hint="stop it with `windlass cache stop`, then start it again",
        )
    return sorted(found, key=lambda status: int(status["node"]))


def stop_detached(held: DetachedCache, environ: Mapping[str, str]) -> None:
    """Ask the agents to end and wait for it. Succeeds if they have already ended.

    The nodes are asked directly, because a launcher that is stopped may give its tasks no time to unmount.
    """
    step = held.step
    asking = plan_node_step(held.plan, "end", host_file="step-hosts")
    program = stop_argv(held.agents, step.run_id, asking.place)
    here = not asking.arguments
    run_node_step(asking, program, environ=environ, timeout_s=_STOP_S + 10.0, folder=held.folder, check=not here)
    if step.host == socket.gethostname():
        _end_launcher(step)
    for name in (AGENTS_FILE, BUNDLE_FILE, ARCHIVE):
        held.folder.part(name).unlink(missing_ok=True)


def _end_launcher(step: _Step) -> None:
    """Wait until the launcher ends after its tasks, and end it if it does not."""
    end = time.monotonic() + 5.0
    while start_of(step.pid) == step.started and time.monotonic() < end:
        time.sleep(0.05)
    for sig, patience_s in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
        if start_of(step.pid) != step.started:
            break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(step.pid, sig)
        end = time.monotonic() + patience_s
        while start_of(step.pid) == step.started and time.monotonic() < end:
            time.sleep(0.05)
