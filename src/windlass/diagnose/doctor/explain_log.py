"""Explain logs: which lines are the cause, which only follow from it, which are harmless.

Memory use is constant. The time depends only on the size of the log, not on its content. Lines that differ only in
their digits have the same shape, and a shape is matched once.
"""

from __future__ import annotations

import os
import re
import stat
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from windlass.backends.launchers.base import decode
from windlass.base.notation.counts import counted
from windlass.diagnose.doctor.comm_log import CommLog
from windlass.diagnose.doctor.log_findings import (
    MAX_TEXT,
    SCRIPT,
    LogReport,
    Seen,
    Spot,
    in_order,
    kind_of,
    of_transport,
    ranks_text,
)
from windlass.diagnose.doctor.log_lines import (
    DIGITS,
    HANDLING,
    IGNORED,
    INSIDE,
    LABEL,
    MAX_FOREIGN,
    MAX_RANKS,
    NOTHING,
    TRACE,
    Meaning,
    Trace,
    candidate_signs,
    cut_line,
    found_words,
    rank_number,
    signs_of,
    whole_lines,
)
from windlass.errors import UsageError
from windlass.model.finding import Finding, worst_first, worst_severity
from windlass.node.sys.reading import UnreadableError, open_plain
from windlass.run.failure.signs import ERROR_LINE, LOST_PEERS, Sign, log_signs
from windlass.run.failure.verdict import read_verdict

_LABEL_STARTS = frozenset(bytes([byte]) for byte in b"[ \t0123456789")
_FILE_RANK = re.compile(r"rank[-_.]?([0-9]{1,6})(?!\d)")
_HEDGE = re.compile(
    r"\b(?:re-?try(?:ing)?|trying|attempt \d|skip(?:ping|ped)|falling back|will be ignored)\b|\bWARN(?:ING)?[ :\]]"
    r"(?<!NCCL WARN )|^\[?W\d{0,4} ",
    re.IGNORECASE,
)
"""A line that states that the program continues."""
_TIME = re.compile(rb"\d{4}-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)|\b[WEIF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)")
_TIME_LINES = 64
_STACK_STARTS = frozenset({b" ", b"\t", b"f", b"#", b""})
"""Start of stack lines (`frame #3: …`), which a process prints while it dies."""
_WENT_ON, _FILE_WENT_ON = 30, 50
"""If a rank, or a file without labels, prints this many lines after a line, that line did not end it."""
_BY_NUMBER = (b"errno", b"retries", b"failure", b"Using [", b"exitcode", b"from signal")
"""Lines with one of these have another meaning with another number. They are matched with their digits."""
_MAX_ERRORS = 50
_FEW_MISSING = 0.2
_MAX_PIPE_BYTES = 1 << 34
_MAX_SHAPES, _MAX_SHAPE_BYTES = 50_000, 512
"""The table of shapes is emptied when it is full. Longer lines are not stored in it."""
_FREE_MATCHES, _BYTES_PER_MATCH = 1 << 23, 32
"""Patterns may read this many characters in any log, and one more per this many bytes of the log."""
_FREE_WORK, _BYTES_PER_WORK = 1 << 25, 3
"""The same for all work.

A line costs 1, about 0.1 µs. Lines of a new shape and errors cost `_MATCH_WORK`, and those with a label, or in a
traceback, `_LINE_WORK`. A log of many short lines is read in part: the ends of each block.
"""
_LINE_WORK, _MATCH_WORK = 14, 60
_BYTES_PER_SAMPLE = 256

_EXIT_CODE = re.compile(
    r"(?:\btasks? [^:]{1,40}: |\brank \d{1,9} |task\(s\) )?\bexit(?:ed)?(?: with(?: exit)?)? code:? {1,8}[1-9]\d{0,2}",
    re.I,
)
_ENDED = "ended-by-the-launcher"
_TIMED_OUT = "collective timed out"


