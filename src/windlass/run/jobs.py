"""Two ways to start ranks: one launcher that starts them on all nodes, or one process per rank on this machine.

`run.drive` drives both. It asks which descriptors to watch, reports ended children, and asks to stop.

Also writes the files that a launcher reads, and ends its step on every node.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import BinaryIO

from windlass.agents.ship import tree_bytes
from windlass.backends.containers import get_runtime
from windlass.backends.launchers import get_launcher
from windlass.backends.launchers.base import LAST_LINE, SIGNAL_FILE, Launcher, LaunchSpec, LineReader, decode
from windlass.backends.schedulers import get_scheduler
from windlass.base.procs.children import signal_group, start_child
from windlass.base.procs.command import run_command
from windlass.errors import WindlassError
from windlass.model.plan import Plan
from windlass.model.record import RankFailure
from windlass.node.ray import ARCHIVE_FILE, TOKEN_FILE
from windlass.node.sys.atomic import open_append
from windlass.node.sys.reading import read_tail
from windlass.plan.render.batch_script import has_prologue, step_name
from windlass.plan.render.rank_lines import LIVE_FOLDER, wrap_spec
from windlass.run.failure.ends import End, any_failed, read_seats
from windlass.run.folder import RunFolder
from windlass.run.output import Lines, LiveBars, NodeLogs, OutputView, Tail

RUN_DIR_VARIABLE = "WINDLASS_RUN_DIR"
_MAX_MESSAGES = 10_000
_DAEMON_BYTES = 8192
_LOOK_EVERY_S = 0.5
TICK_S = 0.1


class StartedJob(ABC):
    """Started ranks. `done` when none is running, `failing` from the first sign that a rank failed."""

    def __init__(self, plan: Plan, folder: RunFolder, view: OutputView) -> None:
        self.plan = plan
        self.folder = folder
        self.view = view
        self.launcher: Launcher = get_launcher(plan.launcher)
        self.done = False
        self.failing = False
        self.asked = False
        """The ranks were asked to end, by a user or because the time is up."""
        self.in_place = plan.agents is not None and plan.agents.restart is not None and plan.agents.restart.in_place
        """A watch ends the other ranks when one fails: the rank scripts stay, and start them again."""
        self.tick_s = TICK_S / 2 if self.in_place else TICK_S
        """The longest time between two checks."""
        self.code = 0
        self.ends: list[End] = []
        self.streams: list[Lines] = []

    @property
    def bytes_read(self) -> int:
        """Bytes received from the ranks and the launcher so far, including incomplete lines."""
        return sum(lines.bytes_read for lines in self.streams)

    @abstractmethod
    def start(self, env: Mapping[str, str]) -> None: ...

    @abstractmethod
    def poll(self) -> None:
        """Check whether a child ended."""

    def tail(self) -> bool:
        """Show what daemons have written to files since the last call. True if there was anything."""
        return False

    @abstractmethod
    def ask_to_stop(self, sig: signal.Signals) -> None: ...

    @abstractmethod
    def pass_on(self, sig: signal.Signals) -> None:
        """Forward a signal to the ranks. Each rank decides how to handle it."""

    @abstractmethod
    def kill(self) -> None: ...

    @abstractmethod
    def failure(self) -> RankFailure | None:
        """Return the first failed rank, as far as this job has detected it."""

    @abstractmethod
    def close(self) -> None:
        """Close files. The children have ended."""


def rank_argv(plan: Plan, folder: RunFolder) -> tuple[str, ...]:
    """Return the argv to start: `launch.sh`, or the rank script if there is neither a prologue nor a launcher."""
    if plan.launcher == "local" and not has_prologue(plan):
        return ("/bin/sh", str(folder.part("rank.sh")))
    return ("/bin/bash", str(folder.part("launch.sh")))


class LauncherJob(StartedJob):
    """srun, mpiexec, flux run: one child, which starts the ranks and reports their ends."""

    def __init__(self, plan: Plan, folder: RunFolder, view: OutputView) -> None:
        super().__init__(plan, folder, view)
        self.messages: list[str] = []
        self._child: subprocess.Popen[bytes] | None = None
        self._readers: list[LineReader] = []
        self._looked_s = 0.0
        self._carried = False
        self._left_s: float | None = None
        self._log: BinaryIO | None = None
        self._logs: NodeLogs | None = None
        self._tail: Tail | None = None
        self._bars: LiveBars | None = None
        self._env: dict[str, str] = {}
        self._senders: list[subprocess.Popen[bytes]] = []
        if self.launcher.output == "files":
            self._bars = LiveBars(folder.part(LIVE_FOLDER), view.live_ranks(plan.world_size), view)
            self._tail = Tail(plan, folder.part("out"), self.launcher, view)
        else:
            self._logs = NodeLogs(folder.part("out"), self.launcher, plan.ranks_per_node)

    def start(self, env: Mapping[str, str]) -> None:
        self.folder.part(SIGNAL_FILE).unlink(missing_ok=True)  # from an earlier start
        self._env = dict(env)
        self._log = open_append(self.folder.part("launcher.log"), fresh=True)
        self._child = start_child(rank_argv(self.plan, self.folder), env=env, death=signal.SIGTERM)
        for stream in (self._child.stdout, self._child.stderr):
            assert stream is not None
            reader = LineReader(self.launcher)
            self._readers.append(reader)
            self.streams.append(Lines(stream.fileno(), self._feeder(reader), self._show_part))

    def _feeder(self, reader: LineReader) -> Callable[[bytes], None]:
        def feed(line: bytes) -> None:
            rank, text = reader.feed(decode(line)) if self._logs else (None, decode(line))
            if self.launcher.glues_last_lines and rank is not None and text.endswith(LAST_LINE):
                text = text.removesuffix(LAST_LINE)
                if not text:
                    return
            self._take(rank, text)

        return feed

    def _show_part(self, part: bytes) -> None:
        if self._logs:
            rank, text = self.launcher.segments(decode(part))[-1]
            if rank is not None:
                self.view.bar(rank, text)

    def _take(self, rank: int | None, text: str) -> None:
        """Handle one complete line, of a rank or of the launcher itself."""
        if rank is not None and self._logs and 0 <= rank < self.plan.world_size:
            self._logs.write(rank, text.encode("utf-8", "surrogateescape"))
            self.view.line(rank, text)
            return
        if self._log:
            self._log.write((text + "\n").encode("utf-8", "surrogateescape"))
            self._log.flush()
        if len(self.messages) < _MAX_MESSAGES:
            self.messages.append(text)
        if self.launcher.parse_failure([text], 1) is not None:
            self.failing = True
        elif not self.failing and text.strip() and not self.launcher.is_noise(text):
            self.view.note(text)

    def poll(self) -> None:
        assert self._child is not None
        code = self._child.poll()
        if code is not None:
            self.done, self.code = True, code
            self.failing = self.failing or code != 0 or (self._carried and any_failed(self.folder.path))
        elif not self.failing and self.plan.parent and not self.in_place:
            leaves_others = not self.launcher.ends_others or self.launcher.hurries
            if self._carried or leaves_others:  # the launcher would not end the others, or would not wait for them
                self._look_for_failed_rank()

    def _look_for_failed_rank(self) -> None:
        """End the other ranks when one fails, if the launcher leaves them running. The ranks report the failure."""
        now = time.monotonic()
        if now - self._looked_s < _LOOK_EVERY_S:
            return
        self._looked_s = now
        if any_failed(self.folder.path):
            self._left_s = self._left_s or now
            if self._carried and now - self._left_s < self.plan.grace_s:
                return  # this rank ended because we asked it to, and the others may need longer
            self.failing = self._carried  # ranks that were asked already and had their time are not asked again
            self.ask_to_stop(signal.SIGTERM)
            self.failing = True

    def tail(self) -> bool:
        moved = self._tail.poll() if self._tail else False
        if self._bars and not self.done:
            self._bars.poll()
        return moved

    def ask_to_stop(self, sig: signal.Signals) -> None:
        """Ask the launcher to end the ranks.

        Launchers take SIGTERM as "end the ranks". Some respond to an interrupt only with a question. If the launcher
        would not wait for ranks that save their state, the rank scripts forward the signal instead. This needs all
        ranks to be up, but before that they have nothing to save.
        """
        seats = self.folder.part("where")
        all_up = self.launcher.hurries and len(read_seats(seats)) >= self.plan.world_size
        if self._child and all_up and not self.failing:
            self._carry(signal.SIGTERM)
        elif self._child and not self._send(signal.SIGTERM):
            signal_group(self._child, signal.SIGTERM)

    def pass_on(self, sig: signal.Signals) -> None:
        """Forward a signal. srun forwards any signal to every rank, other launchers forward a substitute."""
        if self._child and self.launcher.carrier is not None:
            self._carry(sig)
        elif self._child and not self._send(sig):
            self._child.send_signal(sig)

    def _send(self, sig: signal.Signals) -> bool:
        """Send a signal with the launcher's separate command, if it has one. Does not wait for the command."""
        assert self._child is not None
        argv = self.launcher.signal_argv(step_name(self.plan, str(self.folder.path)), sig, self._child.pid)
        if argv is None:
            return False
        nowhere = subprocess.DEVNULL
        self._senders.append(subprocess.Popen(argv, env=self._env, stdin=nowhere, stdout=nowhere, stderr=nowhere))
        return True

    def _carry(self, sig: signal.Signals) -> None:
        """Let the rank scripts send this signal to their ranks.

        The launcher then sees ranks that exit with code 0, so it does not end the others. The real codes are in the
        ranks' reports.
        """
        assert self._child is not None
        assert self.launcher.carrier is not None
        self.folder.write(SIGNAL_FILE, sig.name.removeprefix("SIG") + "\n")
        self._carried = self._carried or sig in {signal.SIGTERM, signal.SIGUSR2}
        self._child.send_signal(self.launcher.carrier)

    def kill(self) -> None:
        if self._child:
            signal_group(self._child, signal.SIGKILL)

    def failure(self) -> RankFailure | None:
        """See the base class. The node's daemon writes the reason for an aborted step into the output of the ranks."""
        found = self.launcher.parse_failure(self.messages, self.code)
        if found is None or found.rank is not None or self.launcher.output != "files":
            return found
        said: list[str] = []
        for file in sorted(self.folder.part("out").glob("node-*"))[:1]:
            with contextlib.suppress(OSError):
                lines = decode(read_tail(file, _DAEMON_BYTES, within=self.folder.path)).splitlines()
                said = [text for rank, text in map(self.launcher.parse_line, lines) if rank is None]
        return self.launcher.parse_failure([*self.messages, *said], self.code)

    def close(self) -> None:
        for reader in self._readers:
            for rank, text in reader.flush():
                self._take(rank, text)
        for part in (self._log, self._logs, self._tail, self._bars):
            if part is not None:
                part.close()


