"""The host of services on one node: starts them, reports that they are up, watches them, ends them.

It runs until its standard input ends or a signal requests a stop. All its output is messages on standard output. A
service is made by `module:function(node, settings)`. The manifest in the bundle lists the services.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import select
import shutil
import signal
import socket
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from windlass.node.agent.claim import AlreadyClaimedError, claimed, leave, run_kept
from windlass.node.sys.identity import own_environ
from windlass.node.sys.messages import MessageWriter

VERSION = 1
_WATCH_EVERY_S = 0.5
_LINGER_S = 60.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_FOR_RANKS = (signal.SIGUSR1, signal.SIGUSR2)
"""A job may send these to all of its processes. Only ranks handle them."""


class AgentError(Exception):
    """The agent cannot work on this node. The message has the reason."""


class NodeContext(NamedTuple):
    """The description of this node for a service."""

    number: int
    hosts: tuple[str, ...]
    run_id: str
    folder: str
    """Directory of this user's agents on the node, closed to others."""
    bundle: str
    """The bundle file on this node."""
    key: bytes
    owners: tuple[int, ...] = ()
    """The service's processes continue while at least one of these processes lives."""
    follows_stdin: bool = True
    """The end of standard input requests a stop. False: standard input may be closed from the start."""


class NodeService(Protocol):
    """The interface of a service. `start` may raise. `end` must not hang and returns a few figures."""

    def start(self) -> None: ...

    def news(self) -> list[str]:
        """Return new messages for the user, each only once."""
        ...

    def end(self) -> dict[str, Any]: ...


def main(_: dict[str, Any]) -> int:
    """Run the agent from the bundle of this module, which also has its manifest and the job's key."""
    with open(sys.path[0], "rb") as file:
        data = file.read()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        manifest, key = json.loads(archive.read("manifest.json")), archive.read("key")
    return run_agent(data, manifest, key, *sys.argv[4:])


def run_agent(data: bytes, manifest: dict[str, Any], key: bytes, unpacked: str = "") -> int:
    """Run the agent until it ends.

    `data` is the bundle itself, read once. `unpacked` is the directory of the Python interpreter that runs this code,
    if the starting shell unpacked one. It is removed at the end.
    """
    started, environ = time.monotonic(), own_environ()
    number = -1
    try:
        if manifest.get("version", 0) > VERSION:
            raise AgentError("the file is of version %s, this code knows %d" % (manifest["version"], VERSION))
        number = node_number(manifest["node_variables"], manifest["hosts"], environ)
        set_affinity(manifest.get("cpus", ()))
        base = expand(manifest["folder"])
        own = os.path.join(base, "a", "%s.%d" % (manifest["run_id"], number))
        with claimed(base, own, data) as bundle:
            node = NodeContext(
                number,
                _reachable(manifest["hosts"], manifest.get("addresses") or manifest["hosts"]),
                manifest["run_id"],
                base,
                bundle,
                key,
                owners=(os.getpid(),),
                follows_stdin=manifest.get("until") == "stdin",
            )
            return _run_kept(node, manifest, started)
    except AlreadyClaimedError:
        say(node=number, failed="an agent of this run is on this node already")
        return 1
    except Exception as error:  # the only catch-all: the waiting run must receive the error of this node
        say(node=number, failed=str(error) or type(error).__name__, kind=type(error).__name__)
        return 1
    finally:
        if unpacked:
            shutil.rmtree(unpacked, ignore_errors=True)
            leave(os.path.dirname(unpacked))


def _run_kept(node: NodeContext, manifest: dict[str, Any], started: float) -> int:
    """Run the agent below a keeper. The keeper takes over if the agent is killed."""

    def run(up: Callable[[], None]) -> int:
        own = node._replace(owners=(*node.owners, os.getpid()))
        try:
            return _Host(own, manifest, started).run(up)
        except Exception as error:
            say(node=node.number, failed=str(error) or type(error).__name__, kind=type(error).__name__)
            return 1

    for number in _FOR_RANKS:
        signal.signal(number, lambda *_: None)
    kept = run_kept(run, {*_STOP_SIGNALS, manifest.get("stop_signal", signal.SIGTERM)})
    if not kept.killed_by:
        return kept.code
    host = _Host(node, manifest, started)
    if not kept.was_up:
        host.end_services()
        raise AgentError("killed by signal %d before it was up" % kept.killed_by)
    say(node=node.number, agent="was killed by signal %d; its keeper continues" % kept.killed_by)
    return host.go_on(asked=kept.asked_to_stop)


