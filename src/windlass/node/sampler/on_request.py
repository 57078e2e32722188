"""Write a rank's Python stacks and torch's flight record of collectives when the node's agent asks.

The start-up hook and `windlass.init` both use this module. It needs only the standard library, because on a node it is
in the same directory as the hook. It does not change the user's settings. Evidence is optional, so no function raises.
"""

from __future__ import annotations

import faulthandler
import os
import sys

TYPE_CHECKING = False  # and imports inside functions, because every Python of a rank reads this at its start
if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

PIPE_SUFFIX, STACK_SUFFIX = ".flight", ".stack"
"""Suffixes of files next to a rank's heartbeat: the pipe to request the flight record, and the stacks."""
STACK_SIGNAL = 44
"""A real-time signal (SIGRTMIN+10 with glibc). Frameworks use SIGUSR1 to save or requeue the job."""
OTHER_SUFFIX = "-other"
"""Suffix of the record of other backends, if the build of torch also has NCCL's."""
_ENTRIES = "2000"  # large, because matching by sequence number is unreliable after the ring has wrapped


def stacks_on_request(heartbeat: str | None) -> None:
    """Make `STACK_SIGNAL` write the stacks of all threads to the file next to the heartbeat, even in C code."""
    if heartbeat:
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            faulthandler.register(STACK_SIGNAL, file=os.open(heartbeat + STACK_SUFFIX, flags, 0o600))
        except (ValueError, OSError, RuntimeError):
            return


def stacks_by_hand() -> None:
    """Make SIGUSR1 print the Python stacks of all threads to stderr, if the signal has no other handler."""
    import signal

    free = (signal.SIG_DFL, signal.SIG_IGN)  # ignored: by the rank script, if the launcher sends it to all processes
    if hasattr(signal, "SIGUSR1") and signal.getsignal(signal.SIGUSR1) in free and sys.stderr is not None:
        try:
            faulthandler.register(signal.SIGUSR1, all_threads=True)
        except (ValueError, OSError, RuntimeError):
            return  # stderr is not a real file (a notebook): no stacks there


def recorder_variables(torch_version: str, dump_dir: str | None) -> dict[str, str]:
    """Return the variables that enable the flight recorder. torch 2.9 renamed them and warns about the old names."""
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
    """Set the variables that are not set yet. They must be set before the first process group."""
    dump_dir = os.path.join(run_dir, "flight") if run_dir else None
    if dump_dir is not None:
        try:
            os.makedirs(dump_dir, exist_ok=True)
        except OSError:
            dump_dir = None  # torch then writes to its default path
    for name, value in recorder_variables(torch_version, dump_dir).items():
        environ.setdefault(name, value)


def dump_on_request(heartbeat: str | None, run_dir: str | None, rank: int | str) -> None:
    """Let the agent of this node request the record while the rank hangs.

    A byte in the pipe next to the heartbeat makes a thread write `flight/rank_N`. torch itself dumps only at its own
    time-out, and only with NCCL.
    """
    import threading

    if not heartbeat or not run_dir:
        return
    pipe = heartbeat + PIPE_SUFFIX
    try:
        if not os.path.exists(pipe):
            os.mkfifo(pipe, 0o600)
        handle = os.open(pipe, os.O_RDWR | os.O_CLOEXEC)  # both ends: a pure reader gets EOF after each request
    except OSError:
        return
    target = os.path.join(run_dir, "flight", "rank_%s" % rank)
    threading.Thread(target=_dump_when_asked, args=(handle, target), name="windlass-flight", daemon=True).start()


def _dump_when_asked(handle: int, target: str) -> None:
    """Write both records of torch: NCCL's and that of all other backends. Each function returns one of them."""
    while os.read(handle, 64):
        c10d = sys.modules.get("torch._C._distributed_c10d")
        nccl, other = getattr(c10d, "_dump_nccl_trace", None), getattr(c10d, "_dump_fr_trace", None)
        for path, dump in ((target, nccl or other), (target + OTHER_SUFFIX, other if nccl else None)):
            if dump is not None:
                _write_dump(path, dump)


def _without_stacks(dump: Callable[..., bytes]) -> bytes:
    """Return the record without stacks. torch needs 10 s and more to find the source lines of C++ frames."""
    try:
        return dump(includeStackTraces=False)
    except TypeError:  # a torch before 2.4
        return dump()


def _write_dump(target: str, dump: Callable[..., bytes]) -> None:
    partial = "%s.%d" % (target, os.getpid())
    try:
        data = _without_stacks(dump)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(partial, flags, 0o600), "wb") as file:
            file.write(data)
        os.rename(partial, target)
    except (OSError, RuntimeError):
        return
