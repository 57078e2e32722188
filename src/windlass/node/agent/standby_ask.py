"""Ask the standby process of a node to become a rank, and end as that rank ends.

    python standby_ask.py FOLDER RANK OPTIONS WHERE SEAT COMMAND ...

A rank script starts this file to start its rank again. OPTIONS is the number of words between the interpreter and the
script in the command. SEAT is the rank's line for the file WHERE, without the process. This process forwards signals to
the rank, which has another parent. Without a standby, it becomes the command itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_ANSWER_S = 20.0
_NAMESPACES = ("mnt", "net", "ipc", "pid", "user")
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def rank(folder: str, number: str, options: int, where: str, seat: str, argv: list[str]) -> NoReturn:
    """Let the standby become this rank and end as it ends. Without a standby, become the rank here."""
    asker = socket.socket(socket.AF_UNIX)
    said = b""
    here = os.getcwd()
    asker.settimeout(_ANSWER_S)
    try:
        os.chdir(folder)
        asker.connect("standby.socket")
        os.chdir(here)
        names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
        mask = os.umask(0)
        os.umask(mask)
        told: dict[str, Any] = {"groups": _groups(), "cwd": here, "umask": mask}
        told.update(namespaces=[os.readlink("/proc/self/ns/" + name) for name in _NAMESPACES])
        told.update(limits={name: resource.getrlimit(getattr(resource, name)) for name in names})
        told.update(cpus=sorted(os.sched_getaffinity(0)))
        told.update(ignored=[int(sig) for sig in signal.valid_signals() if signal.getsignal(sig) == signal.SIG_IGN])
        told.update(environ=dict(os.environ), command=argv[1 + options :])
        socket.send_fds(asker, [b" "], [0, 1, 2])
        asker.sendall(json.dumps(told).encode() + b"\n")
        said = _line(asker)
    except OSError as error:
        said = b"no " + str(error).encode()
    if not said.startswith(b"pid "):
        os.chdir(here)
        reason = said[3:].decode(errors="replace").strip() or "it ended"
        sys.stderr.write("windlass: rank %s starts with a fresh interpreter: standby: %s\n" % (number, reason))
        sys.stderr.flush()
        _report(folder, number, where, seat, os.getpid())
        os.execvp(argv[0], argv)
    pid = int(said[4:])
    asker.settimeout(None)
    for sig in _SIGNALS:
        if signal.getsignal(sig) != signal.SIG_IGN:
            signal.signal(sig, lambda sent, _: _pass_on(pid, sent))
    _report(folder, number, where, seat, pid)
    said = _line(asker)
    code = int(said[5:]) if said.startswith(b"code ") else -int(signal.SIGKILL)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _groups() -> str:
    with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
        return file.read()


def _report(folder: str, number: str, where: str, seat: str, pid: int) -> None:
    """Record the process of the rank for the agent, the sampler and `windlass exec`."""
    _write(os.path.join(folder, number + ".pid"), os.O_APPEND, "%d\n" % pid)
    _write(where, os.O_APPEND, "%s\t%d\n" % (seat, pid))
    steps = os.environ.get("WINDLASS_STEPS")
    if steps:
        _write(os.path.join(os.path.dirname(steps), "pids", number), os.O_TRUNC, "%d\n" % pid)


def _write(path: str, flag: int, text: str) -> None:
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flag)
        os.write(file, text.encode("utf-8", "surrogateescape"))
        os.close(file)


def _line(stream: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        more = stream.recv(256)
        if not more:
            break
        data += more
    return data


def _pass_on(pid: int, sent: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, sent)


if __name__ == "__main__":
    rank(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5], sys.argv[6:])
