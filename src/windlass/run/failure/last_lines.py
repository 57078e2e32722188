"""What the last lines of a rank say: its error, its traceback, and whether it only lost its peers.

When one rank fails the others fail too, within milliseconds, each with an error of its own: a secondary failure. They
may even end before the one that began it, which is still closing its connections.
"""

from __future__ import annotations

import re

LOST_PEERS = re.compile(
    r"connection (?:closed|reset) by peer|broken pipe|connection refused|socket closed|remote process exited|"
    r"ncclRemoteError|ncclSystemError|NCCL.{0,100}(?:communicator was aborted|watchdog (?:thread|timeout|caught))|"
    r"process group watchdog|"
    r"watchdog caught collective|Some NCCL operations have failed or timed out|"
    r"store.{0,100}(?:closed|timeout|wait)|DistNetworkError(?!.{0,200}(?:EADDRINUSE|errno: 98))|DistStoreError|"
    r"no response from peer|lost another rank|peer (?:is )?(?:gone|dead|lost)|heartbeat monitor timed out|"
    r"gloo.{0,100}(?:timed out|timeout)|Timed out waiting|did not meet the other",
    re.IGNORECASE,
)
ERROR_LINE = re.compile(
    r"^[\w.]{0,300}?(?:Error|Exception|Interrupt|Exit|Warning|Iteration)(?::|$)|^\w{1,100}(?:\.\w{1,100}){1,20}: "
)
_INTERNAL = re.compile(r'^(?:\[rank\d+\]:?\s)?  File "[^"]*/(?:torch|windlass)/')
_FEW = 20
_AFTER = 3


def complains_of_peers(lines: tuple[str, ...]) -> bool:
    """Whether the error, or without one anything in these lines, is about peers that are gone."""
    error = error_line(lines)
    return bool(LOST_PEERS.search(error or "\n".join(lines)))


def excerpt(lines: tuple[str, ...]) -> tuple[str, ...]:
    """A few last lines, and a whole traceback where they end in one. Where the rank lost its peers, without the frames
    inside torch and windlass: they are the same each time, and the script's own are the news."""
    starts = [index for index, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    if starts and complains_of_peers(lines):
        return _without_internals(lines[starts[-1] :])
    return lines[min(max(len(lines) - _FEW, 0), starts[-1] if starts else len(lines)) :]


def _without_internals(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Without frames of libraries and the source lines below them."""
    found = []
    inside = False
    for line in lines:
        text = re.sub(r"^\[rank\d+\]:?\s", "", line)
        inside = bool(_INTERNAL.match(line)) or (inside and text.startswith("    "))
        if not inside:
            found.append(line)
    return tuple(found)


def error_line(lines: tuple[str, ...]) -> str:
    """The last line that names an error: `ValueError: …`, `torch.OutOfMemoryError: …`; empty where there is none."""
    for line in reversed(lines):
        text = re.sub(r"^\[rank\d+\]:?\s*", "", line)
        if text and not text[0].isspace() and ERROR_LINE.match(text):
            return text.strip()
    return ""


def traceback_of(lines: tuple[str, ...]) -> tuple[str, ...]:
    """The last Python traceback in these lines, with its error line."""
    starts = [index for index, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    if not starts:
        return ()
    rest = lines[starts[-1] :]
    for index, line in enumerate(rest[1:], start=1):
        text = re.sub(r"^\[rank\d+\]:?\s?", "", line)
        if text and not text[0].isspace():
            return rest[: index + 1]
    return rest


def died_of(lines: tuple[str, ...]) -> str:
    """The error of a traceback with which these lines end: whatever then ended the process, this is why. Little may
    follow, as the last word of a library or of a shell."""
    trace = traceback_of(lines)
    near = bool(trace) and trace[-1] in lines[-_AFTER - 1 :]
    return error_line(trace) if near else ""


def lost_peer_line(lines: tuple[str, ...]) -> str:
    """The first line that complains of lost peers, without the marks of torch's log; empty where there is none."""
    found = next((line for line in lines if LOST_PEERS.search(line)), "")
    return re.sub(r"^(?:\[[^\]]*\]:?\s*)+", "", found)[:200]
