"""torch's flight recorder (the ring of last collectives) and the stacks on request: evidence for a hang.

Only variables and one signal handler; both leave alone what the user has set.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, MutableMapping
from pathlib import Path

from windlass.node.sys.atomic import replace_file

PIPE_SUFFIX = ".flight"
OTHER_SUFFIX = "-other"
"""Of the record of other backends where the build of torch has NCCL's too."""
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


def dump_on_request(heartbeat: str | None, run_dir: str | None, rank: int) -> None:
    """Whoever watches this node may ask for the record while the rank hangs: a byte in the pipe beside the heartbeat
    makes a thread write `flight/rank_N`. torch itself dumps only at its own time-out, and with NCCL alone."""
    if not heartbeat or not run_dir:
        return
    pipe = heartbeat + PIPE_SUFFIX
    try:
        if not os.path.exists(pipe):  # noqa: PTH110
            os.mkfifo(pipe, 0o600)
        handle = os.open(pipe, os.O_RDWR | os.O_CLOEXEC)  # both ends: a reader alone would see the end of each asker
    except OSError:
        return  # evidence is a help, not a condition
    target = Path(run_dir) / "flight" / f"rank_{rank}"
    threading.Thread(target=_dump_when_asked, args=(handle, target), name="windlass-flight", daemon=True).start()


def _dump_when_asked(handle: int, target: Path) -> None:
    """torch keeps two records, NCCL's and that of all other backends, and each function knows one of them."""
    import torch._C._distributed_c10d as c10d

    nccl, other = getattr(c10d, "_dump_nccl_trace", None), getattr(c10d, "_dump_fr_trace", None)
    dumps = [(target, nccl or other)]
    if nccl is not None and other is not None:
        dumps.append((target.with_name(target.name + OTHER_SUFFIX), other))
    while os.read(handle, 64):
        for path, dump in dumps:
            if dump is not None:
                _write_dump(path, dump)


def _write_dump(target: Path, dump: Callable[[], bytes]) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, dump())
    except (OSError, RuntimeError):
        return  # evidence is a help, not a condition


def stacks_on_request() -> None:
    """SIGUSR1 prints the Python stacks of all threads to stderr, where nobody else uses that signal."""
    free = (signal.SIG_DFL, signal.SIG_IGN)  # ignored: by the rank script, under launchers that send it to everybody
    if hasattr(signal, "SIGUSR1") and signal.getsignal(signal.SIGUSR1) in free and sys.stderr is not None:
        try:
            faulthandler.register(signal.SIGUSR1, all_threads=True)
        except (ValueError, OSError, RuntimeError):
            return  # stderr is not a real file (a notebook): no stacks there