class _Host:
    def __init__(self, node: NodeContext, manifest: dict[str, Any], started: float) -> None:
        self._node = node
        self._manifest = manifest
        self._started = started
        # A pipe and not an event: a handler that sets an event while its thread is about to wait for it deadlocks.
        self._stop, self._ask_to_stop = os.pipe()
        self._asked = 0.0
        self._services: list[tuple[str, NodeService]] = []
        self._keeper = 0

    def run(self, up: Callable[[], None]) -> int:
        """Start the services, call `up`, and end the services on request."""
        self._keeper = os.getppid()
        self._listen()
        try:
            for entry in self._manifest["services"]:
                service = make_service(entry["entry"])(self._node, entry["settings"])
                self._services.append((entry["name"], service))
                service.start()
            say(node=self._node.number, up=round(time.monotonic() - self._started, 3))
            up()
            self._watch()
        finally:
            ended = self._end()
            if os.getppid() != self._node.owners[0]:  # the keeper is dead, so it cannot remove the directory
                shutil.rmtree(os.path.dirname(self._node.bundle), ignore_errors=True)
                leave(self._node.folder)
        say(node=self._node.number, ended=ended)
        return 0

    def go_on(self, *, asked: bool) -> int:
        """Continue after an agent was killed: watch and end its running services.

        `asked`: the agent had been asked to end.
        """
        self._listen()
        if asked:
            self._hear()
        self._make_services()
        try:
            self._watch()
        finally:
            ended = self._end()
        say(node=self._node.number, ended=ended)
        return 0

    def end_services(self) -> None:
        """End the services that a killed agent may have started."""
        self._make_services()
        self._end()

    def _make_services(self) -> None:
        for entry in self._manifest["services"]:
            with contextlib.suppress(Exception):  # the service is only made to end what it started
                self._services.append((entry["name"], make_service(entry["entry"])(self._node, entry["settings"])))

    def _listen(self) -> None:
        for number in (*_STOP_SIGNALS, self._manifest.get("stop_signal", signal.SIGTERM)):
            signal.signal(number, self._hear)
        if self._manifest.get("until") == "stdin":
            threading.Thread(target=self._follow_stdin, name="stdin", daemon=True).start()

    def _hear(self, *_: Any) -> None:
        """Handle a request to stop.

        A signal to the whole job (preemption, time limit) is meant for the ranks, which may still save. An agent that
        follows standard input therefore outlives them for a while.
        """
        if self._manifest.get("until") == "stdin":
            self._asked = self._asked or time.monotonic()
        else:
            os.write(self._ask_to_stop, b"x")

    def _follow_stdin(self) -> None:
        """Handle the orders that arrive, one JSON object per line, until standard input ends."""
        data = b""
        with contextlib.suppress(OSError):
            while more := os.read(0, 4096):
                *lines, data = (data + more).split(b"\n")
                for line in lines:
                    self._obey(line)
        os.write(self._ask_to_stop, b"x")

    def _obey(self, line: bytes) -> None:
        for name, service in self._services:
            try:
                said = service.obey(json.loads(line)) if hasattr(service, "obey") else []
            except Exception as error:
                say(node=self._node.number, agent="cannot do %r: %s" % (line[:80], error))
                continue
            for text in said:
                say(node=self._node.number, service=name, news=text)

    def _watch(self) -> None:
        while not select.select([self._stop], [], [], _WATCH_EVERY_S)[0]:
            self._tell_news()
            if self._asked and time.monotonic() - self._asked > _LINGER_S:
                break
            if self._keeper and os.getppid() != self._keeper and self._lost_keeper():
                break
        self._tell_news()

    def _lost_keeper(self) -> bool:
        """Return whether to end because the keeper is dead.

        If only a signal ends the agent, it must end now, because no other process has its number.
        """
        self._keeper = 0
        say(node=self._node.number, agent="lost its keeper, which was killed")
        return self._manifest.get("until") != "stdin"

    def _tell_news(self) -> None:
        for name, service in self._services:
            for text in service.news():
                say(node=self._node.number, service=name, news=text)

    def _end(self) -> dict[str, Any]:
        ended: dict[str, Any] = {}
        for name, service in reversed(self._services):
            try:
                ended[name] = service.end()
            except Exception as error:
                ended[name] = {"error": str(error)[:200]}
            for text in getattr(service, "last_news", list)():  # services that have final news after their end
                say(node=self._node.number, service=name, news=text)
        return ended


def say(**news: Any) -> None:
    """Send one message to the process that started us. Ignore errors, because that process may have ended."""
    with contextlib.suppress(OSError):
        MessageWriter(news["node"]).send(**news)


def _reachable(hosts: list[str], addresses: list[str]) -> tuple[str, ...]:
    """Return the hosts by name if this node can resolve names, or else by address."""
    if hosts == addresses:
        return tuple(hosts)
    try:
        socket.getaddrinfo(hosts[0], None)
    except OSError:
        return tuple(addresses)
    return tuple(hosts)


def node_number(names: list[str], hosts: list[str], environ: Any) -> int:
    """Return our index among the hosts, as the launcher reports it.

    Raises an error if the launcher counts in another order than the plan. Otherwise ranks would get the view of another
    node.
    """
    for name in names:
        if environ.get(name, "").isdigit():
            number = int(environ[name])
            break
    else:
        raise AgentError("none of %s is set, so the launcher did not start this process" % ", ".join(names))
    if not number < len(hosts):
        raise AgentError("node %d, but the plan has %d" % (number, len(hosts)))
    told = environ.get("SLURMD_NODENAME", "")
    if told and len(hosts) > 1 and told.split(".")[0] != hosts[number].split(".")[0][: len(told.split(".")[0])]:
        raise AgentError("the launcher's node %d is %s, the plan's is %s" % (number, told, hosts[number]))
    return number


def set_affinity(cpus: tuple[int, ...] | list[int]) -> None:
    """Bind this process to the cores that the plan reserved, as far as this process may use them."""
    with contextlib.suppress(OSError):
        allowed = os.sched_getaffinity(0) & set(cpus)
        if allowed:
            os.sched_setaffinity(0, allowed)


def make_service(entry: str) -> Callable[[NodeContext, dict[str, Any]], NodeService]:
    module, _, function = entry.partition(":")
    made: Callable[[NodeContext, dict[str, Any]], NodeService] = getattr(importlib.import_module(module), function)
    return made


# Directories


def expand(path: str) -> str:
    """Expand each `${NAME}` from this node's environment. `$NAME` without braces is not expanded."""
    return re.sub(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", lambda match: own_environ().get(match.group(1), ""), path)