class LogReader:
    """Reads any number of files and keeps only what it can explain."""

    def __init__(self) -> None:
        self.files = self.lines = self.unmatched = 0
        self._seen: dict[tuple[str, str], Seen] = {}
        self._ranks = bytearray(MAX_RANKS)
        self._said = array("Q", bytes(8 * MAX_RANKS))
        """Number of labelled lines of each rank."""
        self._lengths: list[int] = []
        """Number of lines of each file."""
        self._tracing: dict[int | None, Trace] = {}
        """Ranks whose traceback has begun and not ended, in the current file."""
        self._ignoring: set[int | None] = set()
        self._block: tuple[int, list[bytes]] = (1, [])
        """The number of the first line of the last block, and its lines."""
        self._comm: CommLog | None = None
        self._meanings: dict[bytes, Meaning] = {}
        self._matches_left, self._work_left = _FREE_MATCHES, _FREE_WORK
        self.judged = ""
        """The verdict on the run whose logs these are. It is used if the logs do not explain the end."""
        self._exited = ""
        """The first exit code that a launcher reports."""

    def read(self, name: str, stream: BinaryIO, size_bytes: int) -> None:
        """Read this many bytes of one file."""
        self.files += 1
        self._tracing.clear()
        self._ignoring.clear()
        said = _FILE_RANK.search(Path(name).name)
        own = rank_number(said[1]) if said else None
        if own is not None and size_bytes:
            self._ranks[own] = 1
        number = 0
        for left_out, block in self._affordable(whole_lines(stream, size_bytes)):
            number += left_out
            self.unmatched += left_out
            lines, shapes = block.split(b"\n"), block.translate(None, DIGITS).split(b"\n")
            self._block = (number + 1, lines)
            self._work_left -= len(lines)
            get, tracing = self._meanings.get, self._tracing
            for number, (line, shape) in enumerate(zip(lines, shapes, strict=True), start=number + 1):  # noqa: B020
                meaning = get(shape)
                if meaning is NOTHING and not tracing and line[:1] not in _LABEL_STARTS:
                    continue
                self._line(name, number, own, cut_line(line), shape, meaning)
        self.lines += number
        self._lengths.append(number)

    def _affordable(self, blocks: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        """Yield the blocks, each with the number of lines skipped before it.

        Without work left, yields only their ends.
        """
        for block in blocks:
            self._matches_left += len(block) // _BYTES_PER_MATCH
            self._work_left += len(block) // _BYTES_PER_WORK
            few = max(1, len(block) // _BYTES_PER_SAMPLE)
            if self._work_left >= 0 or block.count(b"\n") <= 2 * few:
                yield 0, block
            else:
                *begin, rest = block.split(b"\n", few)
                middle, *end = rest.rsplit(b"\n", few)
                yield 0, b"\n".join(begin)
                yield middle.count(b"\n") + 1, b"\n".join(end)

    def _line(self, name: str, number: int, own: int | None, line: bytes, shape: bytes, known: Meaning | None) -> None:
        rank, labelled = own, None
        self._work_left -= _LINE_WORK
        label = LABEL.match(line)
        if label and label.end():
            labelled = rank_number(label[1] or label[2] or label[3])
            if labelled is not None:
                rank = labelled
                self._ranks[rank] = 1
                self._said[rank] += line[label.end() : label.end() + 1] not in _STACK_STARTS
        if known is NOTHING and not self._tracing:
            return
        text = line[label.end() :] if label else line
        spot = Spot(len(self._lengths), number, labelled, 0 if labelled is None else self._said[labelled])
        trace = self._tracing.get(rank)
        if trace is not None and TRACE not in text and self._inside(trace, name, rank, text, spot):
            return
        meaning = known or self._meaning(shape, text)
        if meaning.by_number:
            whole = b"\0" + line  # a line without digits is its own shape
            meaning = self._meanings.get(whole) or self._meaning(whole, text, digits=True)
        if meaning.trace:
            self._tracing[rank] = Trace(text.partition(TRACE)[0], ignored=rank in self._ignoring)
            self._ignoring.discard(rank)
        elif meaning.handling:
            self._forget_error(rank)
        elif meaning.sign is not None:
            if not self._exited and (code := _EXIT_CODE.search(decode(text))):
                self._exited = code[0].strip()
            self._note(meaning.sign, meaning.sign.title, f"{name}:{number}", rank, text, spot)
            if text.startswith(IGNORED):
                self._ignoring.add(rank)

    def _inside(self, trace: Trace, name: str, rank: int | None, text: bytes, spot: Spot) -> bool:
        """Return whether the traceback of this rank explains the line. Its error line ends the traceback.

        Other threads may write between its lines. After some of their lines, the traceback is abandoned.
        """
        inner = trace.inner(text)
        if not inner or inner.startswith(INSIDE):
            return True
        self._work_left -= _LINE_WORK
        ends = self._matches_left >= 0 and ERROR_LINE.match(decode(inner))
        if not ends:
            trace.foreign += 1
            if trace.foreign > MAX_FOREIGN:
                del self._tracing[rank]
            return False
        del self._tracing[rank]
        return trace.ignored or self._error(f"{name}:{spot.number}", rank, inner, spot)

    def _meaning(self, key: bytes, text: bytes, *, digits: bool = False) -> Meaning:
        """Return the meaning of a line whose shape is new, or that must be read with its digits."""
        if self._matches_left < 0:  # a log that consists only of different errors is not read completely
            self.unmatched += 1
            return NOTHING
        self._work_left -= _MATCH_WORK
        words = found_words(text)
        if not words:
            return self._keep(key, NOTHING)
        if b"traceback" in words and TRACE in text:
            return self._keep(key, Meaning(trace=True))
        if b"handling" in words and text.startswith(HANDLING):
            return self._keep(key, Meaning(handling=True))
        if not digits and any(word in text for word in _BY_NUMBER):
            return self._keep(key, Meaning(by_number=True))
        comm = b" NCCL " in text or text.startswith((b"NCCL ", b"RCCL "))
        candidates = signs_of(words)
        self._matches_left -= len(text) * (len(candidates) + comm)
        decoded = decode(text)
        if comm:
            self._comm = self._comm or CommLog()
            self._comm.feed(decoded)
        sign = next((sign for sign in candidates if sign.pattern.search(decoded)), None)
        return self._keep(key, Meaning(sign=sign) if sign else NOTHING)

    def _keep(self, key: bytes, meaning: Meaning) -> Meaning:
        if len(key) <= _MAX_SHAPE_BYTES:
            if len(self._meanings) >= _MAX_SHAPES:
                self._meanings.clear()
            self._meanings[key] = meaning
        return meaning

    def _error(self, where: str, rank: int | None, text: bytes, spot: Spot) -> bool:
        """Record the line in which a traceback ends, if no sign matches it: an error of the script."""
        self._work_left -= _MATCH_WORK
        key = decode(text.translate(None, DIGITS)[:MAX_TEXT])
        if ("script", key) not in self._seen:
            if len(self._seen) > _MAX_ERRORS + len(log_signs()):
                return False
            candidates, decoded = candidate_signs(text), decode(text)
            self._matches_left -= len(text) * (len(candidates) + 1)
            if LOST_PEERS.search(decoded) or any(sign.pattern.search(decoded) for sign in candidates):
                return False
        self._note(SCRIPT, key, where, rank, text, spot)
        return True

    def _forget_error(self, rank: int | None) -> None:
        """Forget the last error of a rank that raised another error while handling it. The other error ended it."""
        errors = [
            ((seen.last.file, seen.last.number), key)
            for key, seen in self._seen.items()
            if seen.sign is SCRIPT and seen.count == 1
        ]
        if errors:
            key = max(errors)[1]
            if rank is None or self._seen[key].ranks[rank]:
                del self._seen[key]

    def _note(self, sign: Sign, key: str, where: str, rank: int | None, text: bytes, spot: Spot) -> None:
        group = "script" if sign is SCRIPT else "sign"
        found = self._seen.get((group, key))
        if found is None or (found.hedged and group == "sign"):
            said = decode(text).strip()[:MAX_TEXT]
            hedged = sign.kind == "cause" and bool(_HEDGE.search(said))
            if hedged:
                group = "hedged"
            found = self._seen.get((group, key))
            if found is None:
                found = self._seen[group, key] = Seen(sign, where, said, spot, self._time(spot))
                found.hedged = hedged
        found.add(rank, spot)

    def _time(self, spot: Spot) -> tuple[int, ...]:
        """Return month, day and time of the line, or of the nearest earlier line that has them. Empty if none has."""
        begin, lines = self._block
        index = spot.number - begin
        for line in reversed(lines[max(0, index - _TIME_LINES) : index + 1]):
            if match := _TIME.search(line[:MAX_TEXT]):
                return tuple(int(part) for part in match.groups() if part is not None)
        return ()

    def report(self) -> LogReport:
        """Return all explanations, the first cause first."""
        seen = list(self._seen.values())
        for one in seen:
            one.went_on = one.hedged or (one.fails and self._went_on(one.last))
        ended = any(one.fails and not one.went_on for one in seen)
        found = [one.finding("ok" if one.went_on and not ended else None) for one in in_order(seen)]
        way = self._comm.transport() if self._comm else None
        found += of_transport(way) if way else []
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

    def _went_on(self, last: Spot) -> bool:
        """Return whether the source of this line printed many more lines after it."""
        if last.rank is not None:
            return self._said[last.rank] - last.said >= _WENT_ON
        return self._lengths[last.file] - last.number >= _FILE_WENT_ON

    def _verdict(self, found: Sequence[Finding]) -> str:
        worst = worst_severity(found)
        if worst == "error":
            first = found[0]
            who = f"{first.subject}: " if first.subject else ""
            return who + (
                first.facts["line"] if first.kind == kind_of(SCRIPT.name) else f"{first.kind}: {first.evidence}"
            )
        late = self._did_not_time_out()
        if late:
            return f"a collective timed out on the others, not on {late}: those did not reach it; check where they were"
        if self.judged:
            return self.judged
        if self._exited and all(one.kind == _ENDED for one in found if one.severity == "note"):
            return f"{self._exited}, and no line here says why: a rank left with a code, without printing an error"
        if any(one.severity == "note" for one in found):
            return (
                "ranks lost each other, and no line here gives the reason: the log of the first failed rank is missing"
            )
        if worst == "warning":
            return "nothing failed, but a problem costs time"
        return "no problem found in this output"

    def _did_not_time_out(self) -> str:
        """Return the ranks that are in the logs and did not time out, if most others did."""
        timed_out = self._seen.get(("sign", _TIMED_OUT))
        if timed_out is None:
            return ""
        pairs = zip(self._ranks, timed_out.ranks, strict=True)
        missing = bytes(said and not late for said, late in pairs)
        if not any(missing) or sum(missing) > max(1.0, _FEW_MISSING * self._ranks.count(1)):
            return ""
        return ranks_text(missing)


def explain_files(paths: Iterable[Path], tell: Callable[[str], None]) -> LogReport:
    """Read all of these files, and the files in these folders. Raises `UsageError` for an unreadable file.

    If no line of a run's logs says why it failed, the verdict is that of the run itself.
    """
    reader = LogReader()
    for path in paths:
        if (verdict := read_verdict(path)) is not None:
            reader.judged = verdict.cause.line()
        for file in _files(path):
            with _open_log(file, None if file == path else path) as stream:
                status = os.fstat(stream.fileno())
                reader.read(str(file), stream, status.st_size if stat.S_ISREG(status.st_mode) else _MAX_PIPE_BYTES)
            tell(amount_text(reader.files, reader.lines))
    return reader.report()


def _open_log(file: Path, folder: Path | None) -> BinaryIO:
    """Open a log, or raise `UsageError`.

    Reading a pipe or a device might never end, and a link in a folder could point anywhere.
    """
    try:
        return open_plain(file, within=folder, follow=folder is None)
    except UnreadableError as error:
        raise UsageError(str(error), hint="save the output to a file and give that file") from error
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}", hint="give files or a run folder") from error


def _files(path: Path) -> Iterator[Path]:
    """Yield the file itself, the logs of a run folder and of its components, or every file of another folder."""
    if not path.exists():
        raise UsageError(f"{path} does not exist", hint="give log files, or a run folder")
    if not path.is_dir():
        yield path
        return
    runs, names = (path, *sorted(path.glob("components/*"))), ("out", "comm", "launcher.log", "job.log")
    parts = [run / name for run in runs for name in names if (run / name).exists()]
    for part in parts or [path]:
        yield from sorted(p for p in part.rglob("*") if p.is_file()) if part.is_dir() else [part]


def amount_text(files: int, lines: int) -> str:
    return f"{counted(files, 'file')}, {lines:,} line{'' if lines == 1 else 's'}"
