"""The contract between a rank and the supervisor: exit codes and shared variables.

They are in one place, because the supervisor reads what a rank writes. If a number differed between two files, a run
that only asked to be resumed would be reported as failed.
"""

from __future__ import annotations

# Not below 64 (scripts use those), not 64-78 (sysexits), not 124-127 (timeout, shell), not above 128 (signals).
# HTCondor's self-checkpointing jobs use the same number for the same meaning.
RESUME_ME = 85
"""Exit code of a rank that saved its state and left before the work was done. After a restart it continues."""

# Written by the launcher for its ranks. All are optional. `windlass.base.settings` has the variables that users set.
MARK = "WINDLASS_RANK"
"""Set (to the global rank) by the rank script. The torch variables are then correct, whatever other variables are
set."""
RUN_ID = "WINDLASS_RUN_ID"
"""Name of the run. A restart of the same run may take over its snapshot folder without waiting for the lease."""
ATTEMPT = "WINDLASS_ATTEMPT"
"""The number of this start of the run: 0, 1, 2, ..."""
RUN_DIR = "WINDLASS_RUN_DIR"
"""Folder of the run. Flight-recorder dumps are written below it."""
DEADLINE = "WINDLASS_DEADLINE"
"""Seconds since 1970 at which the allocation ends."""
CPUS = "WINDLASS_CPUS"
"""CPUs this rank was bound to, as `0-7,64-71`. They are restored if the import of torch changed the mask."""
PARTNERS = "WINDLASS_PARTNERS"
"""Set if the run has spare nodes: each node keeps the newest snapshot of another node in its memory."""
HEARTBEAT = "WINDLASS_HEARTBEAT"
"""File in which the rank writes `<step> <unix time>` about once a second, for the watcher of this node."""


class ResumeLater(SystemExit):
    """Raised by `Snapshot.step` after it has handled a stop request. Ends the process with `RESUME_ME`.

    It is a `SystemExit`, so that `finally` blocks run and `except Exception` does not catch it.
    """

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(RESUME_ME)
        self.step = step
        self.reason = reason
