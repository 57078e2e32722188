"""Explain logs: which lines are the cause, which only follow from it, which are harmless.

Memory is constant, and time grows with the size of the log alone, whatever the log contains. Lines that differ only in
their digits have the same shape, and a shape is matched once.
"""

from __future__ import annotations

import os
import re
import stat
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from windlass.backends.launchers.base import decode
from windlass.base.notation.counts import counted
from windlass.base.notation.cpulist import format_cpulist
from windlass.diagnose.doctor.comm_log import CommLog, Transport, leads_nowhere, transport_text
from windlass.errors import UsageError
from windlass.model.finding import Finding, Severity, worst_first, worst_severity
from windlass.node.sys.reading import UnreadableError, open_plain
from windlass.run.failure.signs import ERROR_LINE, LOST_PEERS, Sign, SignClass, log_signs

_LABEL = re.compile(
    rb"(?:\[\d{1,4},(\d{1,6})\]<std(?:out|err)>: ?)?(?:[ \t]{0,16}(\d{1,6}):(?: |\r?\Z))?"
    rb"(?:\[(?:rank)?(\d{1,6})\]:?\s?(?!\S{0,80} ?NCCL ))?"
)
"""Labels of launchers (`[1,3]<stderr>:…`, `3: …`), then torch's (`[rank3]: …`); each may be missing."""
_LABEL_STARTS = frozenset(bytes([byte]) for byte in b"[ \t0123456789")
_FILE_RANK = re.compile(r"rank[-_.]?([0-9]{1,6})(?!\d)")
_TRACE = b"Traceback (most recent call last)"
_HANDLING, _IGNORED = b"During handling of the above exception", b"Exception ignored in"
_INSIDE = (b" ", b"\t", b"\r", b"\xe2\x94", b"\xe2\x95")
"""How lines inside a traceback begin; the last two are box-drawing characters of rich."""
_MAX_FOREIGN = 8
"""Lines of other threads inside a traceback."""
_HEDGE = re.compile(
    r"\b(?:re-?try(?:ing)?|trying|attempt \d|skip(?:ping|ped)|falling back|will be ignored)\b|\bWARN(?:ING)?[ :\]]"
    r"(?<!NCCL WARN )|^\[?W\d{0,4} ",
    re.IGNORECASE,
)
"""A line that says itself that the program goes on."""
_TIME = re.compile(rb"\d{4}-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)|\b[WEIF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)")
_TIME_LINES = 64
_STACK_STARTS = frozenset({b" ", b"\t", b"f", b"#", b""})
"""How lines of a stack begin (`frame #3: …`), which a process prints while it dies."""
_WENT_ON, _FILE_WENT_ON = 30, 50
"""Lines that a rank, or a file without labels, goes on with after a line that did not end it."""
_DIGITS = b"0123456789"
_TO_WORDS = bytes(byte | 32 if chr(byte).isascii() and chr(byte).isalpha() else 32 for byte in range(256))
_BY_NUMBER = (b"errno", b"retries", b"failure", b"Using [", b"exitcode", b"from signal")
"""Lines with one of these mean something else with another number: they are matched with their digits."""
_MAX_RANKS = 1 << 18
_NO_LETTERS = re.compile(r"[^a-z0-9]+")
_SEVERITIES: dict[SignClass, Severity] = {"cause": "error", "slow": "warning", "follows": "note", "harmless": "ok"}
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

_SCRIPT = Sign(
    "error of the script",
    ERROR_LINE,
    "the script raised it",
    "see the traceback in the log; `windlass logs --rank` shows one rank's alone",
    origin="script",
)
_TIMED_OUT = "collective timed out"


class _Index(NamedTuple):
    """Which signs need which word, which need a part of one, and all words."""

    words: dict[bytes, frozenset[int]]
    parts: dict[bytes, frozenset[int]]
    all_words: frozenset[bytes]


@lru_cache(maxsize=1)
def _index() -> _Index:
    words: dict[bytes, frozenset[int]] = {}
    parts: dict[bytes, frozenset[int]] = {}
    for number, sign in enumerate(log_signs()):
        for word in map(str.encode, sign.words):
            table = parts if b"error" in word else words
            table[word] = table.get(word, frozenset()) | {number}
    return _Index(words, parts, frozenset((*words, b"traceback", b"handling", b"nccl", b"rccl")))


def _found_words(line: bytes) -> frozenset[bytes]:
    """The words and parts of words in this line for which there are signs."""
    low, index = line.translate(_TO_WORDS), _index()
    found = index.all_words.intersection(low.split())
    return found.union(part for part in index.parts if part in low) if b"error" in low else found


def candidate_signs(line: bytes) -> list[Sign]:
    """The signs whose words are in this line, in the order in which they apply."""
    return _signs_of(_found_words(line))


