"""The heartbeat service of a supervised run: the settings for every node, and the reports of all nodes.

The sidecar also passes on the messages of NVIDIA's MPS, which needs nothing else during the run.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

from windlass.agents.start import LOG_FILE, Agents, ServiceSpec
from windlass.backends.launchers import get_launcher
from windlass.errors import DeadlineError, MachineError
from windlass.model.plan import Plan
from windlass.node.sys.reading import open_plain
from windlass.plan.cache import agents_folder
from windlass.plan.render.rank_script import place_mark
from windlass.plan.render.variables import JobFacts
from windlass.run.execute import Sidecar
from windlass.run.folder import RunFolder
from windlass.run.output import OutputView

HEARTBEAT = "heartbeat"
_ENTRY = "windlass.node.agent.heartbeat:make"
_UNHEARD = 4
"""Number of heartbeats that may be missing before a node is checked."""
_PAUSE_S = 3.0
_AGAIN_S = 60.0
_END_S = 3.0
"""Agents end within milliseconds. Only a lost node takes longer, and it will not report again."""


def heartbeats_folder(plan: Plan, uid: int, run_id: str) -> str:
    """Return the folder for the heartbeats of a node's ranks, without the node's number at its end."""
    return f"{agents_folder(plan, uid, run_id)}/w/{run_id}."


def heartbeat_service(facts: JobFacts, silent_s: float | None, nodes: int) -> ServiceSpec:
    """Return the settings of the heartbeat service on every node."""
    settings: dict[str, object] = {"mark": place_mark(facts), "silent_s": silent_s, "alive_s": alive_s(nodes)}
    return ServiceSpec(name=HEARTBEAT, entry=_ENTRY, settings=settings)


def alive_s(nodes: int) -> float:
    """Return the heartbeat interval of a node. All nodes together send at most about 500 heartbeats a second."""
    return max(2.0, nodes / 500)


class HeartbeatSidecar:
    """`run.execute.Sidecar`: the reports of the heartbeat service so far."""

    def __init__(
        self,
        agents: Agents,
        cache: Sidecar | None,
        plan: Plan,
        folder: RunFolder,
        view: OutputView,
        hosts: tuple[str, ...],
    ) -> None:
        self._agents = agents
        self._launcher = get_launcher(plan.launcher)
        self._ending = False
        self._view = view
        self._hosts = hosts
        self._cache = cache
        self._heard = 0
        self._log = folder.part(LOG_FILE)
        self._log_read = 0
        self._gone: set[str] = set()
        self._mute: set[str] = set()
        self._told: set[str] = set()
        self.up = False
        self.beats: set[str] = set()
        """Hosts whose ranks send heartbeats."""
        self.silent: dict[str, dict[str, Any]] = {}
        """Hosts on which no rank finished a step for too long, with the step and the ranks that are behind."""
        self.writing: set[str] = set()
        """Hosts whose ranks write output, including incomplete lines."""
        self.reading: set[str] = set()
        """Hosts whose ranks read or write files."""
        self.computing: set[str] = set()
        """Hosts whose ranks use their processors."""
        self._polled = time.monotonic()
        self.oom: set[str] = set()
        self.down: dict[str, int] = {}
        """Hosts that have ended their ranks on request, with the number of the attempt."""
        self.figures: dict[str, dict[str, Any]] = {}
        """Last figures of each host's service."""

    def start(self, stopping: Callable[[], bool]) -> bool:
        """Start the agents. The run continues without heartbeats if they cannot start, but not without its cache."""
        try:
            going = self._agents.start(stopping)
            self.up = going
            return going
        except (MachineError, DeadlineError) as error:
            if self._cache is not None:
                raise
            self._view.note(f"windlass: the agents did not start, so the run continues without them: {error.message}")
            return True

    def poll(self) -> None:
        now = time.monotonic()
        if now - self._polled > _PAUSE_S:  # windlass itself was paused, and reports from that time are still unread
            self._agents.forgive_silence()
        self._polled = now
        if self._cache is not None:
            self._cache.poll()
        else:
            self._agents.hear()
        fresh, self._heard = self._agents.lines[self._heard :], len(self._agents.lines)
        for line in fresh:
            if line.get("service") == HEARTBEAT and "news" in line:
                self._take(self._host(line), json.loads(line["news"]))
            elif line.get("service") == "mps" and "news" in line:
                self._view.note(f"windlass: {self._host(line)}: {line['news']}")
            elif "agent" in line and self._cache is None:
                self._view.note(f"windlass: the agent on {self._host(line)} {line['agent']}")
        self._look_for_lost()

    def _look_for_lost(self) -> None:
        """Detect killed agents from the launcher's log, because a killed agent sends no message.

        The run continues without the agent. Hangs on its node are then detected only from the output.
        """
        if not self.up or self._ending:
            return
        lost = set() if self._agents.running else set(self._hosts)
        with contextlib.suppress(OSError):
            if self._log.stat().st_size > self._log_read:
                with open_plain(self._log) as file:
                    file.seek(self._log_read)
                    text = file.read()
                    self._log_read += len(text)
                for line in text.decode(errors="replace").splitlines():
                    failure = self._launcher.parse_failure([line.strip()], 1)
                    if failure is not None and failure.host in self._hosts:
                        lost.add(failure.host)
                    place = self._launcher.lost_place(line.strip(), self._agents.argv)
                    if place is not None and place < len(self._hosts):
                        lost.add(self._hosts[place])
        for host in sorted(lost - self._gone):
            self._gone.add(host)
            self._forget(host)
            self._view.note(f"windlass: the agent on {host} ended; the run continues without it")

    def unheard(self) -> dict[str, float]:
        """Return hosts that have been silent for too long while others reported, with the duration.

        Empty if no host has reported recently: then the problem is on this side.
        """
        self._agents.hear()
        self._polled = now = time.monotonic()
        limit = _UNHEARD * alive_s(len(self._hosts))
        ages = {self._hosts[node]: now - at for node, at in self._agents.heard.items() if 0 <= node < len(self._hosts)}
        ages = {host: age for host, age in ages.items() if host not in self._gone}
        if not self.up or self._ending or not ages or min(ages.values()) > limit / 2:
            return {}
        return {host: age for host, age in ages.items() if age > limit}

    def give_up_on(self, host: str) -> None:
        """Ignore the last reports of a host that responds but whose agent does not. The host is checked again later."""
        self._agents.heard[self._hosts.index(host)] = time.monotonic() + _AGAIN_S
        self._forget(host)
        if host not in self._mute:
            self._mute.add(host)
            self._view.note(f"windlass: {host} responds, but its agent does not; the run continues without it")

    def _forget(self, host: str) -> None:
        self.beats.discard(host)
        self.silent.pop(host, None)
        for hosts in (self.writing, self.reading, self.computing):
            hosts.discard(host)

    def order(self, what: str, attempt: int) -> bool:
        """Order all agents to `end` the ranks of an attempt, or to `start` the next one. False: they cannot be told."""
        for host in self._hosts if what == "start" else ():
            self._forget(host)
            self.figures.pop(host, None)
        return self.up and not self._gone and self._agents.tell(order=what, attempt=attempt)

    def is_down(self, attempt: int) -> bool:
        """Return whether every host has ended the ranks of this attempt."""
        return all(self.down.get(host) == attempt for host in self._hosts)

    def _take(self, host: str, news: dict[str, Any]) -> None:
        if "ended" in news:
            self.down[host] = news["ended"]
            self.figures[host] = news
        if news.get("oom"):
            self.oom.add(host)
        if "standby" in news:
            self._tell_standby(host, news["standby"])
        if "beats" in news:
            self.beats.add(host)
        if "silent" in news:
            self.silent[host] = news
        if "moves" in news:
            self.silent.pop(host, None)
        for word, hosts in (("writes", self.writing), ("reads", self.reading), ("computes", self.computing)):
            if word in news:
                (hosts.add if news[word] else hosts.discard)(host)

    def _tell_standby(self, host: str, about: dict[str, Any]) -> None:
        """Report a node without a standby, and modules that it cannot import. Once if all nodes report the same."""
        names = ", ".join(about["left_out"])
        said = f"it leaves out {names}, which start threads or open devices when imported" if names else ""
        text = f"no standby process: {about['off']}" if about["off"] else said and f"standby process: {said}"
        if text and text not in self._told:
            self._told.add(text)
            self._view.note(f"windlass: {host}: {text}")

    def stop(self) -> None:
        self._ending = True
        if self._cache is not None:
            self._cache.stop()
        else:
            self._agents.stop(_END_S)
        self.poll()
        for node, figures in self._agents.ended(HEARTBEAT).items():
            if 0 <= node < len(self._hosts):
                self.figures[self._hosts[node]] = figures
                if figures.get("oom"):
                    self.oom.add(self._hosts[node])

    def last_step(self) -> int | None:
        """Return the highest step that any rank reported."""
        return max((int(figures["step"]) for figures in self.figures.values() if "step" in figures), default=None)

    def _host(self, line: dict[str, Any]) -> str:
        node = line["node"]
        return self._hosts[node] if 0 <= node < len(self._hosts) else "?"
