"""Explain logs: which lines are the cause, which only follow from it, which are harmless.

Memory is constant, and time grows with the size of the log alone, whatever the log contains. Lines that differ only in
their digits have the same shape, and a shape is matched once.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from windlass.backends.launchers.base import decode
from windlass.base.notation.counts import counted
from windlass.base.notation.cpulist import format_cpulist
from windlass.diagnose.doctor.comm_log import CommLog, Transport, leads_nowhere, transport_text
from windlass.diagnose.doctor.log_rules import FOLLOWS, RULES, WORDS, Kind, Rule
from windlass.errors import UsageError
from windlass.model.finding import Finding, Severity, worst_first, worst_severity
from windlass.node.sys.reading import UnreadableError, open_plain
from windlass.run.failure.last_lines import ERROR_LINE, LOST_PEERS
from windlass.run.failure.launcher_hints import launcher_hint

_LABEL = re.compile(rb"(?:[ \t]{0,16}(\d{1,6}):(?: |\r?\Z))?(?:\[(?:rank)?(\d{1,6})\]:?\s?)?")
"""A launcher's label (`3: …`), then torch's (`[rank3]: …`); each may be missing."""
_LABEL_STARTS = frozenset(bytes([byte]) for byte in b"[ \t0123456789")
_FILE_RANK = re.compile(r"rank[-_.]?([0-9]{1,6})(?!\d)")
_TRACE = b"Traceback (most recent call last)"
_DIGITS = b"0123456789"
_TO_WORDS = bytes(byte | 32 if chr(byte).isascii() and chr(byte).isalpha() else 32 for byte in range(256))
_BY_NUMBER = (b"errno", b"retries", b"failure", b"Using [")
"""Lines with one of these mean something else with another number: they are matched with their digits."""
_MAX_RANKS = 1 << 18
_NO_LETTERS = re.compile(r"[^a-z0-9]+")
_LESS = frozenset({"error-of-the-script", "crash", "ranks-missing-at-the-start"})
_SEVERITIES: dict[Kind, Severity] = {"cause": "error", "slow": "warning", "follows": "note", "harmless": "ok"}
_MAX_TEXT = 300
_MAX_ERRORS = 50
_FEW_MISSING = 0.2
_BLOCK_BYTES = 1 << 18
_MAX_PIPE_BYTES = 1 << 34
_HEAD_BYTES, _TAIL_BYTES = 3072, 1024
"""What is kept of a long line, such as a progress bar that never ends its line."""
_MAX_SHAPES, _MAX_SHAPE_BYTES = 50_000, 512
"""The table of shapes is emptied when it is full; longer lines do not enter it."""
_FREE_MATCHES, _BYTES_PER_MATCH = 1 << 23, 32
"""Patterns may read so many characters at once, and one more for so many bytes of the log."""

_SCRIPT = Rule(
    "error of the script",
    "cause",
    ERROR_LINE,
    "the script raised it",
    "see the traceback in the log; `windlass logs --rank` shows one rank's alone",
)


def _index() -> tuple[dict[bytes, frozenset[int]], dict[bytes, frozenset[int]]]:
    """Which rules need which word, and which need a part of one."""
    words: dict[bytes, frozenset[int]] = {}
    parts: dict[bytes, frozenset[int]] = {}
    for number, rule in enumerate(RULES):
        for word in map(str.encode, WORDS[rule.name]):
            table = parts if b"error" in word else words
            table[word] = table.get(word, frozenset()) | {number}
    return words, parts


_RULES_OF_WORD, _RULES_OF_PART = _index()
_WORDS = frozenset((*_RULES_OF_WORD, b"traceback", b"nccl", b"rccl"))


def _found_words(line: bytes) -> frozenset[bytes]:
    """The words and parts of words in this line for which there are rules."""
    low = line.translate(_TO_WORDS)
    found = _WORDS.intersection(low.split())
    return found.union(part for part in _RULES_OF_PART if part in low) if b"error" in low else found


def candidate_rules(line: bytes) -> list[Rule]:
    """The rules whose words are in this line, in the order in which they apply."""
    return _rules_of(_found_words(line))


def _rules_of(words: frozenset[bytes]) -> list[Rule]:
    found: set[int] = set()
    for word in words:
        found |= _RULES_OF_WORD.get(word) or _RULES_OF_PART.get(word) or frozenset()
    return [RULES[number] for number in sorted(found)]


class _Meaning(NamedTuple):
    """What the lines of one shape have in common."""

    rule: Rule | None = None
    trace: bool = False
    by_number: bool = False


_NOTHING = _Meaning()


class LogReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The document of `explain-log --json`."""

    version: int
    files: int
    lines: int
    ranks: int
    unmatched: int = 0
    """Lines that were not matched: the log has too many different errors."""
    verdict: str
    findings: tuple[Finding, ...] = ()
    """Facts: `count` of lines, folded `ranks`, `where` the first one is, and this `line`."""
    transport: Transport | None = None