class LocalJob(StartedJob):
    """One child per rank on this machine, each with a separate pipe."""

    def __init__(self, plan: Plan, folder: RunFolder, view: OutputView, host: str) -> None:
        super().__init__(plan, folder, view)
        self._host = host
        self._ranks: dict[int, subprocess.Popen[bytes]] = {}
        self._alive: set[int] = set()
        self._logs = NodeLogs(folder.part("out"), self.launcher, plan.ranks_per_node)
        self._first: RankFailure | None = None

    def start(self, env: Mapping[str, str]) -> None:
        names = self.launcher.variables
        for rank in range(self.plan.ranks_per_node):
            own = {
                **env,
                RUN_DIR_VARIABLE: str(self.folder.path),
                names.rank[0]: str(rank),
                names.local_rank[0]: str(rank),
                names.node_rank[0]: "0",
                names.world_size[0]: str(self.plan.world_size),
            }
            child = start_child(rank_argv(self.plan, self.folder), env=own, death=signal.SIGKILL, merge=True)
            assert child.stdout is not None
            self._ranks[rank] = child
            self._alive.add(rank)
            self.streams.append(Lines(child.stdout.fileno(), self._writer(rank), self._drawer(rank)))

    def _writer(self, rank: int) -> Callable[[bytes], None]:
        def write(line: bytes) -> None:
            self._logs.write(rank, line)
            self.view.line(rank, decode(line))

        return write

    def _drawer(self, rank: int) -> Callable[[bytes], None]:
        return lambda part: self.view.bar(rank, decode(part))

    def poll(self) -> None:
        for rank in sorted(self._alive):
            code = self._ranks[rank].poll()
            if code is None:
                continue
            self._alive.discard(rank)
            self.ends.append(End(at=time.time(), rank=rank, host=self._host, code=code if code >= 0 else 128 - code))
            if code and self._first is None:
                self._first = RankFailure(
                    rank=rank,
                    host=self._host,
                    code=code if code > 0 else None,
                    signal=-code if code < 0 else None,
                )
                self.failing, self.code = True, self._first.exit_code
                self.ask_to_stop(signal.SIGTERM)
        self.done = not self._alive

    def ask_to_stop(self, sig: signal.Signals) -> None:
        for rank in self._alive:
            signal_group(self._ranks[rank], sig)

    def pass_on(self, sig: signal.Signals) -> None:
        """Send the signal only to the rank process. Workers that it has started did not ask for signals."""
        for rank in self._alive:
            self._ranks[rank].send_signal(sig)

    def kill(self) -> None:
        for child in self._ranks.values():
            signal_group(child, signal.SIGKILL)

    def failure(self) -> RankFailure | None:
        return self._first

    def close(self) -> None:
        self._logs.close()
        if self._logs.lost is not None:
            self.view.note(f"windlass: part of the ranks' output could not be written: {self._logs.lost.strerror}")


