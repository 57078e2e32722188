"""Several nodes on one machine, each with an address, a client of the shared file system, agents and ranks.

The agents are started exactly as a launcher would start them, from the file in the run directory. The node's client
reads this file, so the start of the agents is counted too.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from startup.shared import ClientSettings, Counters, Limits, settings_text
from windlass.agents.ship import agent_argv
from windlass.agents.start import AgentManifest, ServiceSpec, agent_bytes
from windlass.base.procs.command import pdeathsig
from windlass.errors import DeadlineError, MachineError
from windlass.node.cache.config import state_folder
from windlass.node.sys.atomic import replace_file
from windlass.node.sys.messages import MessageReader

_UP_S = 600.0
_RANKS_S = 900.0
_END_S = 30.0
_NODE_VARIABLE = "WINDLASS_NODE_RANK"
Process = subprocess.Popen[bytes]


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedTraffic:
    """Calls and bytes on the shared file system so far."""

    calls: int
    bytes: int
    cpu_s: float = 0.0
    """CPU time of the file system's program, which is the cost of the measurement itself."""

    def since(self, before: SharedTraffic) -> SharedTraffic:
        cpu_s = self.cpu_s - before.cpu_s
        return SharedTraffic(calls=self.calls - before.calls, bytes=self.bytes - before.bytes, cpu_s=cpu_s)


class Clients:
    """One client of the shared file system per node. `path(node)` is the mount of that node."""

    def __init__(self, work: Path, nodes: int, exports: Mapping[str, str], limits: Limits) -> None:
        self._work = work
        self._nodes = nodes
        self._exports = dict(exports)
        self._limits = limits
        self._servers: list[Process] = []
        self._counters: list[Counters] = []

    def __enter__(self) -> Clients:
        self._work.mkdir(parents=True, exist_ok=True)
        try:
            for node in range(self._nodes):
                self._start(node)
            for server in self._servers:
                if _line(server, 30.0) != b"ready\n":
                    raise MachineError(
                        "the shared file system of the measurement did not come up",
                        hint="is /dev/fuse usable, and fusermount3 there?",
                    )
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self, node: int) -> None:
        self.path(node).mkdir(parents=True)
        settings = ClientSettings(
            where=str(self.path(node)),
            exports=self._exports,
            counters=str(self._work / f"counters-{node}"),
            pace=str(self._work / "pace"),
            limits=self._limits,
        )
        argv = [sys.executable, str(Path(__file__).with_name("shared.py")), settings_text(settings)]
        env = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PATH": os.defpath}
        self._servers.append(_popen(argv, env))
        self._counters.append(Counters(settings.counters))

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            _end(server)

    def path(self, node: int | str) -> Path:
        return self._work / f"client-{node}"

    def seen(self) -> SharedTraffic:
        counted = [counters.read() for counters in self._counters]
        calls, size, spent_ns = (sum(column) for column in zip(*counted, strict=True))
        return SharedTraffic(calls=calls, bytes=size, cpu_s=spent_ns / 1e9)


class Paths(Protocol):
    """The directory of each node."""

    def path(self, node: int | str) -> Path: ...


class Network(Protocol):
    """Nodes with separate networks: their addresses, and the argv prefix that runs a command on a node."""

    @property
    def hosts(self) -> tuple[str, ...]: ...

    def inside(self, node: int) -> tuple[str, ...]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Hosted:
    """Running agents: their start-up time, and the directories of the nodes."""

    ready_s: float
    folder: Path
    run_id: str
    ended: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The last figures of each node's service, available after the block has ended."""

    def view(self, node: int) -> Path:
        return Path(self.state_dir(node)) / "view"

    def state_dir(self, node: int) -> str:
        return state_folder(str(self.folder), self.run_id, node)


@contextlib.contextmanager
def hosted(
    clients: Paths, nodes: int, run: Path, work: Path, service: ServiceSpec, network: Network | None = None
) -> Iterator[Hosted]:
    """Run agents with one service on every node. All are up when the block begins, and gone when it ends.

    `run` is the directory that the clients show as `run`. The agent file is written there. Without a `network`, the
    nodes are addresses of this machine's loopback.
    """
    run_id = f"b{random.randrange(1 << 40):x}"
    net = f"127.{random.randrange(64, 250)}.{random.randrange(250)}"
    manifest = AgentManifest(
        run_id=run_id,
        hosts=network.hosts if network is not None else tuple(f"{net}.{node + 1}" for node in range(nodes)),
        node_variables=(_NODE_VARIABLE,),
        folder=str(work / "agents"),
        services=(service,),
    )
    bundle = run / f"{run_id}.pyz"
    bundle.touch(0o600)
    replace_file(bundle, agent_bytes(manifest, os.urandom(32)))
    agents: list[Process] = []
    began = time.monotonic()
    try:
        for node in range(nodes):
            words = agent_argv(str(clients.path(node) / "run" / bundle.name), os.path.realpath(sys.executable))
            inside = network.inside(node) if network is not None else ()
            agents.append(_popen((*inside, *words), {_NODE_VARIABLE: str(node), "PATH": os.defpath}))
        for node, agent in enumerate(agents):
            _wait_up(agent, node)
        up = Hosted(ready_s=time.monotonic() - began, folder=work / "agents", run_id=run_id)
        yield up
        _close_inputs(agents)
        for node, agent in enumerate(agents):
            up.ended[node] = _last_figures(agent, service.name)
    finally:
        _close_inputs(agents)
        for agent in agents:
            _end(agent)
        bundle.unlink()