class _Seen:
    """What was seen of one rule, or of one error of the script."""

    def __init__(self, rule: Rule, where: str, text: str) -> None:
        self.rule, self.where, self.text = rule, where, text
        self.count = 0
        self.ranks = bytearray(_MAX_RANKS)
        """One byte for each rank: a set of that many is a hundred times as large."""

    def add(self, rank: int | None) -> None:
        self.count += 1
        if rank is not None:
            self.ranks[rank] = 1

    def finding(self) -> Finding:
        return _finding(self.rule, self.count, self.where, self.text, self.ranks)


def _finding(rule: Rule, count: int, where: str, text: str, ranks: bytes | bytearray = b"") -> Finding:
    """Lines that mean the same. `where` is the file and line of the first of them."""
    return Finding(
        kind_of(rule.name),
        _SEVERITIES[rule.kind],
        rule.meaning,
        rule.remedy or launcher_hint(text) or "",
        subject=_ranks_text(ranks),
        facts={"count": count, "ranks": _folded(ranks), "where": where, "line": text},
    )


def kind_of(name: str) -> str:
    """The kind of a rule's findings: `out of memory` is `out-of-memory`."""
    return _NO_LETTERS.sub("-", name.lower()).strip("-")


def _ranks_text(ranks: bytes | bytearray) -> str:
    return f"rank{'s' if sum(ranks) > 1 else ''} {_folded(ranks)}" if any(ranks) else ""


def _folded(ranks: bytes | bytearray) -> str:
    """The list of ranks for people: a hostile log can name every second one of very many."""
    text = format_cpulist(rank for rank, said in enumerate(ranks) if said)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT].rpartition(',')[0]},… ({sum(ranks)} ranks)"


class LogReader:
    """Reads any number of files and keeps only what it can explain."""

    def __init__(self) -> None:
        self.files = self.lines = self.unmatched = 0
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._ranks = bytearray(_MAX_RANKS)
        self._tracing: set[int | None] = set()
        """Ranks whose traceback has begun and not ended, in the file that is being read."""
        self._comm: CommLog | None = None
        self._meanings: dict[bytes, _Meaning] = {}
        self._matches_left = _FREE_MATCHES

    def read(self, name: str, stream: BinaryIO, size_bytes: int) -> None:
        """Read so many bytes of one file."""
        self.files += 1
        self._tracing.clear()
        said = _FILE_RANK.search(Path(name).name)
        own = _rank(said[1]) if said else None
        if own is not None and size_bytes:
            self._ranks[own] = 1
        number = 0
        for block in _whole_lines(stream, size_bytes):
            self._matches_left += len(block) // _BYTES_PER_MATCH
            lines, shapes = block.split(b"\n"), block.translate(None, _DIGITS).split(b"\n")
            get, tracing = self._meanings.get, self._tracing
            for number, (line, shape) in enumerate(zip(lines, shapes, strict=True), start=number + 1):  # noqa: B020
                meaning = get(shape)
                if meaning is _NOTHING and not tracing and line[:1] not in _LABEL_STARTS:
                    continue
                self._line(name, number, own, _cut(line), shape, meaning)
        self.lines += number

    def _line(self, name: str, number: int, own: int | None, line: bytes, shape: bytes, known: _Meaning | None) -> None:
        rank = own
        label = _LABEL.match(line)
        if label and label.end():
            said = _rank(label[1] or label[2])
            rank = own if said is None else said
            if rank is not None:
                self._ranks[rank] = 1
        if known is _NOTHING and not self._tracing:
            return
        text = line[label.end() :] if label else line
        if rank in self._tracing and text[:1] not in {b" ", b"\t", b"", b"\r"} and _TRACE not in text:
            self._tracing.discard(rank)
            if self._matches_left >= 0 and self._error(f"{name}:{number}", rank, text):
                return
        meaning = known or self._meaning(shape, text)
        if meaning.by_number:
            meaning = self._meanings.get(line) or self._meaning(line, text, digits=True)
        if meaning.trace:
            self._tracing.add(rank)
        elif meaning.rule is not None:
            self._note(meaning.rule, meaning.rule.name, f"{name}:{number}", rank, text)

    def _meaning(self, key: bytes, text: bytes, *, digits: bool = False) -> _Meaning:
        """What a line means whose shape is new, or has to be read with its digits."""
        if self._matches_left < 0:  # a log of nothing but different errors is not read whole
            self.unmatched += 1
            return _NOTHING
        words = _found_words(text)
        if not words:
            return self._keep(key, _NOTHING)
        if b"traceback" in words and _TRACE in text:
            return self._keep(key, _Meaning(trace=True))
        if not digits and any(word in text for word in _BY_NUMBER):
            return self._keep(key, _Meaning(by_number=True))
        comm = b" NCCL " in text or text.startswith((b"NCCL ", b"RCCL "))
        candidates = _rules_of(words)
        self._matches_left -= len(text) * (len(candidates) + comm)
        decoded = decode(text)
        if comm:
            self._comm = self._comm or CommLog()
            self._comm.feed(decoded)
        rule = next((rule for rule in candidates if rule.pattern.search(decoded)), None)
        return self._keep(key, _Meaning(rule=rule) if rule else _NOTHING)

    def _keep(self, key: bytes, meaning: _Meaning) -> _Meaning:
        if len(key) <= _MAX_SHAPE_BYTES:
            if len(self._meanings) >= _MAX_SHAPES:
                self._meanings.clear()
            self._meanings[key] = meaning
        return meaning

    def _error(self, where: str, rank: int | None, text: bytes) -> bool:
        """The line in which a traceback ends: a rule's, or an error of the script that no rule knows."""
        key = decode(text.translate(None, _DIGITS)[:_MAX_TEXT])
        if ("script", key) in self._seen:
            self._note(_SCRIPT, key, where, rank, text, group="script")
            return True
        if len(self._seen) > _MAX_ERRORS + len(RULES):
            return False
        candidates, decoded = candidate_rules(text), decode(text)
        self._matches_left -= len(text) * (len(candidates) + 1)
        if LOST_PEERS.search(decoded) or not ERROR_LINE.match(decoded):
            return False
        if any(rule.pattern.search(decoded) for rule in candidates):
            return False
        self._note(_SCRIPT, key, where, rank, text, group="script")
        return True

    def _note(self, rule: Rule, key: str, where: str, rank: int | None, text: bytes, group: str = "rule") -> None:
        found = self._seen.get((group, key))
        if found is None:
            found = self._seen[group, key] = _Seen(rule, where, decode(text).strip()[:_MAX_TEXT])
        found.add(rank)

    def report(self) -> LogReport:
        """Everything explained, causes first."""
        found = [seen.finding() for seen in self._seen.values()]
        way = self._comm.transport() if self._comm else None
        found += _of_transport(way) if way else []
        found.sort(key=lambda one: (-_weight(one), -one.facts["count"]))
        findings = worst_first(found)
        return LogReport(
            version=2,
            files=self.files,
            lines=self.lines,
            ranks=sum(self._ranks),
            unmatched=self.unmatched,
            verdict=self._verdict(findings),
            findings=findings,
            transport=way,
        )

    def _verdict(self, found: Sequence[Finding]) -> str:
        worst = worst_severity(found)
        if worst == "error":
            first = found[0]
            who = f"{first.subject}: " if first.subject else ""
            return who + (
                first.facts["line"] if first.kind == kind_of(_SCRIPT.name) else f"{first.kind}: {first.evidence}"
            )
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
        if timed_out is None:
            return ""
        pairs = zip(self._ranks, timed_out.ranks, strict=True)
        missing = bytes(said and not late for said, late in pairs)
        if not any(missing) or sum(missing) > max(1.0, _FEW_MISSING * sum(self._ranks)):
            return ""
        return _ranks_text(missing)


