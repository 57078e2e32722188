"""Logs explained: which lines are the cause, which only follow from it, which are harmless. Reads each line once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from windlass.backends.launchers.base import decode, parse_label
from windlass.base.notation.counts import counted
from windlass.base.notation.cpulist import format_cpulist
from windlass.diagnose.doctor.comm_log import Transport, leads_nowhere, parse_comm_log, transport_text
from windlass.diagnose.doctor.log_rules import FOLLOWS, RULES, WORDS, Kind, Rule
from windlass.errors import UsageError
from windlass.run.failure.last_lines import ERROR_LINE, LOST_PEERS
from windlass.run.failure.launcher_hints import launcher_hint

_RANK_TAG = re.compile(r"\A\[(?:rank)?(\d+)\]:?\s?")
_FILE_RANK = re.compile(r"rank[-_.]?(\d+)")
_TRACE = "Traceback (most recent call last)"
_NUMBERS = re.compile(r"\d+")
_SCRIPT = "error of the script"
_MAX_TEXT = 300
_MAX_ERRORS = 50
_FEW_MISSING = 0.2


class Explained(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Lines that mean the same."""

    kind: Kind
    name: str
    meaning: str
    remedy: str = ""
    count: int
    ranks: str = ""
    """Folded list of the ranks that said it; empty where the log does not tell."""
    where: str
    """File and line of the first of them."""
    text: str


class LogReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The document of `explain-log --json`."""

    version: int
    files: int
    lines: int
    ranks: int
    verdict: str
    explained: tuple[Explained, ...] = ()
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

    def explained(self) -> Explained:
        return Explained(
            kind=self.rule.kind,
            name=self.rule.name,
            meaning=self.rule.meaning,
            remedy=self.rule.remedy,
            count=self.count,
            ranks=format_cpulist(self.ranks),
            where=self.where,
            text=self.text,
        )


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
        found = [seen.explained() for seen in self._seen.values()]
        way = parse_comm_log(self._comm) if self._comm else None
        found += _of_transport(way) if way else []
        order = {"cause": 0, "slow": 1, "follows": 2, "harmless": 3}
        found.sort(key=lambda one: (order[one.kind], -_weight(one), -one.count))
        return LogReport(
            version=1,
            files=self.files,
            lines=self.lines,
            ranks=len(self._ranks),
            verdict=self._verdict(found),
            explained=tuple(found),
            transport=way,
        )

    def _verdict(self, found: list[Explained]) -> str:
        causes = [one for one in found if one.kind == "cause"]
        if causes:
            first = causes[0]
            who = (
                f"rank{'s' if ',' in first.ranks or '-' in first.ranks else ''} {first.ranks}: " if first.ranks else ""
            )
            what = first.text if first.name == _SCRIPT else f"{first.name}: {first.meaning}"
            return f"{who}{what}"
        late = self._did_not_time_out()
        if late:
            return f"a collective timed out on the others, not on {late}: those did not come to it; see where they were"
        if any(one.kind == "follows" for one in found):
            return "ranks lost each other, and no line here says why: the log of the one that ended first is missing"
        if any(one.kind == "slow" for one in found):
            return "nothing failed, but something costs time"
        return "nothing here says that anything is wrong"

    def _did_not_time_out(self) -> str:
        """Ranks that are in the logs and did not time out, where most others did."""
        timed_out = self._seen.get(("rule", FOLLOWS[0].name))
        missing = self._ranks - timed_out.ranks if timed_out else set()
        if not missing or len(missing) > max(1.0, _FEW_MISSING * len(self._ranks)):
            return ""
        return f"rank{'s' if len(missing) > 1 else ''} {format_cpulist(missing)}"


def _weight(one: Explained) -> int:
    """Causes that name something outside of the script say more than the script's own error about it."""
    return 0 if one.name in {_SCRIPT, "crash", "ranks missing at the start"} else 1


def _split(line: str, own: int | None) -> tuple[int | None, str]:
    """Rank and text of a line: labelled by a launcher (`3: …`), by torch (`[rank3]: …`), or by the file's name."""
    rank, text = parse_label(line)
    match = _RANK_TAG.match(text)
    if match:
        return (int(match[1]) if rank is None else rank), text[match.end() :]
    return (own if rank is None else rank), text


def _of_transport(way: Transport) -> list[Explained]:
    """What the collective library's own lines mean together."""

    def one(kind: Kind, name: str, meaning: str, remedy: str = "") -> Explained:
        text = transport_text(way)
        return Explained(kind=kind, name=name, meaning=meaning, remedy=remedy, count=1, where="NCCL's lines", text=text)

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
            tell(_amount(reader.files, reader.lines))
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


def _amount(files: int, lines: int) -> str:
    return f"{counted(files, 'file')}, {lines:,} line{'' if lines == 1 else 's'}"


def report_lines(report: LogReport, *, everything: bool = False) -> list[str]:
    """For people: the verdict, then each kind of line with what it means and what to do."""
    lines = [report.verdict, ""]
    titles = {"cause": "cause", "slow": "costs time", "follows": "follows from it", "harmless": "harmless"}
    for one in report.explained:
        if one.kind == "harmless" and not everything:
            continue
        who = f" on ranks {one.ranks}" if one.ranks else ""
        lines.append(f"{titles[one.kind]}: {one.name} ({counted(one.count, 'line')}{who})")
        lines += [f"    {one.text}", f"    {one.where}", f"    {one.meaning}"]
        remedy = one.remedy or launcher_hint(one.text)
        lines += [f"    → {remedy}"] if remedy else []
    quiet = [one for one in report.explained if one.kind == "harmless"]
    if quiet and not everything:
        total = sum(one.count for one in quiet)
        lines.append(f"harmless: {counted(total, 'line')} ({', '.join(one.name for one in quiet)}); --all shows them")
    lines.append(
        f"read {_amount(report.files, report.lines)}" + (f", {counted(report.ranks, 'rank')}" if report.ranks else "")
    )
    return lines
