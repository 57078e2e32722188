"""Log lines: their labels, tracebacks and words, and the candidate signs of a line. Keeps no state between lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import BinaryIO, NamedTuple

from windlass.run.failure.signs import Sign, log_signs

LABEL = re.compile(
    rb"(?:\[\d{1,4},(\d{1,6})\]<std(?:out|err)>: ?)?(?:[ \t]{0,16}(\d{1,6}):(?: |\r?\Z))?"
    rb"(?:\[(?:rank)?(\d{1,6})\]:?\s?(?!\S{0,80} ?NCCL ))?"
)
"""Labels of launchers (`[1,3]<stderr>:…`, `3: …`), then torch's (`[rank3]: …`). Each may be missing."""
TRACE = b"Traceback (most recent call last)"
HANDLING, IGNORED = b"During handling of the above exception", b"Exception ignored in"
INSIDE = (b" ", b"\t", b"\r", b"\xe2\x94", b"\xe2\x95")
"""Start of lines inside a traceback. The last two are box-drawing characters of rich."""
MAX_FOREIGN = 8
"""Maximum number of lines of other threads inside a traceback."""
DIGITS = b"0123456789"
_TO_WORDS = bytes(byte | 32 if chr(byte).isascii() and chr(byte).isalpha() else 32 for byte in range(256))
MAX_RANKS = 1 << 18
_BLOCK_BYTES = 1 << 18
_HEAD_BYTES, _TAIL_BYTES = 3072, 1024
"""Bytes kept of a long line, such as a progress bar that never ends its line."""


class _Index(NamedTuple):
    """The signs by required word, the signs by required part of a word, and every word."""

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


def found_words(line: bytes) -> frozenset[bytes]:
    """Return each word or part of a word in this line for which there are signs."""
    low, index = line.translate(_TO_WORDS), _index()
    found = index.all_words.intersection(low.split())
    return found.union(part for part in index.parts if part in low) if b"error" in low else found


def candidate_signs(line: bytes) -> list[Sign]:
    """Return the signs whose words are in this line, in the order in which they apply."""
    return signs_of(found_words(line))


def signs_of(words: frozenset[bytes]) -> list[Sign]:
    index, found = _index(), set[int]()
    for word in words:
        found |= index.words.get(word) or index.parts.get(word) or frozenset()
    return [log_signs()[number] for number in sorted(found)]


class Meaning(NamedTuple):
    """The common properties of all lines of one shape."""

    sign: Sign | None = None
    trace: bool = False
    handling: bool = False
    by_number: bool = False


NOTHING = Meaning()


class Trace:
    """A traceback that has begun. `prefix` is the text before it on its first line, such as a time or a process."""

    def __init__(self, prefix: bytes, *, ignored: bool) -> None:
        self.length, self.shape = len(prefix), prefix.translate(None, DIGITS)
        self.ignored = ignored
        self.foreign = 0

    def inner(self, text: bytes) -> bytes:
        """Return the text without the prefix, if it starts with it. Digits in the prefix may differ."""
        begin = text[: self.length].translate(None, DIGITS)
        return text[self.length :] if self.length and begin == self.shape else text


def rank_number(digits: bytes | str) -> int | None:
    number = int(digits)
    return number if number < MAX_RANKS else None


def cut_line(line: bytes) -> bytes:
    """Return the line, or the beginning and the end of a long one."""
    if len(line) <= _HEAD_BYTES + _TAIL_BYTES:
        return line
    return line[:_HEAD_BYTES] + line[-_TAIL_BYTES:]


def whole_lines(stream: BinaryIO, size_bytes: int) -> Iterator[bytes]:
    """Yield blocks that end at a line end, without the last newline. Lines longer than a block are cut."""
    begun: bytes | None = None
    while size_bytes > 0 and (block := stream.read(min(_BLOCK_BYTES, size_bytes))):
        size_bytes -= len(block)
        whole, newline, rest = block.rpartition(b"\n")
        if newline:
            yield (begun or b"") + whole
            begun = cut_line(rest) if rest else None
        else:
            begun = cut_line((begun or b"") + block)
    if begun is not None:
        yield begun