def _weight(one: Finding) -> int:
    """Causes that name something outside of the script say more than the script's own error about it."""
    return 0 if one.kind in _LESS else 1


def _rank(digits: bytes | str) -> int | None:
    number = int(digits)
    return number if number < _MAX_RANKS else None


def _cut(line: bytes) -> bytes:
    """The line, or the beginning and the end of a long one."""
    if len(line) <= _HEAD_BYTES + _TAIL_BYTES:
        return line
    return line[:_HEAD_BYTES] + line[-_TAIL_BYTES:]


def _whole_lines(stream: BinaryIO, size_bytes: int) -> Iterator[bytes]:
    """Blocks that end where a line ends, without the last newline. Lines that are longer than a block are cut."""
    begun: bytes | None = None
    while size_bytes > 0 and (block := stream.read(min(_BLOCK_BYTES, size_bytes))):
        size_bytes -= len(block)
        whole, newline, rest = block.rpartition(b"\n")
        if newline:
            yield (begun or b"") + whole
            begun = _cut(rest) if rest else None
        else:
            begun = _cut((begun or b"") + block)
    if begun is not None:
        yield begun


def _of_transport(way: Transport) -> list[Finding]:
    """What the collective library's own lines mean together."""

    def one(kind: Kind, name: str, meaning: str, remedy: str = "") -> Finding:
        return _finding(Rule(name, kind, ERROR_LINE, meaning, remedy), 1, "NCCL's lines", transport_text(way))

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
            with _open_log(file, None if file == path else path) as stream:
                status = os.fstat(stream.fileno())
                reader.read(str(file), stream, status.st_size if stat.S_ISREG(status.st_mode) else _MAX_PIPE_BYTES)
            tell(amount_text(reader.files, reader.lines))
    return reader.report()


def _open_log(file: Path, folder: Path | None) -> BinaryIO:
    """Open a log, or raise `UsageError`. A pipe or a device could make us wait or read without end, and a link in a
    folder could lead anywhere."""
    try:
        return open_plain(file, within=folder, follow=folder is None)
    except UnreadableError as error:
        raise UsageError(str(error), hint="save the output into a file and give that") from error
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}", hint="give files or a run folder") from error


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
