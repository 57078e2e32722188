"""The progress line of a benchmark: rewritten in place on a terminal, one line a minute in a log."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TextIO

from windlass.bench.messages import MessageReader
from windlass.run.output import OutputView

_STEP = re.compile(r"\A(?:warm-up|step) \d+/\d+\Z")
_LOG_EVERY_S = 60.0


class Progress:
    """Shows how far a benchmark is. `what` stands before every text."""

    def __init__(self, out: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._live = out.isatty()
        self._shown = False
        self._last = clock()
        self.what = ""

    def show(self, text: str) -> None:
        line = f"{self.what}: {text}" if self.what else text
        if self._live:
            self._write(f"\r\x1b[2K{line[:118]}")
            self._shown = True
        elif self._clock() - self._last >= _LOG_EVERY_S:
            self._last = self._clock()
            self._write(line + "\n")

    def clear(self) -> None:
        if self._shown:
            self._write("\r\x1b[2K")
            self._shown = False

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except (BrokenPipeError, ValueError):
            pass  # nobody looks any more; the benchmark goes on


class BenchView(OutputView):
    """What a person sees of the ranks of a benchmark: progress of the first one. All of it is in the run folder."""

    def __init__(self, err: TextIO, progress: Progress) -> None:
        super().__init__(frozenset({0}), err, err)
        self._progress = progress
        self._reader = MessageReader()
        self._held: list[str] = []

    def shows(self, rank: int | None) -> bool:
        return False  # so that the last lines of a rank that failed are repeated

    def line(self, rank: int, text: str) -> None:
        if rank != 0:
            return
        message = self._reader.read_line(text)
        if message is not None and message["kind"] == "progress":
            of = f" ({message['done'] + 1}/{message['total']})" if message.get("total") else ""
            self._progress.show(f"{message['text']}{of}")
        elif _STEP.match(text):
            self._progress.show(text)

    def note(self, text: str) -> None:
        """Words about an interrupt are shown at once. Those about the end wait: the ranks may have told it better."""
        if text.startswith("windlass: SIG"):
            self._progress.clear()
            super().note(text)
        else:
            self._held.append(text)

    def release(self) -> None:
        """Show what was held back."""
        self._progress.clear()
        for text in self._held:
            super().note(text)
        self._held.clear()