def _signs_of(words: frozenset[bytes]) -> list[Sign]:
    index, found = _index(), set[int]()
    for word in words:
        found |= index.words.get(word) or index.parts.get(word) or frozenset()
    return [log_signs()[number] for number in sorted(found)]


class _Meaning(NamedTuple):
    """What the lines of one shape have in common."""

    sign: Sign | None = None
    trace: bool = False
    handling: bool = False
    by_number: bool = False


_NOTHING = _Meaning()


class _Trace:
    """A traceback that has begun. `prefix` is what stands before it on its first line, such as a time or a process."""

    def __init__(self, prefix: bytes, *, ignored: bool) -> None:
        self.length, self.shape = len(prefix), prefix.translate(None, _DIGITS)
        self.ignored = ignored
        self.foreign = 0

    def inner(self, text: bytes) -> bytes:
        """The text without the prefix, where it begins with the same but for digits."""
        begin = text[: self.length].translate(None, _DIGITS)
        return text[self.length :] if self.length and begin == self.shape else text


class _Spot(NamedTuple):
    """Where a line is. `rank` is the one of its label, `said` how many lines that rank had printed by then."""

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
    """Lines that were not matched: the log has too many different errors."""
    verdict: str
    findings: tuple[Finding, ...] = ()
    """Facts: `count` of lines, folded `ranks`, `where` the first one is, this `line`, and for causes its `origin`."""
    transport: Transport | None = None


class _Seen:
    """What was seen of one sign, or of one error of the script."""

    def __init__(self, sign: Sign, where: str, text: str, spot: _Spot, time: tuple[int, ...]) -> None:
        self.sign, self.where, self.text, self.time = sign, where, text, time
        self.first = self.last = spot
        self.count = 0
        self.ranks = bytearray(_MAX_RANKS)
        """One byte for each rank: a set of that many is a hundred times as large."""
        self.hedged = self.went_on = False

    def add(self, rank: int | None, spot: _Spot) -> None:
        self.count += 1
        self.last = spot
        if rank is not None:
            self.ranks[rank] = 1

    @property
    def fails(self) -> bool:
        """Whether the line tells that something ended, unless its rank went on after it."""
        return self.sign.kind in {"cause", "follows"}

    def finding(self, severity: Severity | None = None) -> Finding:
        return _finding(self.sign, self.count, self.where, self.text, self.ranks, severity)


def _finding(
    sign: Sign, count: int, where: str, text: str, ranks: bytes | bytearray = b"", severity: Severity | None = None
) -> Finding:
    """Lines that mean the same. `where` is the file and line of the first of them."""
    facts = {"count": count, "ranks": _folded(ranks), "where": where, "line": text}
    if sign.kind == "cause":
        facts["origin"] = sign.origin
    return Finding(
        kind_of(sign.title),
        severity or _SEVERITIES[sign.kind],
        sign.meaning,
        sign.remedy,
        subject=_ranks_text(ranks),
        facts=facts,
    )


def kind_of(name: str) -> str:
    """The kind of a rule's findings: `out of memory` is `out-of-memory`."""
    return _NO_LETTERS.sub("-", name.lower()).strip("-")


def _ranks_text(ranks: bytes | bytearray) -> str:
    return f"rank{'s' if ranks.count(1) > 1 else ''} {_folded(ranks)}" if 1 in ranks else ""


def _folded(ranks: bytes | bytearray) -> str:
    """The list of ranks for people: a hostile log can name every second one of very many."""
    text = format_cpulist(match.start() for match in re.finditer(b"\1", ranks))
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT].rpartition(',')[0]},… ({ranks.count(1)} ranks)"


