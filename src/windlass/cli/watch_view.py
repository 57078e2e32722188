"""The view of `windlass run --watch` on a terminal: the screen of the job, and the last lines of the chosen ranks."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping

from windlass.base.notation.style import for_terminal, in_colour
from windlass.cli import terminal
from windlass.diagnose.watch.findings import find
from windlass.diagnose.watch.job import Job
from windlass.diagnose.watch.screen import screen_text
from windlass.model.plan import Plan
from windlass.run.output import OutputView, ViewMaker, show_ranks

_TAIL = 4


class WatchView(OutputView):
    """Draws a screen instead of printing lines. Messages of windlass are printed when the terminal is restored."""

    def __init__(self, plan: Plan, show: str, environ: Mapping[str, str]) -> None:
        width = len(str(plan.world_size - 1))
        super().__init__(show_ranks(show, plan.world_size), sys.stdout, sys.stderr, width=width, environ=environ)
        self._screen = terminal.Screen(sys.stdout)
        self._colour = in_colour(sys.stdout.isatty(), environ)
        self._tail: deque[str] = deque(maxlen=_TAIL)
        self._notes: list[str] = []
        self._drawing = False

    def line(self, rank: int, text: str) -> None:
        if not self._drawing:
            super().line(rank, text)
        if self.shows(rank):
            self._tail.append(f"[{rank}] {text}")

    def bar(self, rank: int, text: str) -> None:
        if not self._drawing:
            super().bar(rank, text)

    def note(self, text: str) -> None:
        if self._drawing:
            self._notes.append(text)
        else:
            super().note(text)

    def show_job(self, job: object) -> bool:
        assert isinstance(job, Job)
        if job.ended:
            self.close()
            return False
        self._drawing = True
        width, height = terminal.size(sys.stdout)
        below = [*self._notes[-1:], *self._tail]
        text = screen_text(job, find(job), width=width, height=max(8, height - len(below) - 1), colour=self._colour)
        lines = "\n".join(for_terminal(line.expandtabs())[:width] for line in below)
        self._screen.draw(for_terminal(text, coloured=True) + ("\n" + lines if below else ""))
        return True

    def close(self) -> None:
        """Restore the terminal and print the stored messages."""
        if self._drawing:
            self._drawing = False
            self._screen.leave()
            notes, self._notes = self._notes, []
            for text in notes:
                super().note(text)


def watch_view(show: str, environ: Mapping[str, str], made: list[WatchView]) -> ViewMaker:
    """Return a maker of drawing views. Each view is added to `made`, so that the caller can close it."""

    def make(plan: Plan) -> OutputView:
        made.append(WatchView(plan, show, environ))
        return made[-1]

    return make
