"""The progress line of a command: on a terminal, after a while, and gone at its end and when it is interrupted."""

from __future__ import annotations

import io

import pytest

from waiting import wait_until
from windlass.run.progress import Working


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_long_work_says_what_it_does_and_for_how_long_and_leaves_no_line() -> None:
    out = _Terminal()
    with Working(out, "reading", after_s=0.0) as line:
        wait_until(lambda: "windlass: reading … 0 s" in out.getvalue(), timeout_s=30, what="a line")
        line.tell("writing")
        wait_until(lambda: "windlass: writing … " in out.getvalue(), timeout_s=30, what="another line")
    assert out.getvalue().endswith("\r\x1b[2K")


def test_an_interrupt_leaves_no_line_either() -> None:
    out = _Terminal()
    with pytest.raises(KeyboardInterrupt), Working(out, "reading", after_s=0.0):
        wait_until(lambda: "reading" in out.getvalue(), timeout_s=30, what="a line")
        raise KeyboardInterrupt
    assert out.getvalue().endswith("\r\x1b[2K")


def test_short_work_and_work_in_a_pipe_say_nothing() -> None:
    out, pipe = _Terminal(), io.StringIO()
    with Working(out, "reading", after_s=60.0):
        pass
    with Working(pipe, "reading", after_s=0.0):
        pass
    assert out.getvalue() == pipe.getvalue() == ""


def test_nothing_that_others_wrote_moves_the_cursor() -> None:
    out = _Terminal()
    with Working(out, "reading \x1b[2J", after_s=0.0):
        wait_until(lambda: "reading" in out.getvalue(), timeout_s=30, what="a line")
    assert "\x1b[2J" not in out.getvalue()
