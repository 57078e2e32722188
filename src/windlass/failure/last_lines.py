"""Whose fault it was, by what the ranks said last.

When one rank fails the others fail too, within milliseconds, each with an error of its own that is only an echo: it
lost its peer. They may even end before the one that began it, which is still closing its connections.
"""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path

import msgspec

from windlass.failure.ends import read_seats
from windlass.launchers.base import Launcher, parse_label
from windlass.model.plan import Plan
from windlass.model.record import RankFailure
from windlass.run.folder import RunFolder
from windlass.run.output import decode, last_lines, rank_log

ECHO = re.compile(
    r"connection (?:closed|reset) by peer|broken pipe|connection refused|socket closed|remote process exited|"
    r"ncclRemoteError|ncclSystemError|NCCL.*(?:communicator was aborted|watchdog)|process group watchdog|"
    r"watchdog caught collective|"
    r"Some NCCL operations have failed or timed out|store.*(?:closed|timeout|wait)|DistNetworkError|DistStoreError|"
    r"no response from peer|lost another rank|peer (?:is )?(?:gone|dead|lost)|heartbeat monitor timed out|"
    r"gloo.*(?:timed out|timeout)|Timed out waiting|did not meet the other",
    re.IGNORECASE,
)
_ERROR_LINE = re.compile(
    r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit|Warning|Iteration)\b(?::.*)?$|^\w+(?:\.\w+)+: "
)
_MOST_NODES = 64
_TAIL_BYTES = 1 << 18
_LINES = 60
_FEW = 20
_AFTER = 3


def blame(plan: Plan, folder: RunFolder, launcher: Launcher, found: RankFailure) -> RankFailure:
    """The failure of the rank that began it, with its last words: `found`, or, where that one only complains of its
    peers, the first rank whose last words are a traceback of another kind."""
    if found.rank is None:
        return found
    lines = last_lines(rank_log(folder.path, plan, launcher, found.rank), launcher, found.rank, _LINES)
    if found.signal is None and complains_of_peers(lines):
        other = _first_with_error(plan, folder, launcher)
        if other is not None:
            rank, lines = other
            hosts = {seat.rank: seat.host for seat in read_seats(folder.part("where"))}
            found = msgspec.structs.replace(found, rank=rank, host=hosts.get(rank), code=1)
    assert found.rank is not None
    log = rank_log(folder.path, plan, launcher, found.rank)
    return msgspec.structs.replace(found, log=str(log.relative_to(folder.path)), last_lines=last_words(lines))


def complains_of_peers(lines: tuple[str, ...]) -> bool:
    """Whether the error, or without one anything in these lines, is about peers that are gone."""
    error = error_line(lines)
    return bool(ECHO.search(error or "\n".join(lines)))


def last_words(lines: tuple[str, ...]) -> tuple[str, ...]:
    """A few last lines, and a whole traceback where they end in one."""
    starts = [at for at, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    return lines[min(max(len(lines) - _FEW, 0), starts[-1] if starts else len(lines)) :]


def _first_with_error(plan: Plan, folder: RunFolder, launcher: Launcher) -> tuple[int, tuple[str, ...]] | None:
    """The lowest rank that ended with a traceback which is no echo. Looks at the ends of some nodes' files."""
    for node in range(min(plan.nodes, _MOST_NODES)):
        log = rank_log(folder.path, plan, launcher, node * plan.ranks_per_node)
        for rank, lines in sorted(_tails(log, launcher).items()):
            error = died_of(lines)
            if error and not ECHO.search(error):
                return rank, lines
    return None


def _tails(path: Path, launcher: Launcher) -> dict[int, tuple[str, ...]]:
    """The last lines of each rank in a node's file; empty where it cannot be read."""
    parse = launcher.parse_line if launcher.output == "files" else parse_label
    found: dict[int, deque[str]] = {}
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            for line in file:
                rank, text = parse(decode(line.rstrip(b"\n")))
                if rank is not None:
                    found.setdefault(rank, deque(maxlen=_LINES)).append(text)
    except OSError:
        return {}
    return {rank: tuple(lines) for rank, lines in found.items()}


def error_line(lines: tuple[str, ...]) -> str:
    """The last line that names an error: `ValueError: …`, `torch.OutOfMemoryError: …`; empty where there is none."""
    for line in reversed(lines):
        text = re.sub(r"^\[rank\d+\]:?\s*", "", line)
        if text and not text[0].isspace() and _ERROR_LINE.match(text):
            return text.strip()
    return ""


def traceback_of(lines: tuple[str, ...]) -> tuple[str, ...]:
    """The last Python traceback in these lines, with its error line."""
    starts = [at for at, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    if not starts:
        return ()
    rest = lines[starts[-1] :]
    for at, line in enumerate(rest[1:], start=1):
        text = re.sub(r"^\[rank\d+\]:?\s?", "", line)
        if text and not text[0].isspace():
            return rest[: at + 1]
    return rest


def died_of(lines: tuple[str, ...]) -> str:
    """The error of a traceback with which these lines end: whatever then ended the process, this is why. Little may
    follow, as the last word of a library or of a shell."""
    trace = traceback_of(lines)
    near = bool(trace) and trace[-1] in lines[-_AFTER - 1 :]
    return error_line(trace) if near else ""


def echo_line(lines: tuple[str, ...]) -> str:
    """The first line that complains of lost peers, without the marks of torch's log; empty where there is none."""
    found = next((line for line in lines if ECHO.search(line)), "")
    return re.sub(r"^(?:\[[^\]]*\]:?\s*)+", "", found)[:200]
