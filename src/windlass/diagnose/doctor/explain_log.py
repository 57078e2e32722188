"""Logs explained: which lines are the cause, which only follow from it, which are harmless. Reads each line once."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from windlass.backends.launchers.base import decode, parse_label
from windlass.base.notation.counts import counted
from windlass.base.notation.cpulist import format_cpulist
from windlass.diagnose.doctor.comm_log import Transport, leads_nowhere, parse_comm_log, transport_text
from windlass.diagnose.doctor.log_rules import FOLLOWS, RULES, WORDS, Kind, Rule
from windlass.errors import UsageError
from windlass.model.finding import Finding, Severity, worst_first, worst_severity
from windlass.run.failure.last_lines import ERROR_LINE, LOST_PEERS
from windlass.run.failure.launcher_hints import launcher_hint

_RANK_TAG = re.compile(r"\A\[(?:rank)?(\d+)\]:?\s?")
_FILE_RANK = re.compile(r"rank[-_.]?(\d+)")
_TRACE = "Traceback (most recent call last)"
_NUMBERS = re.compile(r"\d+")
_NO_LETTERS = re.compile(r"[^a-z0-9]+")
_SCRIPT = "error of the script"
_LESS = frozenset({"error-of-the-script", "crash", "ranks-missing-at-the-start"})
_SEVERITIES: dict[Kind, Severity] = {"cause": "error", "slow": "warning", "follows": "note", "harmless": "ok"}
_MAX_TEXT = 300
_MAX_ERRORS = 50
_FEW_MISSING = 0.2


class LogReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The document of `explain-log --json`."""

    version: int
    files: int
    lines: int
    ranks: int
    verdict: str
    findings: tuple[Finding, ...] = ()
    """Facts: `count` of lines, folded `ranks`, `where` the first one is, and this `line`."""
    transport: Transport | None = None


class _Seen:
    """What was seen of one rule, or of one error of the script."""

    def __init__(self, rule: Rule, where: str, text: str) -> None:
        self.rule, self.where, self.text = rule, where, text
        self.count = 0
        self.ranks: set[int] = set()

    def add(self, rank: int | None) -> None:
        self.count += 1
        if rank is not None:
            self.ranks.add(rank)

    def finding(self) -> Finding:
        return _finding(self.rule, self.count, self.where, self.text, self.ranks)


def _finding(rule: Rule, count: int, where: str, text: str, ranks: Collection[int] = ()) -> Finding:
    """Lines that mean the same. `where` is the file and line of the first of them."""
    return Finding(
        kind_of(rule.name),
        _SEVERITIES[rule.kind],
        rule.meaning,
        rule.remedy or launcher_hint(text) or "",
        subject=_ranks_text(ranks),
        facts={"count": count, "ranks": format_cpulist(ranks), "where": where, "line": text},
    )


def kind_of(name: str) -> str:
    """The kind of a rule's findings: `out of memory` is `out-of-memory`."""
    return _NO_LETTERS.sub("-", name.lower()).strip("-")


