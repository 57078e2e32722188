"""Progress bars of ranks whose launcher hands on whole lines alone: drawn from a copy of what they write."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from windlass.backends.launchers.base import decode
from windlass.node.sys.reading import open_plain
from windlass.run.output import OutputView

_TAIL_BYTES = 4096


class LiveBars:
    """Draws the unfinished last line of each of these ranks. Lines that have ended come another way."""

    def __init__(self, folder: Path, ranks: tuple[int, ...], view: OutputView) -> None:
        self._folder = folder
        self._view = view
        self._sizes = dict.fromkeys(ranks, 0)

    def poll(self) -> None:
        """Draw what has grown. Files that are not there, or cannot be read, have no bar."""
        for rank, seen in self._sizes.items():
            with contextlib.suppress(OSError), open_plain(self._folder / str(rank)) as copy:
                size = os.fstat(copy.fileno()).st_size
                if size == seen:
                    continue
                self._sizes[rank] = size
                copy.seek(max(0, size - _TAIL_BYTES))
                self._view.bar(rank, decode(copy.read().rpartition(b"\n")[2]))

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
