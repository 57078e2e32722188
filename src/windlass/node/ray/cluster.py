"""One Ray cluster per run: the program that each rank of a plan with Ray runs instead of the user's command.

There is one rank per node. The first rank starts Ray's head, waits until all workers have joined, and runs the user's
command with RAY_ADDRESS. The other ranks start a worker and wait. When the command ends, all of Ray ends with it. If
Ray dies on a node, the rank of that node names it and fails, and the run ends as for any other rank.

Ray's files are in a new private folder of the node. A guard kills Ray and removes the folder, even if this process is
killed.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from windlass.node.ray import TOKEN_FILE
from windlass.node.ray.members import END, SERVICE, Members, PeerLostError, join, receive, send
from windlass.node.sys.atomic import is_locked, open_append, take_lock
from windlass.node.sys.folders import private_folder
from windlass.node.sys.guard import guarded
from windlass.node.sys.identity import kill_marked, own_environ
from windlass.node.sys.messages import host_name
from windlass.node.sys.reading import read_bytes, read_text
from windlass.node.wire.accept import Acceptor
from windlass.node.wire.proof import Channel, Identity

# Exit code if the command was never started: the same as the rank script's.
CANNOT_START = 70
RAY_DIED = 71
LOOPBACK = "127.0.0.1"
_FOLDER = "windlass-ray-"
_MARK = "WINDLASS_RAY"
# `ray start` writes this file to its folder when the node is up.
_UP_FILE = "ray_current_cluster"
# Longer names would make the paths of Ray's sockets longer than the kernel allows (107 bytes).
_MAX_FOLDER = 38
_RAY = "import sys; del sys.path[0]; from ray.scripts.scripts import main; main()"
"""The `ray` command. `-c` puts the current folder first, and its files could replace modules."""
_OPEN = """Ray %s has no authentication: every user who reaches this node could run programs as you. \
Install ray>=2.52, or accept this with --env RAY_AUTH_MODE=disabled"""
_START_S = 240.0
_JOIN_S = 300.0
_END_S = 15.0
# How long a rank waits for the launcher to end the run after another rank failed, so that it does not fail first.
_LINGER_S = 5.0
_POLL_S = 0.1
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_STOPS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_FOR_COMMAND = (signal.SIGUSR1, signal.SIGUSR2)


class RayError(Exception):
    """Ray cannot start or has died. The message names the node."""


class RayPlace(NamedTuple):
    """This node in the cluster, from the command line."""

    node: int
    # The head's, by the name on the fabric.
    address: str
    port: int
    # The folder of this node for temporary files.
    root: str
    nodes: int
    # 0: all that this process may use.
    cpus: int
    # None: Ray looks.
    devices: int | None
    run_id: str
    # Only this process receives the signals of the launcher.
    forwards: bool


def main(argv: list[str]) -> int:
    """Run this node's part of the cluster, and the command on the first node. Returns the exit code of the rank."""
    place, command = read_place(argv)
    signals: list[int] = []
    for number in (*_STOPS, *_FOR_COMMAND):
        heard = number in _STOPS or place.node == 0
        signal.signal(number, (lambda got, _: signals.append(got)) if heard else lambda *_: None)
    if importlib.util.find_spec("ray") is None:
        text = "%s has no ray: install it there (pip install 'ray[default]'), or name another Python with --python"
        return _failed(text % sys.executable, CANNOT_START)
    if own_environ().get("RAY_AUTH_MODE") != "disabled" and not authenticates(version := ray_version()):
        return _failed(_OPEN % version, CANNOT_START)
    try:
        with node_folder(place.root) as folder, guarded("%s=%s" % (_MARK, folder), lambda: shutil.rmtree(folder, True)):
            node = _RayNode(place, folder, signals)
            try:
                return node.lead(command) if place.node == 0 else node.follow()
            finally:
                node.end()
    except (RayError, OSError) as error:
        return _failed(str(error), 128 + signals[0] if signals else RAY_DIED)


def ray_version() -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("ray")
    return "of unknown version"


def authenticates(version: str) -> bool:
    """Return whether this version of Ray checks the token. Earlier ones ignore it."""
    return [int(number) for number in re.findall(r"\d+", version)[:2]] >= [2, 52]


