"""The agents of a run: one file into the run folder, one small step beside the ranks, a barrier, and an orderly end.

The agents end when their standard input does, so that they also end when windlass is killed outright: the kernel closes
the pipe. Launchers that hand standard input to one rank only get a signal instead.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.agents.bundle import Manifest, ServiceSpec, bundle_bytes
from windlass.agents.command import NODE_PYTHONS, OLDEST, agent_words
from windlass.agents.interpreter import ARCHIVE, fits, pack_interpreter
from windlass.errors import DeadlineError, MachineError
from windlass.launchers import get_launcher
from windlass.launchers.base import LaunchSpec
from windlass.model.origin import words_of
from windlass.model.plan import Plan
from windlass.procs.command import pdeathsig
from windlass.run.folder import RunFolder

BUNDLE_FILE = "agent.pyz"
OUT_FILE = "agents.out"
LOG_FILE = "agents.log"
_HOSTS_FILE = "agent-hosts"
_STDIN_TO_ALL = frozenset({"srun", "local"})
_KEY_BYTES = 32
_POLL_S = 0.02
_END_S = 20.0
Lines = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentsPlan:
    """What to start: `launch` are the launcher's words for one task per node, empty on this machine alone."""

    launch: tuple[str, ...]
    launcher: str
    run_id: str
    hosts: tuple[str, ...]
    folder: str
    cpus: tuple[int, ...]
    services: tuple[ServiceSpec, ...]
    packages: Mapping[str, Path]
    ready_s: float


def addresses(plan: Plan, hosts: tuple[str, ...]) -> tuple[str, ...]:
    """The hosts by their names on the fabric, by the rule that the ranks use too."""
    rule = plan.rendezvous
    short = rule.short_name or bool(rule.suffix)
    return tuple((host.split(".", 1)[0] if short else host) + rule.suffix for host in hosts)


def cached_step(plan: Plan, folder: RunFolder, hosts: tuple[str, ...]) -> tuple[str, ...]:
    """The words that start one agent per node for a plan with a cache; writes the host file that they may name."""
    assert plan.cache is not None
    if not plan.cache.launch:
        return ()
    launcher = get_launcher(plan.launcher)
    text = launcher.host_file_text(hosts, LaunchSpec(nodes=plan.nodes, ranks_per_node=1))
    folder.write(_HOSTS_FILE, text if text is not None else "".join(f"{host}\n" for host in hosts))
    written = launcher.path_word(str(folder.path))
    return tuple(word.replace("{run_dir}", written) for word in words_of(plan.cache.launch))