def _ranks_text(ranks: Collection[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {format_cpulist(ranks)}" if ranks else ""


class LogReader:
    """Takes lines of any number of files, in any order of files, and keeps only what it can explain."""

    def __init__(self) -> None:
        self.files = self.lines = 0
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._ranks: set[int] = set()
        self._tracing: set[tuple[str, int | None]] = set()
        self._comm: list[str] = []

    def read(self, name: str, lines: Iterable[str]) -> None:
        """All lines of one file."""
        self.files += 1
        said = _FILE_RANK.search(Path(name).name)
        own = int(said[1]) if said else None
        for number, line in enumerate(lines, start=1):
            self.lines += 1
            rank, text = _split(line, own)
            if rank is not None:
                self._ranks.add(rank)
            self._look(name, number, rank, text)

    def _look(self, name: str, number: int, rank: int | None, text: str) -> None:
        where = f"{name}:{number}"
        if " NCCL " in text or text.startswith(("NCCL ", "RCCL ")):
            self._comm.append(text)
        if _TRACE in text:
            self._tracing.add((name, rank))
            return
        if (name, rank) in self._tracing and text[:1] not in {" ", "\t", ""}:
            self._tracing.discard((name, rank))
            if self._error(where, rank, text):
                return
        low = text.lower()
        if not any(word in low for word in WORDS):  # nearly all lines of a healthy run, at a microsecond each
            return
        rule = next((rule for rule in RULES if rule.pattern.search(text)), None)
        if rule is not None:
            self._note(rule, rule.name, where, rank, text)

    def _error(self, where: str, rank: int | None, text: str) -> bool:
        """The line in which a traceback ends: a rule's, or an error of the script that no rule knows."""
        if LOST_PEERS.search(text) or not ERROR_LINE.match(text) or any(rule.pattern.search(text) for rule in RULES):
            return False
        key = _NUMBERS.sub("#", text)[:_MAX_TEXT]
        if ("script", key) not in self._seen and len(self._seen) > _MAX_ERRORS + len(RULES):
            return True
        remedy = "see the traceback in the log; `windlass logs --rank` shows one rank's alone"
        rule = Rule(_SCRIPT, "cause", ERROR_LINE, "the script raised it", remedy)
        self._note(rule, key, where, rank, text, group="script")
        return True

    def _note(self, rule: Rule, key: str, where: str, rank: int | None, text: str, group: str = "rule") -> None:
        found = self._seen.get((group, key))
        if found is None:
            found = self._seen[group, key] = _Seen(rule, where, text.strip()[:_MAX_TEXT])
        found.add(rank)

    def report(self) -> LogReport:
        """Everything explained, causes first."""
        found = [seen.finding() for seen in self._seen.values()]
        way = parse_comm_log(self._comm) if self._comm else None
        found += _of_transport(way) if way else []
        found.sort(key=lambda one: (-_weight(one), -one.facts["count"]))
        findings = worst_first(found)
        return LogReport(
            version=2,
            files=self.files,
            lines=self.lines,
            ranks=len(self._ranks),
            verdict=self._verdict(findings),
            findings=findings,
            transport=way,
        )

    def _verdict(self, found: Sequence[Finding]) -> str:
        worst = worst_severity(found)
        if worst == "error":
            first = found[0]
            who = f"{first.subject}: " if first.subject else ""
            return who + (first.facts["line"] if first.kind == kind_of(_SCRIPT) else f"{first.kind}: {first.evidence}")
        late = self._did_not_time_out()
        if late:
            return f"a collective timed out on the others, not on {late}: those did not come to it; see where they were"
        if any(one.severity == "note" for one in found):
            return "ranks lost each other, and no line here says why: the log of the one that ended first is missing"
        if worst == "warning":
            return "nothing failed, but something costs time"
        return "nothing here says that anything is wrong"

    def _did_not_time_out(self) -> str:
        """Ranks that are in the logs and did not time out, where most others did."""
        timed_out = self._seen.get(("rule", FOLLOWS[0].name))
        missing = self._ranks - timed_out.ranks if timed_out else set()
        if not missing or len(missing) > max(1.0, _FEW_MISSING * len(self._ranks)):
            return ""
        return _ranks_text(missing)


def _weight(one: Finding) -> int:
    """Causes that name something outside of the script say more than the script's own error about it."""
    return 0 if one.kind in _LESS else 1


def _split(line: str, own: int | None) -> tuple[int | None, str]:
    """Rank and text of a line: labelled by a launcher (`3: …`), by torch (`[rank3]: …`), or by the file's name."""
    rank, text = parse_label(line)
    match = _RANK_TAG.match(text)
    if match:
        return (int(match[1]) if rank is None else rank), text[match.end() :]
    return (own if rank is None else rank), text


def _of_transport(way: Transport) -> list[Finding]:
    """What the collective library's own lines mean together."""

    def one(kind: Kind, name: str, meaning: str, remedy: str = "") -> Finding:
        return _finding(Rule(name, kind, _NUMBERS, meaning, remedy), 1, "NCCL's lines", transport_text(way))

    astray = [item for item in (*way.interfaces, way.bootstrap) if item and leads_nowhere(item)]
    if way.is_tcp and astray:
        meaning = f"NCCL talks through {astray[0]}, which does not reach other nodes: it hangs on more than one"
        return [one("slow", "wrong interface", meaning, "set NCCL_SOCKET_IFNAME to the fabric's interface")]
    if way.is_tcp:
        why = "no network plugin was found" if way.plugin_missing else "no faster network was found"
        remedy = "on Slingshot or EFA load the plugin; with InfiniBand look for libibverbs. Between nodes only"
        return [one("slow", "TCP between nodes", f"NCCL uses sockets: {why}; ten times slower or more", remedy)]
    if way.plugin_missing and way.network == "IB":
        return [one("harmless", "no plugin with InfiniBand", "NCCL speaks InfiniBand itself and needs none")]
    if way.direct is False:
        remedy = "NCCL_NET_GDR_LEVEL=PHB; is nvidia-peermem or dma-buf there?"
        return [one("slow", "no GPUDirect", "bytes go through host memory between device and NIC", remedy)]
    return []


def explain_files(paths: Iterable[Path], tell: Callable[[str], None]) -> LogReport:
    """Read all of these files, and those in folders among them. Raises `UsageError` for one that cannot be read."""
    reader = LogReader()
    for path in paths:
        for file in _files(path):
            try:
                with file.open("rb") as stream:
                    reader.read(str(file), (decode(line.rstrip(b"\r\n")) for line in stream))
            except OSError as error:
                raise UsageError(f"cannot read {file}: {error.strerror}", hint="give files or a run folder") from error
            tell(amount_text(reader.files, reader.lines))
    return reader.report()


def _files(path: Path) -> Iterator[Path]:
    """The file; or of a run folder its logs; or of any other folder every file."""
    if not path.exists():
        raise UsageError(f"{path} does not exist", hint="give log files, or a run folder")
    if not path.is_dir():
        yield path
        return
    parts = [path / name for name in ("out", "comm", "launcher.log", "slurm.log") if (path / name).exists()]
    for part in parts or [path]:
        yield from sorted(p for p in part.rglob("*") if p.is_file()) if part.is_dir() else [part]


def amount_text(files: int, lines: int) -> str:
    return f"{counted(files, 'file')}, {lines:,} line{'' if lines == 1 else 's'}"
