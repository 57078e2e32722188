"""Control a node's cache from outside: start it, query it, stop it, and clean up after a crash.

The sweep removes only what belongs to windlass. A state directory must belong to this user, be closed to others, and
contain a configuration that names this directory. Its two processes must not hold their locks. A mount must have our
type, and its source must name the same job.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from typing import Any

from windlass.node.cache.config import ConfigFileError, NodeConfig, dump_config, read_config, read_key
from windlass.node.cache.mounting import unmount
from windlass.node.sys.atomic import is_locked, open_append, replace_file, take_lock
from windlass.node.sys.folders import private_folder
from windlass.node.sys.mounts import mounts, real_place
from windlass.node.sys.reading import open_plain, read_object, read_tail
from windlass.node.wire import wire
from windlass.node.wire.link import Collect, open_local_link
from windlass.node.wire.proof import NO_NODE, ProtocolError

ROLES = ("peer", "mount")
_LOCK_S = 1.0
"""A process that tests whether a lock is held also holds it for a moment."""
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from windlass.node.cache.daemon import main; sys.exit(main(sys.argv[2:]))"
)


class ControlError(Exception):
    """A node's cache could not be started, reached or stopped. The message gives the reason."""


def start(config: NodeConfig, deadline_s: float = 20.0, code: str = "") -> dict[str, Any]:
    """Sweep, then start the processes of this node.

    On return the mount exists. Other nodes may still be starting. `code`: the directory with the package `windlass` to
    start from, if it is not the one that contains this module. Raises `ControlError` with the end of the log if a
    process does not start. In that case everything is cleaned up.
    """
    base = os.path.dirname(config.state_dir)
    if not os.path.isdir(base):
        private_folder(base)
    sweep(base)
    if os.path.exists(os.path.join(config.state_dir, "config.json")):
        raise ControlError("%s is in use by another cache" % config.state_dir)
    private_folder(config.state_dir)
    with _locked(config.state_dir, "start"):
        replace_file(os.path.join(config.state_dir, "config.json"), dump_config(config).encode())
        try:
            return _start_processes(config, time.monotonic() + deadline_s, code)
        except BaseException:
            stop(config.state_dir, 2.0)
            raise


def _start_processes(config: NodeConfig, deadline: float, code: str) -> dict[str, Any]:
    roles = ROLES if config.mount else ROLES[:1]
    children = {role: spawn(config, role, code) for role in roles}
    said: dict[str, Any] = {}
    while len(said) < len(roles):
        for role in roles:
            news = _read_json(os.path.join(config.state_dir, role + ".json"))
            if news is not None:
                said[role] = news
            if (news is None and children[role].poll() is not None) or (news is not None and "failed" in news):
                raise ControlError("the %s process ended: %s" % (role, _log_end(config.state_dir, role)))
        if time.monotonic() > deadline:
            raise ControlError("not up in time: %s" % ", ".join(r for r in roles if r not in said))
        time.sleep(0.01)
    return said


