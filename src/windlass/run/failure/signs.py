"""The meaning of log lines and kernel messages: the table `data/signs.toml`, for supervision and for explain-log.

A sign names the kind of the cause and how certain it is. A log line that the script's own code can cause never makes a
node bad. Signs with `proves` can: only a hardware fault causes them.

Also reads the last lines of a rank: its error, its traceback, and whether it only lost its peers. When one rank fails,
the others fail within milliseconds, each with a different error: a secondary failure. They may even end before the rank
that failed first, which is still closing its connections.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from windlass.base.tables import packaged_table

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
    """Return whether the error is about lost peers. Without an error, checks all of these lines."""
    error = error_line(lines)
    return bool(LOST_PEERS.search(error or "\n".join(lines)))


def excerpt(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Return a few last lines, and a complete traceback if they end with one.

    If the rank lost its peers, frames inside torch and windlass are removed. They are always the same, and the frames
    of the script are the useful part.
    """
    starts = [index for index, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    if starts and complains_of_peers(lines):
        return _without_internals(lines[starts[-1] :])
    return lines[min(max(len(lines) - _FEW, 0), starts[-1] if starts else len(lines)) :]


def _without_internals(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Remove frames of libraries and the source lines below them."""
    found = []
    inside = False
    for line in lines:
        text = re.sub(r"^\[rank\d+\]:?\s", "", line)
        inside = bool(_INTERNAL.match(line)) or (inside and text.startswith("    "))
        if not inside:
            found.append(line)
    return tuple(found)


def error_line(lines: tuple[str, ...]) -> str:
    """Return the last line that names an error: `ValueError: …`, `torch.OutOfMemoryError: …`. Empty without one."""
    for line in reversed(lines):
        text = re.sub(r"^\[rank\d+\]:?\s*", "", line)
        if text and not text[0].isspace() and ERROR_LINE.match(text):
            return text.strip()
    return ""


def traceback_of(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Return the last Python traceback in these lines, with its error line."""
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
    """Return the error of a traceback at the end of these lines. It is the reason, whatever then ended the process.

    A few lines may follow the traceback, such as the last message of a library or of a shell.
    """
    trace = traceback_of(lines)
    near = bool(trace) and trace[-1] in lines[-_AFTER - 1 :]
    return error_line(trace) if near else ""


def lost_peer_line(lines: tuple[str, ...]) -> str:
    """Return the first line about lost peers, without the prefix of torch's log. Empty without one."""
    found = next((line for line in lines if LOST_PEERS.search(line)), "")
    return re.sub(r"^(?:\[[^\]]*\]:?\s*)+", "", found)[:200]


Origin = Literal["script", "node", "device", "file system", "network", "job", "unknown"]
"""The faulty component. `job`: what the job requested or got (memory, time, disk space)."""

Confidence = Literal["certain", "likely", "possible"]

SignClass = Literal["cause", "slow", "follows", "harmless"]
"""`slow`: causes no failure, but costs time. `follows`: the message of a rank that lost its peers."""


class Sign(NamedTuple):
    """One row. The comments of the table explain each field."""

    name: str
    pattern: re.Pattern[str]
    meaning: str
    remedy: str = ""
    kind: SignClass = "cause"
    vendor: Literal["NVIDIA", "AMD", "Intel", "any"] = "any"
    origin: Origin = "unknown"
    confidence: Confidence = "possible"
    tells: Literal["strong", "", "weak"] = ""
    ends: Literal["", "memory", "disk"] = ""
    proves: bool = False
    kernel: bool = False
    words: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return self.name if self.vendor == "any" else f"{self.name} ({self.vendor})"


@lru_cache(maxsize=1)
def all_signs() -> tuple[Sign, ...]:
    """Return every row of the table, in order. The table is read with the first log."""
    table = packaged_table(__file__, "signs.toml")
    return tuple(_sign(row, table["remedies"]) for row in table["sign"])


def _sign(row: dict[str, Any], remedies: dict[str, str]) -> Sign:
    renamed = {"class": "kind", "sure": "confidence"}
    fields = {renamed.get(key, key): value for key, value in row.items()}
    source = fields["pattern"]
    fields["pattern"] = re.compile(source, re.IGNORECASE) if source else LOST_PEERS
    fields["remedy"] = remedies.get(fields.get("remedy", ""), fields.get("remedy", ""))
    return Sign(**{**fields, "words": tuple(fields.get("words", ()))})


@lru_cache(maxsize=1)
def log_signs() -> tuple[Sign, ...]:
    """Return the rows about log lines."""
    return tuple(sign for sign in all_signs() if not sign.kernel)


def sign_of(line: str) -> Sign | None:
    """Return the cause that an error line of a rank or of a launcher names. None if no row matches."""
    found = next((sign for sign in log_signs() if sign.pattern.search(line)), None)
    return found if found is not None and found.kind == "cause" and found.tells != "weak" else None


def first_sign_line(lines: Iterable[str]) -> str:
    """Return the first of these lines that names a cause. Empty without one."""
    return next((line.strip() for line in lines if sign_of(line)), "")


def kernel_proof(lines: Iterable[str]) -> tuple[Sign, str] | None:
    """Return the first kernel message that is evidence about the node itself, with its sign."""
    for line in lines:
        sign = next((sign for sign in all_signs() if sign.kernel and sign.pattern.search(line)), None)
        if sign is not None and sign.proves:
            return sign, line
    return None
