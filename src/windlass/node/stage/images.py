"""Squashfs images on the node: detected by their first bytes, and mounted with squashfuse.

A mount exists as long as the agent lives. Each mount has a guard process. The guard serves the mount until it is asked
to end, or until the agent and its keeper are both dead, and then removes the mount. The mount's source contains the
guard's identity. A later agent can therefore distinguish a mount whose guard was killed from one that is in use.
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
    """Mount a squashfs image with squashfuse. Return its guard. Raises `AgentError` on failure."""
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
    """Remove a mount through its guard."""
    kept.terminate()
    try:
        kept.wait(2 * _END_S)
    except subprocess.TimeoutExpired:
        kept.kill()
        kept.wait(_END_S)
    own = [mount for mount in _staged() if _guard_of(mount).partition(".")[0] == str(kept.pid)]
    _take_away([mount for mount in own if mount.place == real_place(where)])


def end_earlier(node: NodeContext, where: str) -> None:
    """Remove the mounts of this user's other runs there, through their guards.

    The newly staged image replaces the old one. Processes that read the old image can use it until they close its
    files.
    """
    own = "%s%s." % (_SOURCE, node.run_id)

    def earlier() -> list[MountPoint]:
        found = [mount for mount in _staged() if mount.place == real_place(where)]
        return [mount for mount in found if not mount.source.startswith(own)]

    guards = [process for process in map(_guard_of, earlier()) if _lives(process)]
    for process in guards:
        os.kill(int(process.partition(".")[0]), signal.SIGTERM)
    # A guard also removes the directory, so the path is free only after the guard has ended.
    wait_for(lambda: not any(map(_lives, guards)), 2 * _END_S)
    _take_away(earlier())


def end_mounts(node: NodeContext) -> None:
    """Remove all mounts of this run's agents on this node."""
    _take_away([mount for mount in _staged() if mount.source.startswith(_mark(node))])


def sweep_mounts() -> list[str]:
    """Remove mounts of this user whose guard was killed. Return their paths."""
    return _take_away([mount for mount in _staged() if not _is_guarded(mount)])


def guard(arguments: Sequence[str]) -> int:
    """Serve one mount. Arguments: mark, squashfuse, image, mount point, and the processes of which one must live."""
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
    """Return the process that serves a mount, as number and start time."""
    return ".".join(mount.source.rsplit(".", 2)[1:])


def _lives(process: str) -> bool:
    """Return whether a process lives, given as number and start time."""
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
