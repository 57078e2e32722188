"""Start and stop the agents of a run.

The run folder gets one file with their code. One small step starts the agents on the nodes of the ranks. `start` waits
until all agents are up.

If the step reads its standard input, the agents end when the step ends. This also works when windlass is killed,
because the kernel closes the pipe. In other cases the launcher of the agents gets a signal.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from windlass.agents.ship import ARCHIVE, NODE_PYTHONS, OLDEST, agent_argv, fits, pack_interpreter, tree_bytes
from windlass.agents.step import RunningStep, start_node_step
from windlass.backends.launchers.base import NodeStep
from windlass.errors import DeadlineError, MachineError
from windlass.model.jsontext import to_json
from windlass.node.agent.heartbeat import ALIVE
from windlass.node.sys.messages import MessageReader
from windlass.node.sys.reading import open_plain, read_tail
from windlass.node.sys.text import listed
from windlass.run.folder import AGENT_FILE, RunFolder

BUNDLE_FILE = AGENT_FILE
OUT_FILE = "agents.out"
LOG_FILE = "agents.log"
_KEY_BYTES = 32
_POLL_S = 0.02
_END_S = 20.0
_MAX_OUT_BYTES = 8 << 20
"""Output that was read is dropped beyond this size, because samplers run for days."""
STREAMED = frozenset({"sampler"})
"""Services whose messages are consumed as they arrive and not stored."""
Lines = list[dict[str, Any]]


class ServiceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A service to host. `entry` is `package.module:function` of a package in the file."""

    name: str
    entry: str
    settings: dict[str, object] = {}


class AgentManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the agents. They are the same on all nodes and contain no secret."""

    version: int = 1
    run_id: str
    hosts: tuple[str, ...]
    addresses: tuple[str, ...] = ()
    """Addresses of the hosts, if they differ from the names."""
    node_variables: tuple[str, ...]
    """Variables in which the launcher sets the agent's index among the hosts."""
    folder: str
    """Directory of this user's agents on a node. `${NAME}` is expanded on the node."""
    until: str = "stdin"
    """`stdin`: the agents end when their standard input closes. `signal`: they end only after a signal."""
    stop_signal: int = 15
    """The signal that stops them, in addition to SIGTERM, SIGINT and SIGHUP."""
    cpus: tuple[int, ...] = ()
    services: tuple[ServiceSpec, ...] = ()


def agent_bytes(manifest: AgentManifest, key: bytes, packages: Mapping[str, Path] = MappingProxyType({})) -> bytes:
    """Return the file that each node reads once: code, manifest and the job's key.

    The file is protected like a key file: it has mode 0600, is in the run folder, and is removed after the run.
    """
    return tree_bytes({"manifest.json": to_json(manifest), "key": key}, packages)


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentsSpec:
    """The services to start, and the node step that starts them."""

    step: NodeStep
    run_id: str
    hosts: tuple[str, ...]
    addresses: tuple[str, ...]
    folder: str
    cpus: tuple[int, ...]
    services: tuple[ServiceSpec, ...]
    ready_s: float


class AgentStartError(MachineError):
    """The agent on `host` did not start. `reason` is its message, `kind` the type of the exception there."""

    def __init__(self, host: str, reason: str, kind: str, *, hint: str) -> None:
        self.host, self.reason = host, reason
        super().__init__(f"the agent on {host} did not start: {f'{kind}: ' if kind else ''}{reason}", hint=hint)


