"""Follows the step records of a node's ranks: what each has done in all, and what it does lately."""

from __future__ import annotations

import math
import os
from collections import deque
from typing import Any

from windlass.node.sampler.readings import listed
from windlass.node.sampler.recorder import QUANTILES, parse_lines
from windlass.node.sys.reading import MAX_BYTES, open_plain

RECENT = 32
_MAX_NUMBER = 1 << 53
_MAX_NOTES = 100
_BINS = 1.05
"""Steps are counted in bins of 5 per cent, for quantiles of all of them."""


class RankSteps:
    """One rank's record, read as it grows."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.python = False
        self.steps = 0
        self.last_at: float | None = None
        self.ddp: dict[str, Any] | None = None
        self.alloc_retries: int | None = None
        self.ended = False
        self.torn = 0
        self.notes: list[str] = []
        self._recent: deque[tuple[int, int | None]] = deque(maxlen=RECENT)
        self._bins: dict[int, int] = {}
        self._timed = 0
        self._sum_us = 0
        self._wait_us: int | None = None
        self._inode = 0
        self._read = 0
        self._seen = 0
        """Steps of the process that records, up to which all are counted."""

    def look(self) -> None:
        """Read what is new; a record that cannot be read costs its figures."""
        try:
            with open_plain(self.path) as file:
                inode = os.fstat(file.fileno()).st_ino
                again = inode != self._inode and self._inode != 0
                if inode != self._inode:
                    self._inode, self._read = inode, 0
                file.seek(self._read)
                data = file.read(MAX_BYTES)
        except OSError:
            return
        data = data[: data.rfind(b"\n") + 1]
        self._read += len(data)
        lines, torn = parse_lines(data.splitlines())
        self.torn += torn
        for line in lines:
            for key, value in line.items():
                if key == "begin" and again:
                    continue  # the same record, folded
                self._take(key, value)

    def _take(self, key: str, value: Any) -> None:
        try:
            if key == "begin":
                self.python, self.ended, self._seen = True, False, 0
            elif key == "python":
                self.python = True
            elif key == "steps":
                self._take_steps(value)
            elif key == "folded":
                self._take_block(value)
            elif key == "ddp":
                self.ddp = {
                    name: _number(amount) for name, amount in value.items() if name in ("comm_us", "overlap_us")
                }
            elif key == "memory":
                self.alloc_retries = int(_number(value["alloc_retries"]))
            elif key == "note" and value not in self.notes and len(self.notes) < _MAX_NOTES:
                self.notes.append(str(value)[:300])
            elif key == "end":
                self.ended = True
        except (AttributeError, LookupError, TypeError, ValueError):
            self.torn += 1

    def _take_steps(self, batch: dict[str, Any]) -> None:
        waits, first, end = batch.get("wait_us"), _number(batch["first"]), _number(batch["end"])
        for offset, took in enumerate(batch["us"]):
            if first + offset < self._seen:
                continue
            wait = waits[offset] if waits is not None else None
            wait = None if wait is None else _number(wait)
            us = None if took is None else _number(took)
            self._seen = first + offset + 1
            self.steps += 1
            if us is not None:
                self._count(us)
                self._recent.append((us, wait))
                if wait is not None:
                    self._wait_us = (self._wait_us or 0) + wait
        self.last_at = max(self.last_at or 0.0, float(end))

    def _take_block(self, block: dict[str, Any]) -> None:
        first, count, timed, sum_us, end, wait = (
            _number(block.get(name, 0)) for name in ("first", "count", "timed", "sum_us", "end", "wait_sum_us")
        )
        bins = [_bin(_number(us)) for us in block["us"][1:]]
        if first + count <= self._seen:
            return
        self._seen = first + count
        self.steps += count
        self._timed += timed
        self._sum_us += sum_us
        for low, high, at in zip(QUANTILES, QUANTILES[1:], bins):
            self._bins[at] = self._bins.get(at, 0) + max(1, int((high - low) * timed))
        if "wait_sum_us" in block:
            self._wait_us = (self._wait_us or 0) + wait
        self.last_at = max(self.last_at or 0.0, float(end))

    def _count(self, us: int) -> None:
        self._timed += 1
        self._sum_us += us
        at = _bin(us)
        self._bins[at] = self._bins.get(at, 0) + 1

    @property
    def step_ms(self) -> float | None:
        """Median of the newest steps."""
        values = sorted(us for us, _ in self._recent)
        return values[len(values) // 2] / 1000.0 if values else None

    @property
    def wait_share(self) -> float | None:
        return _share([(wait, us) for us, wait in self._recent if wait is not None])

    @property
    def comm_share(self) -> float | None:
        """Communication that nothing hides, as DDP measured it, of the median step."""
        step = self.step_ms
        if not self.ddp or not step or "comm_us" not in self.ddp:
            return None
        exposed = max(0, int(self.ddp["comm_us"]) - int(self.ddp.get("overlap_us", 0)))
        return min(1.0, exposed / 1000.0 / step)

    @property
    def all_ms(self) -> float | None:
        return self._sum_us / self._timed / 1000.0 if self._timed > 0 else None

    @property
    def p95_ms(self) -> float | None:
        whole = sum(self._bins.values())
        below = 0
        for at in sorted(self._bins):
            below += self._bins[at]
            if below >= 0.95 * whole:
                return math.pow(_BINS, at + 0.5) / 1000.0
        return None

    @property
    def all_wait_share(self) -> float | None:
        return None if self._wait_us is None or self._sum_us <= 0 else min(1.0, self._wait_us / self._sum_us)


def _number(value: Any) -> Any:
    """A number as a rank can measure it; `ValueError` for anything else, such as NaN or one that overflows a float."""
    if not isinstance(value, (int, float)) or not 0 <= value < _MAX_NUMBER:
        raise ValueError("not a number of a record")
    return value


def _bin(us: int) -> int:
    return int(math.log(max(1, us)) / math.log(_BINS))


def _share(pairs: list[tuple[int, int]]) -> float | None:
    whole = sum(us for _, us in pairs)
    return min(1.0, sum(wait for wait, _ in pairs) / whole) if whole > 0 else None


def follow(folder: str, known: dict[int, RankSteps]) -> None:
    """Look at all records of a folder; new ones are added to `known`."""
    for name in listed(folder):
        if name.isascii() and name.isdigit() and len(name) < 10 and int(name) not in known:
            known[int(name)] = RankSteps(os.path.join(folder, name))
    for record in known.values():
        record.look()
