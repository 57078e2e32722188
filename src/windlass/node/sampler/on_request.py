"""What a rank writes when the agent of its node asks: its Python stacks, and torch's flight record of collectives.

The start-up hook and `windlass.init` both use it. It needs the standard library alone, because on a node it lies next
to the hook, and it leaves alone what the user has set. Evidence is a help, not a condition: nothing here raises.
"""

from __future__ import annotations

import faulthandler
import os
import sys

TYPE_CHECKING = False  # and imports inside functions: every Python of a rank reads this at its start
if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

PIPE_SUFFIX, STACK_SUFFIX = ".flight", ".stack"
"""Of the files next to a rank's heartbeat: the pipe that asks for the flight record, and the file of the stacks."""
STACK_SIGNAL = 44
"""A real-time signal (SIGRTMIN+10 with glibc). SIGUSR1 has handlers of frameworks that save or put the job back."""
OTHER_SUFFIX = "-other"
"""Of the record of other backends where the build of torch has NCCL's too."""
_ENTRIES = "2000"  # matching by sequence number is unreliable once the ring has wrapped: keep it large


def stacks_on_request(heartbeat: str | None) -> None:
    """`STACK_SIGNAL` writes the Python stacks of all threads to the file next to the heartbeat, even inside C code."""
    if heartbeat:
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            faulthandler.register(STACK_SIGNAL, file=os.open(heartbeat + STACK_SUFFIX, flags, 0o600))
        except (ValueError, OSError, RuntimeError):
            return


def stacks_by_hand() -> None:
    """SIGUSR1 prints the Python stacks of all threads to stderr, where nobody else uses that signal."""
    import signal

    free = (signal.SIG_DFL, signal.SIG_IGN)  # ignored: by the rank script, under launchers that send it to everybody
    if hasattr(signal, "SIGUSR1") and signal.getsignal(signal.SIGUSR1) in free and sys.stderr is not None:
        try:
            faulthandler.register(signal.SIGUSR1, all_threads=True)
        except (ValueError, OSError, RuntimeError):
            return  # stderr is not a real file (a notebook): no stacks there


def recorder_variables(torch_version: str, dump_dir: str | None) -> dict[str, str]:
    """The variables that switch the flight recorder on. torch 2.9 renamed them; the old names warn there."""
    import re

    match = re.match(r"(\d+)\.(\d+)", torch_version)
    renamed = match is None or (int(match[1]), int(match[2])) >= (2, 9)
    size, file = (
        ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE")
        if renamed
        else ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    )
    variables = {size: _ENTRIES, "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    if dump_dir is not None:
        variables[file] = os.path.join(dump_dir, "rank_")  # torch appends the rank
    return variables


def switch_on(environ: MutableMapping[str, str], torch_version: str, run_dir: str | None) -> None:
    """Set the variables that nobody has set. They must be there before the first process group."""
    dump_dir = os.path.join(run_dir, "flight") if run_dir else None
    if dump_dir is not None:
        try:
            os.makedirs(dump_dir, exist_ok=True)
        except OSError:
            dump_dir = None  # torch then writes to its default place
    for name, value in recorder_variables(torch_version, dump_dir).items():
        environ.setdefault(name, value)


def dump_on_request(heartbeat: str | None, run_dir: str | None, rank: int | str) -> None:
    """Let the agent of this node ask for the record while the rank hangs: a byte in the pipe next to the heartbeat
    makes a thread write `flight/rank_N`. torch itself dumps only at its own time-out, and with NCCL alone."""
    import threading

    if not heartbeat or not run_dir:
        return
    pipe = heartbeat + PIPE_SUFFIX
    try:
        if not os.path.exists(pipe):
            os.mkfifo(pipe, 0o600)
        handle = os.open(pipe, os.O_RDWR | os.O_CLOEXEC)  # both ends: a reader alone would see the end of each asker
    except OSError:
        return
    target = os.path.join(run_dir, "flight", "rank_%s" % rank)
    threading.Thread(target=_dump_when_asked, args=(handle, target), name="windlass-flight", daemon=True).start()


def _dump_when_asked(handle: int, target: str) -> None:
    """torch keeps two records, NCCL's and that of all other backends, and each function knows one of them."""
    while os.read(handle, 64):
        c10d = sys.modules.get("torch._C._distributed_c10d")
        nccl, other = getattr(c10d, "_dump_nccl_trace", None), getattr(c10d, "_dump_fr_trace", None)
        for path, dump in ((target, nccl or other), (target + OTHER_SUFFIX, other if nccl else None)):
            if dump is not None:
                _write_dump(path, dump)


def _write_dump(target: str, dump: Callable[[], bytes]) -> None:
    partial = "%s.%d" % (target, os.getpid())
    try:
        data = dump()
        os.makedirs(os.path.dirname(target), exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(partial, flags, 0o600), "wb") as file:
            file.write(data)
        os.rename(partial, target)
    except (OSError, RuntimeError):
        return