class Agents:
    """The running agents of a run.

    `start` returns when all nodes are up. `stop` ends all agents and removes their files.
    """

    def __init__(self, spec: AgentsSpec, folder: RunFolder, environ: Mapping[str, str]) -> None:
        self._spec = spec
        self._folder = folder
        self._environ = environ
        self._running: RunningStep | None = None
        self._read = 0
        self._reader = MessageReader()
        self.lines: Lines = []
        self.streamed: Lines = []
        """Messages of streamed services that the caller has not consumed yet."""
        self.heard: dict[int, float] = {}
        """When each node sent its last line, by the monotonic clock of this process."""

    def start(self, stopping: Callable[[], bool] = lambda: False, *, detached: bool = False) -> bool:
        """Start the agents and wait until every node is up.

        Returns False if `stopping` becomes true first. Raises `MachineError` with the node's message if an agent fails
        to start, and `DeadlineError` with the missing nodes if agents are not up in time. After an error no agent runs.
        With `detached`, the agents outlive this process.
        """
        self.write_bundle("stdin" if self._spec.step.follows_stdin and not detached else "signal")
        self._running = start_node_step(
            self._spec.step,
            self._program(),
            environ=self._environ,
            folder=self._folder,
            files=(OUT_FILE, LOG_FILE),
            detached=detached,
        )
        try:
            return self._wait_up(stopping)
        except BaseException:
            self.stop()
            raise

    def _program(self) -> tuple[str, ...]:
        """Return the argv of the agent.

        If the Python of this machine is too old for the agent, the nodes' Python is assumed to be too old as well. Then
        one archive with our interpreter is written to the run folder.
        """
        bundle, ours = str(self._folder.part(BUNDLE_FILE)), os.path.realpath(sys.executable)
        if not self._spec.step.arguments or any(fits(python, OLDEST) for python in NODE_PYTHONS):
            return agent_argv(bundle, ours)
        archive = pack_interpreter(self._folder.part(ARCHIVE))
        return agent_argv(bundle, ours, archive=str(archive), folder=self._spec.folder)

    @property
    def pid(self) -> int:
        assert self._running is not None
        return self._running.pid

    @property
    def argv(self) -> tuple[str, ...]:
        """The argv of the step that runs the agents."""
        assert self._running is not None
        return self._running.argv

    @property
    def running(self) -> bool:
        """Whether the step that runs the agents is still running."""
        return self._running is not None and self._running.code is None

    def write_bundle(self, until: str) -> Path:
        manifest = AgentManifest(
            run_id=self._spec.run_id,
            hosts=self._spec.hosts,
            addresses=self._spec.addresses,
            node_variables=self._spec.step.place,
            folder=self._spec.folder,
            until=until,
            stop_signal=int(self._spec.step.stop_signal),
            cpus=self._spec.cpus,
            services=self._spec.services,
        )
        return self._folder.write_bytes(BUNDLE_FILE, agent_bytes(manifest, secrets.token_bytes(_KEY_BYTES)))

    def _wait_up(self, stopping: Callable[[], bool]) -> bool:
        assert self._running is not None
        deadline = time.monotonic() + self._spec.ready_s
        while True:
            ended = self._running.code
            self.hear()
            self._refuse_failures()
            up = {line["node"] for line in self.lines if "up" in line}
            if len(up) == len(self._spec.hosts):
                return True
            if ended is not None:
                raise MachineError(f"the agents ended with code {ended}: {_log_end(self._folder)}", hint=self._hint())
            if stopping():
                return False
            if time.monotonic() > deadline:
                missing = [host for node, host in enumerate(self._spec.hosts) if node not in up]
                shown = listed(missing, 8)
                raise DeadlineError(
                    f"after {self._spec.ready_s:g} s the agents of {shown} are not up",
                    argv=self._running.argv,
                    code=None,
                    hint=self._hint(),
                )
            time.sleep(_POLL_S)

    def _refuse_failures(self) -> None:
        failed = next((line for line in self.lines if "failed" in line), None)
        if failed is None:
            return
        node = failed["node"]
        where = self._spec.hosts[node] if 0 <= node < len(self._spec.hosts) else "a node"
        raise AgentStartError(where, str(failed["failed"]), str(failed.get("kind", "")), hint=self._hint())

    def _hint(self) -> str:
        return f"see {self._folder.part(LOG_FILE)} and {OUT_FILE}; the run also works without --cache"

    def hear(self) -> None:
        """Read the new messages of the agents into `lines` and `streamed`."""
        with contextlib.suppress(OSError), open_plain(self._folder.part(OUT_FILE)) as stream:
            stream.seek(self._read)
            for raw in stream:
                if not raw.endswith(b"\n"):
                    break
                self._read += len(raw)
                line = self._reader.read_line(raw.decode(errors="replace"))
                if line is None:
                    continue
                self.heard[line.get("node", -1)] = time.monotonic()
                if line.get("news") != ALIVE:
                    (self.streamed if line.get("service") in STREAMED else self.lines).append(line)
            if self._read > _MAX_OUT_BYTES and os.fstat(stream.fileno()).st_size == self._read:
                os.truncate(self._folder.part(OUT_FILE), 0)  # the writer appends
                self._read = 0

    def tell(self, **order: object) -> bool:
        """Send an order to the agents of all nodes. Returns False if no channel reaches them."""
        return self._running is not None and self._running.write(json.dumps(order).encode() + b"\n")

    def forgive_silence(self) -> None:
        """Restart the silence timer of all nodes."""
        self.heard = dict.fromkeys(self.heard, time.monotonic())

    def stop(self, patience_s: float = _END_S) -> None:
        """Ask the agents to end, wait, then kill them. Never raises."""
        if self._running is None:
            return
        self._running.stop(patience_s)
        self.hear()
        self._wait_ended(patience_s)
        for name in (BUNDLE_FILE, ARCHIVE):
            self._folder.part(name).unlink(missing_ok=True)

    def _wait_ended(self, patience_s: float) -> None:
        """Wait for the last messages of the agents.

        If the launcher of an agent on this machine is killed, the agent ends a little later.
        """
        assert self._running is not None
        deadline = time.monotonic() + patience_s
        while (self._running.code or 0) < 0 and time.monotonic() < deadline:
            if any("ended" in line for line in self.lines) or not any("up" in line for line in self.lines):
                break
            time.sleep(_POLL_S)
            self.hear()

    def ended(self, service: str) -> dict[int, dict[str, Any]]:
        """The last figures of a service, by node."""
        return {line["node"]: line["ended"].get(service, {}) for line in self.lines if "ended" in line}


def _log_end(folder: RunFolder) -> str:
    with contextlib.suppress(OSError):
        lines = read_tail(folder.part(LOG_FILE), 1 << 16).decode(errors="replace").strip().splitlines()
        return " | ".join(lines[-3:]) or "no message"
    return "no log"
