"""Start trainings as forks of one process that has imported torch.

To import torch and what a training loads of it takes 3 to 4 s of processor time, a fork almost none. Each program runs
as `__main__` of a process of its own, with its own environment, and ends as every interpreter does.

Run as a program this module is that process: it reads requests from a socket, and writes who started and who ended.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import leftovers

_START_S = 120.0
_REAP_S = 0.02
_MAX_REQUEST = 1 << 20


class _Parent:
    """The process that has imported torch, seen from a test."""

    def __init__(self) -> None:
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        kept = {k: v for k, v in os.environ.items() if k != leftovers.MARK_VARIABLE}
        env = {**kept, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"}
        argv = [sys.executable, __file__, str(theirs.fileno())]
        self._process = subprocess.Popen(argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=env)
        theirs.close()
        self.codes: dict[int, int] = {}

    def start(self, argv: Sequence[str], env: Mapping[str, str], output: int) -> int:
        """The pid of a new process that writes to this descriptor."""
        request = json.dumps([list(argv), dict(env), str(Path.cwd())]).encode()
        socket.send_fds(self._link, [request], [output])
        while (pid := self.hear(_START_S)) is None:
            pass
        return pid

    def hear(self, wait_s: float) -> int | None:
        """Read one message: the pid of a process that started, or None after keeping the code of one that ended."""
        if not select.select([self._link], [], [], wait_s)[0]:
            raise TimeoutError
        kind, pid, code = json.loads(self._link.recv(_MAX_REQUEST) or '["gone", 0, 0]')
        assert kind != "gone", f"the process that starts trainings has ended with {self._process.wait()}"
        if kind == "started":
            return int(pid)
        self.codes[int(pid)] = int(code)
        return None


@functools.cache
def _parent() -> _Parent:
    return _Parent()


class Forked:
    """One started program, with the part of `subprocess.Popen` that tests use. Output has both streams."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self._output, theirs = os.pipe()
        try:
            self.pid = _parent().start(argv, env, theirs)
        finally:
            os.close(theirs)
        self._read: list[bytes] = []
        self._ended = False

    @property
    def returncode(self) -> int | None:
        return _parent().codes.get(self.pid)

    def poll(self) -> int | None:
        try:
            while self.returncode is None:
                _parent().hear(0)
        except TimeoutError:
            pass
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """All output, once the program has ended. Raises `subprocess.TimeoutExpired`."""
        end = time.monotonic() + (1e6 if timeout is None else timeout)
        try:
            while not self._ended:
                left = end - time.monotonic()
                if left < 0 or not select.select([self._output], [], [], left)[0]:
                    raise TimeoutError
                data = os.read(self._output, 1 << 16)
                self._read.append(data)
                if not data:
                    self._ended = True
                    os.close(self._output)
            while self.returncode is None:
                _parent().hear(max(0.0, end - time.monotonic()))
        except TimeoutError:
            raise subprocess.TimeoutExpired("a forked program", timeout or 0) from None
        return b"".join(self._read).decode(errors="replace"), None


def _serve(link: socket.socket) -> list[str] | None:
    """Fork for each request. Returns the argv of a program in its new process, and None when the tests have ended."""
    children: set[int] = set()
    while True:
        if select.select([link], [], [], _REAP_S if children else None)[0]:
            data, received, _, _ = socket.recv_fds(link, _MAX_REQUEST, 1)
            if not data:
                for pid in children:
                    os.kill(pid, signal.SIGKILL)
                return None
            argv, env, folder = json.loads(data)
            pid = os.fork()
            if pid == 0:
                link.close()
                for stream in (1, 2):
                    os.dup2(received[0], stream)
                os.close(received[0])
                os.chdir(folder)
                os.environ.clear()
                os.environ.update(env)
                return list(argv)
            os.close(received[0])
            children.add(pid)
            link.send(json.dumps(["started", pid, 0]).encode())
        for pid in tuple(children):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                children.remove(pid)
                link.send(json.dumps(["ended", pid, os.waitstatus_to_exitcode(status)]).encode())


if __name__ == "__main__":
    for name in ("torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.profiler"):
        importlib.import_module(name)
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a fork has only the thread that forks"
    gc.collect()
    gc.freeze()  # a collection in a child would touch, and so copy, all that it shares with this process
    program = _serve(socket.socket(fileno=int(sys.argv[1])))
    if program is not None:
        sys.argv = program
        sys.path[0] = str(Path(program[0]).parent)
        runpy.run_path(program[0], run_name="__main__")
