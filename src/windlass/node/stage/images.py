"""Squashfs images on the node: told by their first bytes, mounted with squashfuse for as long as the agent lives.

Each mount has a guard, a process of its own: it serves the mount until it is asked to end, or until the agent and its
keeper are both gone, killed for example, and then takes the mount away. The mount's source names the guard, so that
whoever comes next tells a mount whose guard was killed too from one that is in use.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from windlass.node.agent.host import AgentError, NodeContext
from windlass.node.cache.mounting import unmount
from windlass.node.sys.identity import start_of
from windlass.node.sys.mounts import MountPoint, mounts, real_place
from windlass.node.sys.reading import open_plain

_SOURCE = "windlass-stage:"
_UP_S = 20.0
_END_S = 10.0
_LOOK_EVERY_S = 0.2
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from windlass.node.stage.images import guard; sys.exit(guard(sys.argv[2:]))"
)


def is_squashfs(path: str) -> bool:
    if not os.path.isfile(path):
        return False
    with open_plain(path, follow=True) as file:
        return file.read(4) == b"hsqs"


def start_mount(node: NodeContext, image: str, where: str) -> subprocess.Popen[bytes]:
    """Mounts a squashfs image with squashfuse; returns its guard. `AgentError` where it cannot be."""
    program = shutil.which("squashfuse_ll") or shutil.which("squashfuse")
    if program is None:
        raise AgentError("no squashfuse on this node to mount %s with" % image)
    end_earlier(node, where)
    os.makedirs(where, mode=0o700, exist_ok=True)
    status = os.lstat(where)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise AgentError("cannot mount at %s: it belongs to uid %d, or is no folder" % (where, status.st_uid))
    owners = ["%d.%s" % (pid, start_of(pid)) for pid in node.owners]
    argv = [sys.executable, "-I", "-S", "-c", _PROGRAM, node.bundle, _mark(node), program, image, where, *owners]
    kept = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    source = "%s%d.%s" % (_mark(node), kept.pid, start_of(kept.pid))
    wait_for(lambda: _is_mounted(where, source) or kept.poll() is not None, _UP_S)
    if not _is_mounted(where, source):
        kept.kill()
        said = kept.communicate(timeout=_END_S)[1].decode(errors="replace").strip()
        raise AgentError("squashfuse could not mount %s: %s" % (image, said[-200:]))
    return kept


def end_mount(where: str, kept: subprocess.Popen[bytes]) -> None:
    """Takes a mount away, by way of its guard."""
    kept.terminate()
    try:
        kept.wait(2 * _END_S)
    except subprocess.TimeoutExpired:
        kept.kill()
        kept.wait(_END_S)
    own = [mount for mount in _staged() if _guard_of(mount).partition(".")[0] == str(kept.pid)]
    _take_away([mount for mount in own if mount.place == real_place(where)])


def end_earlier(node: NodeContext, where: str) -> None:
    """Takes away what other runs of this user mounted there, by way of their guards: what is staged again takes the
    place of what was there, and who reads the old image still has it until its files are closed."""
    own = "%s%s." % (_SOURCE, node.run_id)

    def earlier() -> list[MountPoint]:
        found = [mount for mount in _staged() if mount.place == real_place(where)]
        return [mount for mount in found if not mount.source.startswith(own)]

    guards = [process for process in map(_guard_of, earlier()) if _lives(process)]
    for process in guards:
        os.kill(int(process.partition(".")[0]), signal.SIGTERM)
    # A guard removes the folder, too: only when it has ended is the place free.
    wait_for(lambda: not any(map(_lives, guards)), 2 * _END_S)
    _take_away(earlier())


def end_mounts(node: NodeContext) -> None:
    """Takes away what an agent of this run mounted on this node, whoever it was."""
    _take_away([mount for mount in _staged() if mount.source.startswith(_mark(node))])


def sweep_mounts() -> list[str]:
    """Takes away mounts of this user whose guard was killed; returns where they were."""
    return _take_away([mount for mount in _staged() if not _is_guarded(mount)])


def guard(arguments: Sequence[str]) -> int:
    """Serves one mount: mark, squashfuse, image, place, and the processes of which one must live."""
    mark, program, image, where, *owners = arguments
    stops: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stops.append(number))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    source = "%s%d.%s" % (mark, os.getpid(), start_of(os.getpid()))
    server = subprocess.Popen([program, "-f", "-o", "fsname=" + source, image, where], stdin=subprocess.DEVNULL)
    try:
        while server.poll() is None and not stops and any(_lives(owner) for owner in owners):
            time.sleep(_LOOK_EVERY_S)
    finally:
        _take_away([mount for mount in _staged() if mount.source == source])
        with contextlib.suppress(OSError):
            os.rmdir(where)
        server.terminate()
        try:
            server.wait(_END_S)
        except subprocess.TimeoutExpired:
            server.kill()
    return server.returncode or 0


def wait_for(condition: Callable[[], bool], timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)


def _mark(node: NodeContext) -> str:
    return "%s%s.%d." % (_SOURCE, node.run_id, node.number)


def _staged() -> list[MountPoint]:
    return [mount for mount in mounts() if mount.uid == os.geteuid() and mount.source.startswith(_SOURCE)]


def _is_mounted(where: str, source: str) -> bool:
    return any(mount.place == real_place(where) and mount.source == source for mount in _staged())


def _is_guarded(mount: MountPoint) -> bool:
    return _lives(_guard_of(mount))


def _guard_of(mount: MountPoint) -> str:
    """The process that serves a mount, as number and start."""
    return ".".join(mount.source.rsplit(".", 2)[1:])


def _lives(process: str) -> bool:
    """Whether a process lives, given as number and start."""
    pid, _, started = process.partition(".")
    return pid.isdigit() and bool(started) and start_of(int(pid)) == started


def _take_away(found: Sequence[MountPoint]) -> list[str]:
    gone = []
    for mount in found:
        unmount(mount.place)
        with contextlib.suppress(OSError):
            os.rmdir(mount.place)
            gone.append(mount.place)
    return gone