_KILL_TIMEOUT_S = 20.0


def write_host_file(plan: Plan, folder: RunFolder, hosts: tuple[str, ...]) -> None:
    """Write the hosts of the run, one per line, in the form that the launcher reads."""
    if not hosts:
        return
    spec = LaunchSpec(nodes=plan.nodes, ranks_per_node=plan.ranks_per_node)
    text = get_launcher(plan.launcher).host_file_text(hosts, spec)
    folder.write("hosts", text if text is not None else "".join(f"{host}\n" for host in hosts))


def write_container_files(plan: Plan, folder: RunFolder) -> None:
    """Write the files that the container runtime reads from the run folder (an EDF)."""
    if plan.container is None:
        return
    for name, text in get_runtime(plan.container.runtime).files(wrap_spec(plan, str(folder.path))).items():
        folder.write(name, text)


def write_ray_files(folder: RunFolder) -> None:
    """Write the program that the ranks of a plan with Ray run, and the token of the cluster."""
    entry = b"import sys\nfrom windlass.node.ray.cluster import main\nsys.exit(main(sys.argv[1:]))\n"
    folder.write_bytes(ARCHIVE_FILE, tree_bytes({"__main__.py": entry}))
    folder.write(TOKEN_FILE, secrets.token_hex(32))


def kill_step(plan: Plan, folder: RunFolder, environ: Mapping[str, str]) -> None:
    """Kill what the launcher started for this folder, on all nodes, when ranks ignore SIGTERM. Never raises."""
    if plan.scheduler == "none":
        return
    scheduler = get_scheduler(plan.scheduler)
    with contextlib.suppress(WindlassError):
        argv = scheduler.kill_step_argv(environ, step_name(plan, str(folder.path)))
        if argv is not None:
            run_command(argv, timeout_s=_KILL_TIMEOUT_S, env=environ, check=False)