class LogReader:
    """Reads any number of files and keeps only what it can explain."""

    def __init__(self) -> None:
        self.files = self.lines = self.unmatched = 0
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._ranks = bytearray(_MAX_RANKS)
        self._said = array("Q", bytes(8 * _MAX_RANKS))
        """Labelled lines of each rank."""
        self._lengths: list[int] = []
        """Lines of each file."""
        self._tracing: dict[int | None, _Trace] = {}
        """Ranks whose traceback has begun and not ended, in the file that is being read."""
        self._ignoring: set[int | None] = set()
        self._block: tuple[int, list[bytes]] = (1, [])
        """The number of the first line that was read last, and the lines."""
        self._comm: CommLog | None = None
        self._meanings: dict[bytes, _Meaning] = {}
        self._matches_left = _FREE_MATCHES

    def read(self, name: str, stream: BinaryIO, size_bytes: int) -> None:
        """Read so many bytes of one file."""
        self.files += 1
        self._tracing.clear()
        self._ignoring.clear()
        said = _FILE_RANK.search(Path(name).name)
        own = _rank(said[1]) if said else None
        if own is not None and size_bytes:
            self._ranks[own] = 1
        number = 0
        for block in _whole_lines(stream, size_bytes):
            self._matches_left += len(block) // _BYTES_PER_MATCH
            lines, shapes = block.split(b"\n"), block.translate(None, _DIGITS).split(b"\n")
            self._block = (number + 1, lines)
            get, tracing = self._meanings.get, self._tracing
            for number, (line, shape) in enumerate(zip(lines, shapes, strict=True), start=number + 1):  # noqa: B020
                meaning = get(shape)
                if meaning is _NOTHING and not tracing and line[:1] not in _LABEL_STARTS:
                    continue
                self._line(name, number, own, _cut(line), shape, meaning)
        self.lines += number
        self._lengths.append(number)

    def _line(self, name: str, number: int, own: int | None, line: bytes, shape: bytes, known: _Meaning | None) -> None:
        rank, labelled = own, None
        label = _LABEL.match(line)
        if label and label.end():
            labelled = _rank(label[1] or label[2] or label[3])
            if labelled is not None:
                rank = labelled
                self._ranks[rank] = 1
                self._said[rank] += line[label.end() : label.end() + 1] not in _STACK_STARTS
        if known is _NOTHING and not self._tracing:
            return
        text = line[label.end() :] if label else line
        spot = _Spot(len(self._lengths), number, labelled, 0 if labelled is None else self._said[labelled])
        trace = self._tracing.get(rank)
        if trace is not None and _TRACE not in text and self._inside(trace, name, rank, text, spot):
            return
        meaning = known or self._meaning(shape, text)
        if meaning.by_number:
            whole = b"\0" + line  # a line without digits is its own shape
            meaning = self._meanings.get(whole) or self._meaning(whole, text, digits=True)
        if meaning.trace:
            self._tracing[rank] = _Trace(text.partition(_TRACE)[0], ignored=rank in self._ignoring)
            self._ignoring.discard(rank)
        elif meaning.handling:
            self._forget_error(rank)
        elif meaning.sign is not None:
            self._note(meaning.sign, meaning.sign.title, f"{name}:{number}", rank, text, spot)
            if text.startswith(_IGNORED):
                self._ignoring.add(rank)

    def _inside(self, trace: _Trace, name: str, rank: int | None, text: bytes, spot: _Spot) -> bool:
        """Whether the traceback of this rank explains the line. Its error line ends it. Other threads may write between
        its lines; after some of theirs it is given up."""
        inner = trace.inner(text)
        if not inner or inner.startswith(_INSIDE):
            return True
        ends = self._matches_left >= 0 and ERROR_LINE.match(decode(inner))
        if not ends:
            trace.foreign += 1
            if trace.foreign > _MAX_FOREIGN:
                del self._tracing[rank]
            return False
        del self._tracing[rank]
        return trace.ignored or self._error(f"{name}:{spot.number}", rank, inner, spot)

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
        if b"handling" in words and text.startswith(_HANDLING):
            return self._keep(key, _Meaning(handling=True))
        if not digits and any(word in text for word in _BY_NUMBER):
            return self._keep(key, _Meaning(by_number=True))
        comm = b" NCCL " in text or text.startswith((b"NCCL ", b"RCCL "))
        candidates = _signs_of(words)
        self._matches_left -= len(text) * (len(candidates) + comm)
        decoded = decode(text)
        if comm:
            self._comm = self._comm or CommLog()
            self._comm.feed(decoded)
        sign = next((sign for sign in candidates if sign.pattern.search(decoded)), None)
        return self._keep(key, _Meaning(sign=sign) if sign else _NOTHING)

    def _keep(self, key: bytes, meaning: _Meaning) -> _Meaning:
        if len(key) <= _MAX_SHAPE_BYTES:
            if len(self._meanings) >= _MAX_SHAPES:
                self._meanings.clear()
            self._meanings[key] = meaning
        return meaning

    def _error(self, where: str, rank: int | None, text: bytes, spot: _Spot) -> bool:
        """Note the line in which a traceback ends, where no sign knows it: an error of the script."""
        key = decode(text.translate(None, _DIGITS)[:_MAX_TEXT])
        if ("script", key) not in self._seen:
            if len(self._seen) > _MAX_ERRORS + len(log_signs()):
                return False
            candidates, decoded = candidate_signs(text), decode(text)
            self._matches_left -= len(text) * (len(candidates) + 1)
            if LOST_PEERS.search(decoded) or any(sign.pattern.search(decoded) for sign in candidates):
                return False
        self._note(_SCRIPT, key, where, rank, text, spot, group="script")
        return True

    def _forget_error(self, rank: int | None) -> None:
        """Forget the last error of a rank that raised another one while it handled it: the other one ended it."""
        errors = [
            ((seen.last.file, seen.last.number), key)
            for key, seen in self._seen.items()
            if seen.sign is _SCRIPT and seen.count == 1
        ]
        if errors:
            key = max(errors)[1]
            if rank is None or self._seen[key].ranks[rank]:
                del self._seen[key]

    def _note(
        self, sign: Sign, key: str, where: str, rank: int | None, text: bytes, spot: _Spot, group: str = "sign"
    ) -> None:
        found = self._seen.get((group, key))
        if found is None or (found.hedged and group == "sign"):
            said = decode(text).strip()[:_MAX_TEXT]
            hedged = sign.kind == "cause" and bool(_HEDGE.search(said))
            if hedged:
                group = "hedged"
            found = self._seen.get((group, key))
            if found is None:
                found = self._seen[group, key] = _Seen(sign, where, said, spot, self._time(spot))
                found.hedged = hedged
        found.add(rank, spot)

    def _time(self, spot: _Spot) -> tuple[int, ...]:
        """Month, day and time of the line, or of the nearest before it that has one; empty where none has."""
        begin, lines = self._block
        index = spot.number - begin
        for line in reversed(lines[max(0, index - _TIME_LINES) : index + 1]):
            if match := _TIME.search(line[:_MAX_TEXT]):
                return tuple(int(part) for part in match.groups() if part is not None)
        return ()

    def report(self) -> LogReport:
        """Everything explained, the first cause first."""
        seen = list(self._seen.values())
        for one in seen:
            one.went_on = one.hedged or (one.fails and self._went_on(one.last))
        ended = any(one.fails and not one.went_on for one in seen)
        found = [one.finding("ok" if one.went_on and not ended else None) for one in self._in_order(seen)]
        way = self._comm.transport() if self._comm else None
        found += _of_transport(way) if way else []
        findings = worst_first(found)
        return LogReport(
            version=2,
            files=self.files,
            lines=self.lines,
            ranks=self._ranks.count(1),
            unmatched=self.unmatched,
            verdict=self._verdict(findings),
            findings=findings,
            transport=way,
        )

    def _went_on(self, last: _Spot) -> bool:
        """Whether whoever printed this line printed many more after it."""
        if last.rank is not None:
            return self._said[last.rank] - last.said >= _WENT_ON
        return self._lengths[last.file] - last.number >= _FILE_WENT_ON

    def _in_order(self, seen: list[_Seen]) -> list[_Seen]:
        """The first cause first. What the machine or the scheduler says counts whenever it says so; a line that its own
        program survived, or that any other explains, counts least."""
        causes = [one for one in seen if one.sign.kind == "cause"]
        one_file = len({one.first.file for one in causes}) == 1
        timed = not one_file and all(one.time for one in causes)

        def key(one: _Seen) -> tuple[object, ...]:
            weak = one.sign.tells == "weak" or one.hedged or (one.went_on and one.last.rank is not None)
            tier = 3 if weak else 0 if one.sign.tells == "strong" else 2 if self._explained(one, causes) else 1
            many = 0 if one_file else one.ranks.count(1)
            return (tier, one.time if timed else (), many, one.first.file, one.first.number)

        return sorted(seen, key=key)

    def _explained(self, one: _Seen, causes: list[_Seen]) -> bool:
        """Whether a later line of the same rank names the cause of an error of the script."""
        return one.sign is _SCRIPT and any(
            other.sign is not _SCRIPT
            and other.sign.tells != "weak"
            and not other.hedged
            and (other.first.file, other.first.rank) == (one.first.file, one.first.rank)
            for other in causes
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
        timed_out = self._seen.get(("sign", _TIMED_OUT))
        if timed_out is None:
            return ""
        pairs = zip(self._ranks, timed_out.ranks, strict=True)
        missing = bytes(said and not late for said, late in pairs)
        if not any(missing) or sum(missing) > max(1.0, _FEW_MISSING * self._ranks.count(1)):
            return ""
        return _ranks_text(missing)


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

    def one(kind: SignClass, name: str, meaning: str, remedy: str = "") -> Finding:
        return _finding(Sign(name, ERROR_LINE, meaning, remedy, kind), 1, "NCCL's lines", transport_text(way))

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
    parts = [path / name for name in ("out", "comm", "launcher.log", "job.log") if (path / name).exists()]
    for part in parts or [path]:
        yield from sorted(p for p in part.rglob("*") if p.is_file()) if part.is_dir() else [part]


def amount_text(files: int, lines: int) -> str:
    return f"{counted(files, 'file')}, {lines:,} line{'' if lines == 1 else 's'}"
