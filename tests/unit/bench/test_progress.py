"""The progress line: in place on a terminal, once a minute in a log."""

from __future__ import annotations

import io

from windlass.bench.runner import BenchView
from windlass.node.sys.messages import message_lines
from windlass.run.progress import Progress


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _told(text: str) -> str:
    (line,) = message_lines(0, "a", {"kind": "progress", "text": text, "done": 2, "total": 14})
    return line


def test_on_a_terminal_one_line_is_rewritten() -> None:
    out = _Terminal()
    progress = Progress(out)
    progress.what = "collectives"
    view = BenchView(out, progress)
    view.line(0, _told("all_reduce 4 MiB"))
    view.line(1, _told("of another rank"))
    view.line(0, "some library talks")
    view.line(0, "step 3/10")
    assert out.getvalue() == "\r\x1b[2Kcollectives: all_reduce 4 MiB (3/14)\r\x1b[2Kcollectives: step 3/10"
    progress.clear()
    assert out.getvalue().endswith("\r\x1b[2K")


def test_in_a_log_there_is_one_line_a_minute() -> None:
    now = [0.0]
    out = io.StringIO()
    progress = Progress(out, clock=lambda: now[0])
    for second in range(0, 200, 5):
        now[0] = second
        progress.show(f"at {second}")
    assert out.getvalue().splitlines() == ["at 60", "at 120", "at 180"]


def test_words_about_the_end_wait_until_the_ranks_were_heard() -> None:
    out = io.StringIO()
    view = BenchView(out, Progress(out))
    view.note("windlass: SIGINT, stopping all ranks (again to kill them)")
    view.note("windlass: rank 0 on nid0001 exited with code 3")
    assert out.getvalue() == "windlass: SIGINT, stopping all ranks (again to kill them)\n"
    view.release()
    assert "exited with code 3" in out.getvalue()