def _close_inputs(agents: Sequence[Process]) -> None:
    for agent in agents:
        if agent.stdin is not None:
            agent.stdin.close()


def _last_figures(agent: Process, service: str) -> dict[str, Any]:
    """Return the figures that the agent reports when it ends, or an empty dict without a report."""
    deadline, reader = time.monotonic() + _END_S, MessageReader()
    while raw := _line(agent, deadline - time.monotonic()):
        line = reader.read_line(raw.decode(errors="replace")) or {}
        if "ended" in line:
            found: dict[str, Any] = line["ended"].get(service, {})
            return found
    return {}


def _wait_up(agent: Process, node: int) -> None:
    deadline, reader = time.monotonic() + _UP_S, MessageReader()
    while True:
        raw = _line(agent, deadline - time.monotonic())
        if not raw:
            raise MachineError(
                f"the agent of node {node} ended: {_said(agent)}",
                hint="is there room in /tmp and memory for its store? measure fewer nodes",
            )
        line = reader.read_line(raw.decode(errors="replace")) or {}
        if "failed" in line:
            raise MachineError(
                f"the agent of node {node} did not start: {line['failed']}",
                hint="is there room in /tmp, and a usable /dev/fuse?",
            )
        if "up" in line:
            return


def run_ranks(pythons: Sequence[Path], ranks: int, code: str, home: Path) -> float:
    """Start `ranks` interpreters per node at once and wait for all.

    Returns the seconds from the first start to the last end.
    """
    env = {"PATH": os.defpath, "HOME": str(home), "PYTHONNOUSERSITE": "1", "OMP_NUM_THREADS": "1"}
    began = time.monotonic()
    apart = f"import sys; del sys.path[0]\n{code}"  # removes the current directory
    children = [_popen([str(python), "-c", apart], env) for python in pythons for _ in range(ranks)]
    deadline = began + _RANKS_S
    try:
        for child in children:
            if not _ended(child, deadline - time.monotonic()):
                raise DeadlineError(
                    f"a rank still runs after {_RANKS_S:g} s",
                    argv=(str(pythons[0]), "-c", code),
                    code=None,
                    hint="the machine is too busy for so many ranks: measure fewer",
                )
            if child.wait(1.0):
                raise MachineError(
                    f"{pythons[0]} -c {code!r} failed: {_said(child)}",
                    hint="does the import work in this environment by itself?",
                )
        return time.monotonic() - began
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
            child.communicate(timeout=10)


def _ended(child: Process, timeout_s: float) -> bool:
    """Wait for a process without polling. `Popen.wait` polls every 50 ms."""
    fd = os.pidfd_open(child.pid)
    try:
        watch = select.poll()
        watch.register(fd, select.POLLIN)
        return bool(watch.poll(max(0.0, timeout_s) * 1000))
    finally:
        os.close(fd)


def remove_tree(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


def _popen(argv: Sequence[str], env: Mapping[str, str]) -> Process:
    return subprocess.Popen(
        list(argv),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(env),
        cwd="/",
        bufsize=0,  # `select` cannot detect a line in a buffer of this process
        start_new_session=True,
        preexec_fn=pdeathsig(signal.SIGTERM),  # noqa: PLW1509  one system call
    )


def _line(process: Process, timeout_s: float) -> bytes:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(max(0.0, timeout_s)):
            raise DeadlineError(
                f"no word within {timeout_s:.0f} s",
                argv=(),
                code=None,
                hint="the machine is too busy for so many nodes: measure fewer",
            )
    return process.stdout.readline()


def _said(process: Process) -> str:
    process.kill()
    text = process.communicate(timeout=10)[1].decode(errors="replace").strip()
    return text.splitlines()[-1] if text else "no message"


def _end(process: Process) -> None:
    """Close the standard input and wait. On timeout, send SIGTERM and then SIGKILL."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    for sig in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
            break
        process.send_signal(sig)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
