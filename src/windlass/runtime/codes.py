"""The contract between a rank and whoever watches it: exit codes and the variables that cross the border.

One place, because the supervisor reads what a rank writes: a number that drifts between two files is a run that is
reported as failed when it only asked to be resumed.
"""

from __future__ import annotations

# Not below 64 (scripts use those), not 64-78 (sysexits), not 124-127 (timeout, shell), not above 128 (signals).
# HTCondor's self-checkpointing jobs use the same number for the same meaning.
RESUME_ME = 85
"""Exit code of a rank that saved its state and left before the work was done: start it again and it goes on."""

# Written by the launcher for its ranks; all optional. `windlass.base.settings` holds the variables that users set.
MARK = "WINDLASS_RANK"
"""Set (to the global rank) by the rank script: the torch variables beside it are the truth, whatever else is set."""
RUN_ID = "WINDLASS_RUN_ID"
"""Name of the run. A restart of the same run may take over its snapshot folder without waiting for the lease."""
ATTEMPT = "WINDLASS_ATTEMPT"
"""Which start of this run it is: 0, 1, 2, ..."""
RUN_DIR = "WINDLASS_RUN_DIR"
"""Folder of the run: flight-recorder dumps go below it."""
DEADLINE = "WINDLASS_DEADLINE"
"""Seconds since 1970 at which the allocation ends."""
CPUS = "WINDLASS_CPUS"
"""CPUs this rank was bound to, as `0-7,64-71`: restored where importing torch changed the mask."""
HEARTBEAT = "WINDLASS_HEARTBEAT"
"""File in which the rank writes `<step> <unix time>` about once a second, for the watcher of this node."""


class ResumeLater(SystemExit):
    """Raised by `Snapshot.step` after a stop request was honoured; ends the process with `RESUME_ME`.

    A `SystemExit`, so that `finally` blocks run and `except Exception` does not swallow it.
    """

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(RESUME_ME)
        self.step = step
        self.reason = reason