class Agents:
    """Running agents. `start` returns when all nodes are up; `stop` leaves nothing of them."""

    def __init__(self, plan: AgentsPlan, folder: RunFolder, environ: Mapping[str, str]) -> None:
        self._plan = plan
        self._folder = folder
        self._environ = environ
        self._child: subprocess.Popen[bytes] | None = None
        self._read = 0
        self.lines: Lines = []

    def start(self, stopping: Callable[[], bool] = lambda: False, *, detached: bool = False) -> bool:
        """Start and wait until every node is up; False where `stopping` became true first.

        Raises `MachineError` with the node's own words where one cannot come up, `DeadlineError` with the missing
        nodes where one does not; nothing runs then. `detached`: the agents outlive this process."""
        holds = self._plan.launcher in _STDIN_TO_ALL and not detached
        self.write_bundle("stdin" if holds else "signal")
        words = self._words()
        environ = dict(self._environ)
        # Other launchers start their daemons by an srun of their own, which must not take the CPUs from the ranks.
        environ.setdefault("SLURM_OVERLAP", "1")
        if self._plan.launcher == "local":
            environ[get_launcher("local").variables.node_rank[0]] = "0"
        with self._open(OUT_FILE) as out, self._open(LOG_FILE) as log:
            self._child = subprocess.Popen(
                (*self._plan.launch, *words),
                stdin=subprocess.PIPE if holds else subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                env=environ,
                cwd="/",
                start_new_session=True,
                preexec_fn=None if holds or detached else pdeathsig(signal.SIGTERM),  # noqa: PLW1509  one system call
            )
        try:
            return self._wait_up(stopping)
        except BaseException:
            self.stop()
            raise

    def _words(self) -> tuple[str, ...]:
        """Where this machine's own Python is too old for the agent, so are the nodes': then ours travels, once."""
        bundle, ours = str(self._folder.part(BUNDLE_FILE)), os.path.realpath(sys.executable)
        if self._plan.launcher == "local" or any(fits(python, OLDEST) for python in NODE_PYTHONS):
            return agent_words(bundle, ours)
        archive = pack_interpreter(self._folder.part(ARCHIVE))
        return agent_words(bundle, ours, archive=str(archive), folder=self._plan.folder)

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    @property
    def running(self) -> bool:
        """Whether the step that holds them still runs."""
        return self._child is not None and self._child.poll() is None

    def write_bundle(self, until: str) -> Path:
        variables = get_launcher(self._plan.launcher).variables
        manifest = Manifest(
            run_id=self._plan.run_id,
            hosts=self._plan.hosts,
            node_variables=(*variables.node_rank, *variables.rank),
            folder=self._plan.folder,
            until=until,
            cpus=self._plan.cpus,
            services=self._plan.services,
        )
        data = bundle_bytes(manifest, secrets.token_bytes(_KEY_BYTES), self._plan.packages)
        return self._folder.write_bytes(BUNDLE_FILE, data)

    @contextlib.contextmanager
    def _open(self, name: str) -> Iterator[int]:
        path = self._folder.part(name)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _wait_up(self, stopping: Callable[[], bool]) -> bool:
        assert self._child is not None
        deadline = time.monotonic() + self._plan.ready_s
        while True:
            ended = self._child.poll()
            self.hear()
            self._refuse_failures()
            up = {line["node"] for line in self.lines if "up" in line}
            if len(up) == len(self._plan.hosts):
                return True
            if ended is not None:
                raise MachineError(f"the agents ended with code {ended}: {self._log_end()}", hint=self._hint())
            if stopping():
                return False
            if time.monotonic() > deadline:
                missing = [host for node, host in enumerate(self._plan.hosts) if node not in up]
                shown = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
                raise DeadlineError(
                    f"after {self._plan.ready_s:g} s the agents of {shown} are not up",
                    argv=self._plan.launch,
                    code=None,
                    hint=self._hint(),
                )
            time.sleep(_POLL_S)

    def _refuse_failures(self) -> None:
        failed = next((line for line in self.lines if "failed" in line), None)
        if failed is None:
            return
        node = failed["node"]
        where = self._plan.hosts[node] if 0 <= node < len(self._plan.hosts) else "a node"
        raise MachineError(f"the agent on {where} did not start: {failed['failed']}", hint=self._hint())

    def _hint(self) -> str:
        return f"its words are in {self._folder.part(LOG_FILE)} and {OUT_FILE}; the run works without --cache too"

    def _log_end(self) -> str:
        with contextlib.suppress(OSError):
            lines = self._folder.part(LOG_FILE).read_text(errors="replace").strip().splitlines()
            return " | ".join(lines[-3:]) or "no message"
        return "no log"

    def hear(self) -> None:
        """Read what the agents have said since the last look into `lines`."""
        with contextlib.suppress(OSError), self._folder.part(OUT_FILE).open("rb") as stream:
            stream.seek(self._read)
            for raw in stream:
                if not raw.endswith(b"\n"):
                    break
                self._read += len(raw)
                with contextlib.suppress(ValueError):
                    self.lines.append(json.loads(raw[raw.index(b"{") :]))

    def stop(self, patience_s: float = _END_S) -> None:
        """Ask the agents to end, wait, insist. Never raises."""
        child = self._child
        if child is None:
            return
        deadline = time.monotonic() + patience_s
        if child.stdin is not None:
            child.stdin.close()
        else:
            _signal(child, signal.SIGTERM)
        for sig in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.1, deadline - time.monotonic()))
            if child.returncode is not None:
                break
            _signal(child, sig)
            deadline = time.monotonic() + min(10.0, patience_s)
        self.hear()
        for name in (BUNDLE_FILE, ARCHIVE):
            self._folder.part(name).unlink(missing_ok=True)

    def ended(self, service: str) -> dict[int, dict[str, Any]]:
        """The last figures of a service, by node."""
        return {line["node"]: line["ended"].get(service, {}) for line in self.lines if "ended" in line}


def _signal(child: subprocess.Popen[bytes], sig: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, sig)
