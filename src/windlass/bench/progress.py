"""The terminal output of a running benchmark: the progress of its first rank."""

from __future__ import annotations

import re
from typing import TextIO

from windlass.bench.messages import MessageReader
from windlass.run.output import OutputView
from windlass.run.progress import Progress

_STEP = re.compile(r"\A(?:warm-up|step) \d+/\d+\Z")


class BenchView(OutputView):
    """Show the progress of the first rank. The complete output is in the run directory."""

    def __init__(self, err: TextIO, progress: Progress) -> None:
        super().__init__(frozenset({0}), err, err)
        self._progress = progress
        self._reader = MessageReader()
        self._held: list[str] = []

    def shows(self, rank: int | None) -> bool:
        return False  # so that the last lines of a failed rank are repeated

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
        """Show messages about an interrupt at once.

        Hold messages about the end, because ranks may report it in more detail.
        """
        if text.startswith("windlass: SIG"):
            self._progress.clear()
            super().note(text)
        else:
            self._held.append(text)

    def release(self) -> None:
        """Show the held messages."""
        self._progress.clear()
        for text in self._held:
            super().note(text)
        self._held.clear()