def spawn(config: NodeConfig, role: str, code: str = "") -> subprocess.Popen[bytes]:
    """Start one process in a new session. Its log is in the state directory."""
    argv = [sys.executable, "-I", "-S", "-c", _PROGRAM, code or os.path.abspath(__file__ + "/../../../.."), role]
    with open_append(os.path.join(config.state_dir, role + ".log")) as log:
        return subprocess.Popen(
            [*argv, os.path.join(config.state_dir, "config.json")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
        )


def status(state_dir: str, *, tree: bool = False, timeout_s: float = 5.0) -> list[dict[str, Any]]:
    """Return the status of this node, or of all nodes below it in the tree (from node 0: of all nodes).

    Raises `ControlError` if the cache is gone.
    """
    asked = json.dumps({"tree": tree, "timeout_s": timeout_s}).encode()
    answer = _ask(state_dir, wire.STATUS, asked, timeout_s + 1.0)
    found: list[dict[str, Any]] = json.loads(answer)
    return found


def stop(state_dir: str, timeout_s: float = 10.0) -> None:
    """Unmount, end both processes (with SIGKILL at the deadline) and remove their files.

    Does nothing if nothing runs.
    """
    try:
        config = read_config(os.path.join(state_dir, "config.json"))
    except (OSError, ValueError, ConfigFileError):
        return
    deadline = time.monotonic() + timeout_s
    for role in reversed(ROLES):
        _end_process(state_dir, role, deadline)
    _remove(config)


def sweep(base: str) -> list[str]:
    """Remove the remains of crashed caches below `base`. Return the removed directories."""
    swept = []
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(base):
            if entry.is_dir(follow_symlinks=False) and _is_abandoned(entry.path):
                with contextlib.suppress(OSError, ValueError, ConfigFileError):
                    _remove(read_config(os.path.join(entry.path, "config.json")))
                    swept.append(entry.path)
    return swept


def is_running(state_dir: str, role: str) -> bool:
    """Whether the process holds its lock."""
    return bool(is_locked(os.path.join(state_dir, role + ".lock")))


# Internals


def _ask(state_dir: str, kind: int, body: bytes, timeout_s: float) -> bytes:
    try:
        config = read_config(os.path.join(state_dir, "config.json"))
        identity = config.identity(read_key(config.key_file))._replace(node=NO_NODE)
        link = open_local_link(config.socket, identity, config.node, timeout_s)
    except (OSError, ProtocolError, ValueError) as error:
        raise ControlError("no cache answers in %s: %s" % (state_dir, error)) from error
    try:
        reply = Collect()
        if not link.ask(kind, body, reply):
            raise ControlError("no cache answers in %s: %s" % (state_dir, link.reason))
        return reply.wait(timeout_s)[1]
    except OSError as error:
        raise ControlError("no cache answers in %s: %s" % (state_dir, error)) from error
    finally:
        link.close()


def _end_process(state_dir: str, role: str, deadline: float) -> None:
    news = _read_json(os.path.join(state_dir, role + ".json")) or {}
    pid = int(news.get("pid", 0)) or _pid_from_lock(state_dir, role)
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = deadline if number == signal.SIGTERM else time.monotonic() + 5.0
        asked = False
        while is_running(state_dir, role) and time.monotonic() < until:
            if pid and not asked:
                asked = True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
                    os.kill(pid, number)
            time.sleep(0.01)
    if pid:
        with contextlib.suppress(OSError):
            os.waitpid(pid, os.WNOHANG)  # if it is our child: leave no zombie


def _pid_from_lock(state_dir: str, role: str) -> int:
    with contextlib.suppress(OSError, ValueError), open_plain(os.path.join(state_dir, role + ".lock")) as file:
        return int(file.read(32) or b"0")
    return 0


def _is_abandoned(folder: str) -> bool:
    status_ = os.lstat(folder)
    if status_.st_uid != os.getuid() or stat.S_IMODE(status_.st_mode) != 0o700:
        return False
    try:
        config = read_config(os.path.join(folder, "config.json"))
    except (OSError, ValueError, ConfigFileError):
        return False
    if os.path.realpath(config.state_dir) != os.path.realpath(folder):
        return False
    return not any(is_running(folder, role) for role in (*ROLES, "start"))


def _remove(config: NodeConfig) -> None:
    if config.mount:
        if is_our_mount(config.mount, config.job):
            unmount(config.mount)
        with contextlib.suppress(OSError):
            os.rmdir(config.mount)
    for folder in filter(None, (config.store, config.state_dir)):
        shutil.rmtree(folder, ignore_errors=True)


def is_our_mount(where: str, job: str) -> bool:
    """Whether a mount of this job exists at `where`, alive or dead. Asks the kernel, not the mount."""
    wanted = real_place(where), "fuse.windlass", "windlass:" + job
    return any(mount[:3] == wanted for mount in mounts())


@contextlib.contextmanager
def _locked(state_dir: str, role: str) -> Any:
    try:
        lock = take_lock(os.path.join(state_dir, role + ".lock"), _LOCK_S)
    except BlockingIOError:
        raise ControlError("%s is being started by another process" % state_dir) from None
    try:
        yield
    finally:
        os.close(lock)


def _read_json(path: str) -> dict[str, Any] | None:
    try:
        return read_object(path)
    except (OSError, ValueError):
        return None


def _log_end(state_dir: str, role: str) -> str:
    try:
        text = read_tail(os.path.join(state_dir, role + ".log"), 1 << 16).decode("utf-8", "replace")
        return " | ".join(text.strip().splitlines()[-3:])
    except OSError:
        return "no log"
