"""torch's flight recorder (the ring of last collectives) and the stacks on request: evidence for a hang.

Only variables and one signal handler; both leave alone what the user has set.
"""

from __future__ import annotations

import faulthandler
import re
import signal
import sys
from collections.abc import MutableMapping
from pathlib import Path

_ENTRIES = "2000"  # matching by sequence number is unreliable once the ring has wrapped: keep it large


def recorder_variables(torch_version: str, dump_dir: Path | None) -> dict[str, str]:
    """The variables that switch the recorder on. torch 2.9 renamed them; the old names warn there."""
    match = re.match(r"(\d+)\.(\d+)", torch_version)
    renamed = match is None or (int(match[1]), int(match[2])) >= (2, 9)
    size, file = (
        ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE")
        if renamed
        else ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    )
    variables = {size: _ENTRIES, "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    if dump_dir is not None:
        variables[file] = str(dump_dir / "rank_")  # torch appends the rank
    return variables


def switch_on(environ: MutableMapping[str, str], torch_version: str, run_dir: str | None) -> None:
    """Set the variables that nobody has set. They must be there before the first process group."""
    dump_dir = Path(run_dir) / "flight" if run_dir else None
    if dump_dir is not None:
        try:
            dump_dir.mkdir(parents=True, exist_ok=True)
        except OSError:
            dump_dir = None  # evidence is a help, not a condition: torch then writes to its default place
    for name, value in recorder_variables(torch_version, dump_dir).items():
        environ.setdefault(name, value)


def stacks_on_request() -> None:
    """SIGUSR1 prints the Python stacks of all threads to stderr, where nobody else uses that signal."""
    if hasattr(signal, "SIGUSR1") and signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL and sys.stderr is not None:
        try:
            faulthandler.register(signal.SIGUSR1, all_threads=True)
        except (ValueError, OSError, RuntimeError):
            return  # stderr is not a real file (a notebook): no stacks there