def read_place(argv: list[str]) -> tuple[RayPlace, list[str]]:
    """Parse NODE ADDRESS PORT ROOT SETTINGS COMMAND."""
    node, address, port, root, settings, *command = argv
    return RayPlace(int(node), address, int(port), root, **json.loads(settings)), command


def _failed(text: str, code: int) -> int:
    sys.stderr.write("windlass: Ray on %s: %s\n" % (host_name(), text))
    sys.stderr.flush()
    return code


@contextlib.contextmanager
def node_folder(root: str) -> Iterator[str]:
    """Make this node's folder for Ray, and remove it at the end. Folders of killed runs are removed first."""
    root = root if len(os.path.join(root, _FOLDER)) + 8 <= _MAX_FOLDER else "/tmp"
    with contextlib.suppress(OSError):
        for name in os.listdir(root):
            old = os.path.join(root, name)
            mine = name.startswith(_FOLDER) and os.lstat(old).st_uid == os.geteuid() and not os.path.islink(old)
            if mine and is_locked(os.path.join(old, "lock")) is False:
                shutil.rmtree(old, ignore_errors=True)
    folder = private_folder(os.path.join(root, _FOLDER + secrets.token_hex(4)))
    lock = take_lock(os.path.join(folder, "lock"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


class _RayNode:
    """Ray on this node."""

    def __init__(self, place: RayPlace, folder: str, signals: list[int]) -> None:
        self._place = place
        self._folder = folder
        self._signals = signals
        self._ray: subprocess.Popen[bytes] | None = None
        token_path = os.path.join(own_environ()["WINDLASS_RUN_DIR"], TOKEN_FILE)
        key = hashlib.sha256(read_bytes(token_path)).digest()
        self._identity = Identity(key, place.run_id, SERVICE, place.node)
        self.environ = {
            **own_environ(),
            _MARK: folder,
            "RAY_AUTH_MODE": own_environ().get("RAY_AUTH_MODE", "token"),
            "RAY_AUTH_TOKEN_PATH": token_path,
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        if "ROCR_VISIBLE_DEVICES" in self.environ and "HIP_VISIBLE_DEVICES" not in self.environ:
            count = len(self.environ["ROCR_VISIBLE_DEVICES"].split(","))  # Ray refuses the first without the second
            self.environ["HIP_VISIBLE_DEVICES"] = ",".join(map(str, range(count)))

    # The first node

    def lead(self, command: list[str]) -> int:
        """Start the head, wait for all workers, and run the command."""
        place, members = self._place, Members()
        host = socket.gethostbyname(place.address)
        try:
            listening = socket.create_server((host, place.port), backlog=1024)
        except OSError as error:
            raise RayError("cannot listen at %s port %d: %s" % (host, place.port, error.strerror)) from error
        acceptor = Acceptor(listening, self._identity, members.serve, max_proven=place.nodes)
        try:
            port = free_port(host)
            board = ["--dashboard-host=%s" % LOOPBACK, "--dashboard-port=%d" % free_port(LOOPBACK)]
            if importlib.util.find_spec("grpc") is not None:  # otherwise Ray has no client server
                board.append("--ray-client-server-port=%d" % free_port(host))
            self._start("--head", "--port=%d" % port, *board, ip=host)
            self.environ["RAY_ADDRESS"] = "%s:%d" % (host, port)
            members.announce(self.environ["RAY_ADDRESS"])
            self._wait_for(members)
            code = self._run(command, members)
            members.end(_END_S)
            return code
        finally:
            acceptor.close()

    def _wait_for(self, members: Members) -> None:
        end = time.monotonic() + _JOIN_S
        while len(members.up) < self._place.nodes - 1:
            self._check_stop()
            self._check(members)
            if time.monotonic() > end:
                missing = [str(node) for node in range(1, self._place.nodes) if node not in members.up]
                text = "after %g s the workers of these nodes have not joined: %s"
                raise RayError(text % (_JOIN_S, ", ".join(missing[:16])))
            time.sleep(_POLL_S)

    def _check(self, members: Members) -> None:
        """Raise `RayError` if the head or a worker has died."""
        self._check_ray("head")
        if members.lost:
            self._linger(_LINGER_S)
            raise RayError("the worker on %s has died" % ", ".join(sorted(members.lost.values())[:8]))

    def _run(self, command: list[str], members: Members) -> int:
        """Run the user's command until it ends. If Ray dies, the command is ended and `RayError` is raised."""
        driver = subprocess.Popen(command, env=self.environ)
        try:
            while driver.poll() is None:
                while self._signals:
                    number = self._signals.pop(0)
                    if self._place.forwards:
                        driver.send_signal(number)
                self._check(members)
                time.sleep(_POLL_S)
        finally:
            if driver.poll() is None:
                driver.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    driver.wait(_LINGER_S)
                driver.kill()
                driver.wait()
        return driver.returncode if driver.returncode >= 0 else 128 - driver.returncode

    # The other nodes

    def follow(self) -> int:
        """Start a worker, and wait for the end of the run. A dead head is reported only after its own rank's report."""
        place = self._place
        try:
            channel = join(place.address, place.port, self._identity, _START_S, self._check_stop)
            send(channel, host_name())
            self._start("--address=%s" % self._hear(channel, check=self._check_stop), ip=own_address(channel.socket))
            send(channel, host_name())
            if self._hear(channel) != END:
                raise PeerLostError("it sent an unknown message")
            self.end()
            channel.shut()
            return 0
        except PeerLostError as error:
            self._linger(_END_S + 2 * _LINGER_S)
            raise RayError("the head on the first node is gone: %s" % error) from error

    def _hear(self, channel: Channel, check: Callable[[], None] = lambda: None) -> str:
        """Wait for a message of the head. Raises `RayError` if Ray dies here.

        A request to stop goes to all ranks. The command may still need the workers then, so that only the head ends
        them.
        """
        while not select.select([channel.socket], [], [], _POLL_S)[0]:
            check()
            self._check_ray("worker")
        return receive(channel)

    # Ray's own processes

    def _start(self, *words: str, ip: str) -> None:
        """Start Ray on this node and wait until it is up. Raises `RayError` with Ray's last lines."""
        place = self._place
        cpus = place.cpus or len(os.sched_getaffinity(0))
        argv = [sys.executable, "-c", _RAY, "start", "--block", "--disable-usage-stats", *words]
        argv += ["--node-ip-address=%s" % ip, "--temp-dir=%s" % self._folder, "--num-cpus=%d" % cpus]
        argv += ["--min-worker-port=0", "--max-worker-port=0"]
        argv += ["--num-gpus=%d" % place.devices] if place.devices is not None else []
        with open_append(os.path.join(self._folder, "start.log")) as log:
            self._ray = subprocess.Popen(
                argv, env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        end = time.monotonic() + _START_S
        while not os.path.exists(os.path.join(self._folder, _UP_FILE)):
            self._check_ray("start of Ray")
            self._check_stop()
            if time.monotonic() > end:
                raise RayError("not up after %g s: %s" % (_START_S, self._last_lines()))
            time.sleep(_POLL_S)

    def _linger(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._signals and time.monotonic() < end:
            time.sleep(_POLL_S)

    def _check_stop(self) -> None:
        stops = [number for number in self._signals if number in _STOPS]
        if stops:
            raise RayError("stopped by signal %d" % stops[0])

    def _check_ray(self, part: str) -> None:
        code = self._ray.poll() if self._ray else None
        if code is not None:
            raise RayError("the %s has failed (code %d): %s" % (part, code, self._last_lines()))

    def _last_lines(self) -> str:
        """Return the errors that `ray start` printed, or else the last lines, without colours."""
        text = _COLOUR.sub("", read_text(os.path.join(self._folder, "start.log"), errors="replace"))
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [line.partition(" -- ")[2] for line in lines if "\tERR " in line and " -- [" not in line]
        return " | ".join(errors or lines[-9:])[-800:] or "no message"

    def end(self) -> None:
        """End all processes of Ray on this node."""
        if self._ray is None:
            return
        self._ray.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._ray.wait(_END_S)
        kill_marked(os.fsencode("%s=%s" % (_MARK, self._folder)), session=self._ray.pid)
        self._ray.wait()
        self._ray = None


def own_address(connection: socket.socket) -> str:
    """Return the address of this node on the network of the head."""
    address = str(connection.getsockname()[0])
    if address.startswith("127."):
        with contextlib.suppress(OSError):
            return socket.gethostbyname(host_name())
    return address


def free_port(host: str) -> int:
    """Return a port of this address that no process uses now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
