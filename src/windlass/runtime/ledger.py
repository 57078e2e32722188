"""The run's ledger of snapshots: one line in the run folder for each one that was loaded or saved, and one for ranks
that left: on request, or because the time was up.

Whoever starts a run again learns from it where the snapshots are and whether there was progress. A rank that was not
started by windlass has no run folder, and writes none.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from windlass.node.sys.atomic import open_append
from windlass.runtime import codes

FILE = "snapshots.tsv"
What = Literal["loaded", "saved", "left", "time-up"]


def note(environ: Mapping[str, str], what: What, step: int, folder: Path) -> None:
    """Append `time, what, step, folder`. Never raises: the snapshot itself is what counts."""
    run_dir = environ.get(codes.RUN_DIR)
    if not run_dir:
        return
    line = f"{time.time():.3f}\t{what}\t{step}\t{folder.absolute()}\n"
    try:
        with open_append(f"{run_dir}/{FILE}") as file:  # one write at the end: lines stay whole
            file.write(line.encode("utf-8", "surrogateescape"))
    except OSError:
        return
