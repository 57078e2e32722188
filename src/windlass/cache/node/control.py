"""A node's cache from outside: start it, wait for it, ask it, stop it, and sweep what a crash left.

What is swept is provably ours: a folder of this user, closed to others, with a configuration that names the folder
itself, whose two processes hold their locks no more; a mount of our type whose source names the same job.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from . import wire
from .config import ConfigFileError, NodeConfig, dump_config, make_private_folder, read_config, read_key
from .fuse import unmount
from .link import Collect, connect_local

ROLES = ("peer", "mount")


class ControlError(Exception):
    """A node's cache could not be started, reached or stopped; the text says why."""


class NotReadyError(ControlError):
    """The deadline passed before all nodes were up. `missing` names those not heard of."""

    def __init__(self, text: str, missing: Sequence[int]) -> None:
        super().__init__(text)
        self.missing = tuple(missing)


def start(config: NodeConfig, deadline_s: float = 20.0, code: str = "") -> dict[str, Any]:
    """Sweeps, then starts the processes of this node. On return the mount is there; other nodes may still be coming.
    `code`: a folder above this package to start them from, where it is not the one that this module came from.

    Raises `ControlError` with the end of the log where a process does not come up; nothing is left behind then.
    """
    base = os.path.dirname(config.state_dir)
    if not os.path.isdir(base):
        make_private_folder(base)
    sweep(base)
    if os.path.exists(os.path.join(config.state_dir, "config.json")):
        raise ControlError("%s is in use by another cache" % config.state_dir)
    make_private_folder(config.state_dir)
    with _locked(config.state_dir, "start"):
        with open(os.path.join(config.state_dir, "config.json"), "w", encoding="utf-8") as file:
            file.write(dump_config(config))
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
    """Starts one process in a session of its own; its log lies in the state folder."""
    above, package = os.path.split(os.path.dirname(os.path.abspath(__file__)))
    program = "import sys; sys.path.insert(0, %r); from %s.daemon import main; sys.exit(main(sys.argv[1:]))"
    argv = [sys.executable, "-I", "-S", "-c", program % (code or above, package), role]
    with open(os.path.join(config.state_dir, role + ".log"), "ab") as log:
        return subprocess.Popen(
            [*argv, os.path.join(config.state_dir, "config.json")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
        )


def status(state_dir: str, *, tree: bool = False, timeout_s: float = 5.0) -> list[dict[str, Any]]:
    """Status of this node, or of all nodes below it in the tree (from node 0: of all). `ControlError` if it is gone."""
    asked = json.dumps({"tree": tree, "timeout_s": timeout_s}).encode()
    answer = _ask(state_dir, wire.STATUS, asked, timeout_s + 1.0)
    found: list[dict[str, Any]] = json.loads(answer)
    return found


def wait_ready(state_dir: str, deadline_s: float, *, pushed: bool = False) -> dict[str, Any]:
    """Waits at the barrier until all nodes are up and, with `pushed`, the trace is on this node and in its kernel;
    `NotReadyError` at the deadline."""
    deadline = time.monotonic() + deadline_s
    pause = 0.01
    while True:
        (own,) = status(state_dir, timeout_s=2.0)
        if own["state"] == "ready" and (not pushed or _is_pushed(own)):
            return own
        if time.monotonic() > deadline:
            missing = own["missing_nodes"]
            text = "after %.0f s %d of %d nodes are up" % (deadline_s, own["ready_nodes"], own["nodes"])
            raise NotReadyError(text, missing)
        time.sleep(pause)
        pause = min(0.2, pause * 1.5)


def _is_pushed(own: dict[str, Any]) -> bool:
    warm = own["mount"].get("warm")
    waits_for_kernel = warm is not None and warm["wanted"] and own["mount"]["alive"]
    return bool(own["push"]["ended"] and (not waits_for_kernel or warm["ended"]))


def stop(state_dir: str, timeout_s: float = 10.0) -> None:
    """Unmounts, ends both processes (by force at the deadline) and removes all they made. Fine where nothing runs."""
    try:
        config = read_config(os.path.join(state_dir, "config.json"))
    except (OSError, ValueError, ConfigFileError):
        return
    deadline = time.monotonic() + timeout_s
    for role in reversed(ROLES):
        _end_process(state_dir, role, deadline)
    _remove(config)


def stop_tree(state_dir: str, timeout_s: float = 10.0) -> None:
    """Ends the caches of all nodes below this one in the tree (from node 0: of the job), then this one."""
    with contextlib.suppress(ControlError):
        asked = json.dumps({"tree": True, "timeout_s": timeout_s}).encode()
        _ask(state_dir, wire.STOP, asked, timeout_s + 1.0)
    stop(state_dir, timeout_s)


def end_mount_and_remove(config: NodeConfig, timeout_s: float = 5.0) -> None:
    """For a peer process that was told to stop by another node: takes the rest of the node's cache along."""
    _end_process(config.state_dir, "mount", time.monotonic() + timeout_s)
    _remove(config)


def sweep(base: str) -> list[str]:
    """Removes what crashed caches left below `base`; returns the folders that went."""
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
    try:
        fd = os.open(os.path.join(state_dir, role + ".lock"), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def control_main(arguments: Sequence[str]) -> int:
    """`start CONFIG NODE | ready STATE_DIR SECONDS | status STATE_DIR [tree] | stop STATE_DIR [tree]`"""
    try:
        answer: Any = _control(list(arguments))
    except (ControlError, ConfigFileError, OSError) as error:
        sys.stderr.write("%s\n" % error)
        return 1
    except (IndexError, ValueError):
        sys.stderr.write("usage: %s\n" % control_main.__doc__)
        return 2
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


def _control(arguments: list[str]) -> Any:
    if arguments[0] == "start":
        config = read_config(arguments[1])
        return start(config.for_node(int(arguments[2])) if len(arguments) > 2 else config)
    if arguments[0] == "ready":
        return wait_ready(arguments[1], float(arguments[2]))
    if arguments[0] == "status":
        return status(arguments[1], tree="tree" in arguments[2:])
    if arguments[0] == "stop":
        return stop_tree(arguments[1]) if "tree" in arguments[2:] else stop(arguments[1])
    raise ValueError(arguments[0])


# Inside


def _ask(state_dir: str, kind: int, body: bytes, timeout_s: float) -> bytes:
    try:
        config = read_config(os.path.join(state_dir, "config.json"))
        link = connect_local(config.socket, read_key(config.key_file), config.node, timeout_s)
    except (OSError, wire.ProtocolError, ValueError) as error:
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
            os.waitpid(pid, os.WNOHANG)  # where it is a child of ours: no zombie


def _pid_from_lock(state_dir: str, role: str) -> int:
    with contextlib.suppress(OSError, ValueError), open(os.path.join(state_dir, role + ".lock"), "rb") as file:
        return int(file.read() or b"0")
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
    """Whether a mount of this job stands at `where`, alive or dead; asks the kernel, not the mount."""
    wanted = os.fsencode(os.path.join(os.path.realpath(os.path.dirname(where)), os.path.basename(where)))
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            fields, _, rest = line.partition(b" - ")
            place = re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8)]), fields.split()[4])
            kind, source = rest.split()[:2]
            if place == wanted and kind == b"fuse.windlass" and source == b"windlass:" + job.encode():
                return True
    return False


@contextlib.contextmanager
def _locked(state_dir: str, role: str) -> Any:
    fd = os.open(os.path.join(state_dir, role + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ControlError("%s is being started by another process" % state_dir) from None
    finally:
        os.close(fd)


def _read_json(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
            return found
    except (OSError, ValueError):
        return None


def _log_end(state_dir: str, role: str) -> str:
    try:
        with open(os.path.join(state_dir, role + ".log"), encoding="utf-8", errors="replace") as file:
            return " | ".join(file.read().strip().splitlines()[-3:])
    except OSError:
        return "no log"
