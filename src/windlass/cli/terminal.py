"""Draw frames on a terminal repeatedly, and restore the terminal afterwards."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from typing import TextIO

_ENTER = "\x1b[?1049h\x1b[?25l"
_LEAVE = "\x1b[?25h\x1b[?1049l"
_LOOK_S = 0.2


def size(stream: TextIO) -> tuple[int, int]:
    """Columns and lines, or 80 and 24 if unknown."""
    with contextlib.suppress(OSError, ValueError):
        columns, lines = os.get_terminal_size(stream.fileno())
        if columns and lines:
            return columns, lines
    return 80, 24


def gone(stream: TextIO) -> int:
    """Discard further output after its reader has ended (`| head`). Returns the exit code for this case."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return 128 + signal.SIGPIPE


class Screen:
    """Draws whole frames on a terminal. `leave` restores the terminal and may be called repeatedly."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._entered = False

    def draw(self, text: str) -> None:
        if not self._entered:
            self._entered = True
            self._write(_ENTER)
        lines = text.rstrip("\n").split("\n")
        self._write("\x1b[H" + "\x1b[K\r\n".join(lines) + "\x1b[K\x1b[J")

    def leave(self) -> None:
        if self._entered:
            self._entered = False
            self._write(_LEAVE)

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal may be closed
            self._stream.write(text)
            self._stream.flush()


@contextlib.contextmanager
def keys() -> Iterator[None]:
    """Read single keys at once without echo. Ctrl-C keeps its meaning."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def wait(seconds: float, stream: TextIO) -> bool:
    """Wait for this time, or until the terminal changes its size. Returns True if the user pressed q."""
    end = time.monotonic() + seconds
    before = size(stream)
    while (left := end - time.monotonic()) > 0 and size(stream) == before:
        if not sys.stdin.isatty():
            time.sleep(min(left, _LOOK_S))
        elif select.select([sys.stdin], [], [], min(left, _LOOK_S))[0]:
            pressed = os.read(sys.stdin.fileno(), 64)
            if not pressed or b"q" in pressed.lower():
                return True
    return False
