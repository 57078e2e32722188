"""The run's ledger of snapshots, and the heartbeat of a rank.

The ledger has one line in the run folder for each snapshot that was loaded or saved. It has one line for ranks that
left, on request or because the time was up, and for the moments of a start. The process that restarts a run reads from
it where the snapshots are and whether there was progress. A rank that windlass did not start has no run folder and
writes no ledger.

The heartbeat is for the watcher of this node: the step and the time, in one small local file, once a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from windlass.node.sys.atomic import open_append
from windlass.runtime import codes

FILE = "snapshots.tsv"
What = Literal["loaded", "saved", "left", "time-up", "imported", "met", "stepped"]
"""The last three are moments of a start without a snapshot, for the costs of a recovery."""


def note(environ: Mapping[str, str], what: What, step: int = 0, folder: Path = Path("/")) -> None:
    """Append `time, what, step, folder`. Never raises, because the snapshot itself is more important."""
    run_dir = environ.get(codes.RUN_DIR)
    if not run_dir:
        return
    line = f"{time.time():.3f}\t{what}\t{step}\t{folder.absolute()}\n"
    try:
        with open_append(f"{run_dir}/{FILE}") as file:  # one write at the end, so that lines stay whole
            file.write(line.encode("utf-8", "surrogateescape"))
    except OSError:
        return


PERIOD_S = 1.0


class Heartbeat:
    """Writes `<step> <unix time>` into the file that the launcher named. Does nothing if it named no file."""

    def __init__(self, path: str | None) -> None:
        self.next_s = float("inf")
        self._handle: int | None = None
        if path:
            try:
                self._handle = os.open(
                    path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_TRUNC | os.O_CLOEXEC, 0o600
                )
                self.next_s = 0.0
            except OSError:
                return  # the watcher then uses output and exit codes

    def beat(self, step: int, now_s: float) -> None:
        """Write the heartbeat and set `next_s` to the monotonic time of the next one.

        The caller compares, to save the call.
        """
        self.next_s = now_s + PERIOD_S
        if self._handle is not None:
            try:
                # Fixed width, so that a reader never sees the end of a longer earlier line.
                os.pwrite(self._handle, f"{step:>15d} {time.time():>18.3f}\n".encode(), 0)
            except OSError:
                self.close()

    def close(self) -> None:
        """Stop the heartbeat."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
            self.next_s = float("inf")
