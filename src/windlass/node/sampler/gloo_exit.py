"""Let gloo's threads finish before the interpreter ends. The start-up hook and `windlass.init` call it at exit.

A thread of gloo (torch 2.13) frees its last collective after the program has the result, and needs the interpreter's
lock for that. If the interpreter is ending by then, Python ends the thread inside a C++ destructor, and the process
aborts: "terminate called without an active exception". On a busy machine this happens to one rank in five.
"""

import os
import time

_DEADLINE_S = 1.0
_EVERY_S = 0.002
_NO_TIMEOUT = b"0x0"


def settle(deadline_s: float = _DEADLINE_S) -> None:
    """Wait until all threads of gloo wait for work. They do so without a timeout, and for the lock with one."""
    end = time.monotonic() + deadline_s
    while _busy() and time.monotonic() < end:
        time.sleep(_EVERY_S)  # other threads can take the lock meanwhile


def _busy() -> bool:
    try:
        return any(_is_busy("/proc/self/task/%s" % task) for task in os.listdir("/proc/self/task"))
    except OSError:  # no /proc, or it does not show system calls
        return True


def _is_busy(folder: str) -> bool:
    if _read(folder + "/comm").strip() != b"pt_gloo_runloop":
        return False
    call = _read(folder + "/syscall").split()  # number, address, operation, value, timeout: a futex
    return len(call) < 5 or call[4] != _NO_TIMEOUT


def _read(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 256)
    finally:
        os.close(file)
