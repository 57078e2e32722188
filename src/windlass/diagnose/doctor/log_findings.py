"""Findings about a log: how often and by which ranks each sign was printed, and which cause comes first."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from windlass.base.notation.counts import format_cpulist
from windlass.diagnose.doctor.comm_log import Transport, leads_nowhere, transport_text
from windlass.diagnose.doctor.log_lines import MAX_RANKS
from windlass.model.finding import Finding, Severity
from windlass.run.failure.signs import ERROR_LINE, Sign, SignClass

_NO_LETTERS = re.compile(r"[^a-z0-9]+")
_SEVERITIES: dict[SignClass, Severity] = {"cause": "error", "slow": "warning", "follows": "note", "harmless": "ok"}
MAX_TEXT = 300
SCRIPT = Sign(
    "error of the script",
    ERROR_LINE,
    "the script raised it",
    "read the traceback in the log; `windlass logs --rank N` prints the log of one rank",
    origin="script",
)


class Spot(NamedTuple):
    """Location of a line. `rank` is the rank in its label, `said` is how many lines that rank had printed so far."""

    file: int
    number: int
    rank: int | None
    said: int


class LogReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The document of `explain-log --json`."""

    version: int
    files: int
    lines: int
    ranks: int
    unmatched: int = 0
    """Lines that were not matched: the log has too many different errors, or too many short lines."""
    verdict: str
    findings: tuple[Finding, ...] = ()
    """Facts: `count` of lines, folded `ranks`, `where` the first one is, this `line`, and for causes its `origin`."""
    transport: Transport | None = None


class Seen:
    """Occurrences of one sign, or of one error of the script."""

    def __init__(self, sign: Sign, where: str, text: str, spot: Spot, time: tuple[int, ...]) -> None:
        self.sign, self.where, self.text, self.time = sign, where, text, time
        self.first = self.last = spot
        self.count = 0
        self.ranks = bytearray(MAX_RANKS)
        """One byte for each rank. A set of that many ranks is a hundred times as large."""
        self.hedged = self.went_on = False

    def add(self, rank: int | None, spot: Spot) -> None:
        self.count += 1
        self.last = spot
        if rank is not None:
            self.ranks[rank] = 1

    @property
    def fails(self) -> bool:
        """Return whether the line reports that something ended, unless its rank continued after it."""
        return self.sign.kind in {"cause", "follows"}

    def finding(self, severity: Severity | None = None) -> Finding:
        return _finding(self.sign, self.count, self.where, self.text, self.ranks, severity)


def _finding(
    sign: Sign, count: int, where: str, text: str, ranks: bytes | bytearray = b"", severity: Severity | None = None
) -> Finding:
    """Return a finding for lines with the same meaning. `where` is the file and line of the first of them."""
    facts = {"count": count, "ranks": _folded(ranks), "where": where, "line": text}
    if sign.kind == "cause":
        facts["origin"] = sign.origin
    return Finding(
        kind_of(sign.title),
        severity or _SEVERITIES[sign.kind],
        sign.meaning,
        sign.remedy,
        subject=ranks_text(ranks),
        facts=facts,
    )


def kind_of(name: str) -> str:
    """Return the kind of a rule's findings: `out of memory` is `out-of-memory`."""
    return _NO_LETTERS.sub("-", name.lower()).strip("-")


def ranks_text(ranks: bytes | bytearray) -> str:
    return f"rank{'s' if ranks.count(1) > 1 else ''} {_folded(ranks)}" if 1 in ranks else ""


def _folded(ranks: bytes | bytearray) -> str:
    """Return a readable list of ranks. A hostile log can name every second one of very many."""
    text = format_cpulist(match.start() for match in re.finditer(b"\1", ranks))
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT].rpartition(',')[0]},… ({ranks.count(1)} ranks)"


def of_transport(way: Transport) -> list[Finding]:
    """Return findings from all lines of the collective library together."""

    def one(kind: SignClass, name: str, meaning: str, remedy: str = "") -> Finding:
        return _finding(Sign(name, ERROR_LINE, meaning, remedy, kind), 1, "NCCL's lines", transport_text(way))

    astray = [item for item in (*way.interfaces, way.bootstrap) if item and leads_nowhere(item)]
    if way.is_tcp and astray:
        meaning = f"NCCL uses {astray[0]}, which does not reach other nodes: it hangs on more than one node"
        return [one("slow", "wrong interface", meaning, "set NCCL_SOCKET_IFNAME to the fabric's interface")]
    if way.is_tcp:
        why = "no network plugin was found" if way.plugin_missing else "no faster network was found"
        remedy = "on Slingshot or EFA load the plugin; on InfiniBand check for libibverbs. Applies only between nodes"
        return [one("slow", "TCP between nodes", f"NCCL uses sockets: {why}; ten times slower or more", remedy)]
    if way.plugin_missing and way.network == "IB":
        return [one("harmless", "no plugin with InfiniBand", "NCCL supports InfiniBand itself and needs no plugin")]
    if way.direct is False:
        remedy = "set NCCL_NET_GDR_LEVEL=PHB; check for nvidia-peermem or dma-buf"
        return [one("slow", "no GPUDirect", "data passes through host memory between device and NIC", remedy)]
    return []


def in_order(seen: list[Seen]) -> list[Seen]:
    """Sort the first cause first.

    Messages of the machine or the scheduler count at any time. A line after which its program continued, or that
    another line explains, counts least.
    """
    causes = [one for one in seen if one.sign.kind == "cause"]
    one_file = len({one.first.file for one in causes}) == 1
    timed = not one_file and all(one.time for one in causes)

    def key(one: Seen) -> tuple[object, ...]:
        weak = one.sign.tells == "weak" or one.hedged or (one.went_on and one.last.rank is not None)
        tier = 3 if weak else 0 if one.sign.tells == "strong" else 2 if _explained(one, causes) else 1
        many = 0 if one_file else one.ranks.count(1)
        return (tier, one.time if timed else (), many, one.first.file, one.first.number)

    return sorted(seen, key=key)


def _explained(one: Seen, causes: list[Seen]) -> bool:
    """Return whether a later line of the same rank names the cause of an error of the script."""
    return one.sign is SCRIPT and any(
        other.sign is not SCRIPT
        and other.sign.tells != "weak"
        and not other.hedged
        and (other.first.file, other.first.rank) == (one.first.file, one.first.rank)
        for other in causes
    )
