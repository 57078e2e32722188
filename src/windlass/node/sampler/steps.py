"""Follow the step records of a node's ranks: the totals of each rank, and its recent activity.

The time of a rank has phases: start-up until its first step, warm-up, steps, evaluation, save, and other pauses between
steps. Figures of steps cover only the phase of steps.
"""

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
_BINS = 1.02
_LOG_BIN = math.log(_BINS)
"""Steps are counted in bins of 2 per cent, for quantiles of all of them."""
PHASES = ("start", "warm-up", "steps", "evaluation", "save", "pause")
_STEPS, _SAVE = PHASES.index("steps"), PHASES.index("save")
_WARM_STEPS, _WARM = 16, 1.5
"""The maximum number of warm-up steps, and how many times longer than the later half they take.

Warm-up steps compile code and fill caches.
"""
_PAUSE = 3.0
"""An interval so many times as long as the median step contains more than a step."""
_FEW_ITERATIONS = 3
"""DDP measures single iterations. Fewer than this give no share of communication."""


class _StepTimes:
    """The times of all steps: their number, their sum, and a histogram with logarithmic bins."""

    def __init__(self) -> None:
        self.count = 0
        self.sum_us = 0
        self._bins: dict[int, int] = {}

    def add(self, us: int) -> None:
        self.count += 1
        self.sum_us += us
        self._put(us, 1)

    def add_block(self, count: int, sum_us: int, quantiles_us: list[int]) -> None:
        """Add steps of which only quantiles are known."""
        self.count += count
        self.sum_us += sum_us
        for low, high, us in zip(QUANTILES, QUANTILES[1:], quantiles_us):
            self._put(us, max(1, int((high - low) * count)))

    def _put(self, us: int, weight: int) -> None:
        at = int(math.log(max(1, us)) / _LOG_BIN)
        self._bins[at] = self._bins.get(at, 0) + weight

    def quantile_us(self, share: float) -> float | None:
        whole = sum(self._bins.values())
        below = 0
        for at in sorted(self._bins):
            below += self._bins[at]
            if below >= share * whole:
                return math.pow(_BINS, at + 0.5)
        return None

    def quantile_ms(self, share: float) -> float | None:
        us = self.quantile_us(share)
        return None if us is None else us / 1000.0


class RankSteps:
    """One rank's record, read as it grows."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.python = False
        self.steps = 0
        self.last_at: float | None = None
        self.doing = ""
        self.doing_at: float | None = None
        """The activity of the rank since its last step, as far as known: `data` or `save`."""
        self.saved: tuple[str, int] | None = None
        """The newest file that it saved, and the number of steps before it."""
        self.first_at: float | None = None
        self.nan_step: int | None = None
        self.phase_s = [0.0] * len(PHASES)
        self.alloc_retries: int | None = None
        self.ended = False
        self.torn = 0
        self.notes: list[str] = []
        self._began: float | None = None
        self._recent: deque[tuple[int, int | None]] = deque(maxlen=RECENT)
        self._early: list[tuple[int, int | None, int]] | None = []
        """Intervals that may belong to the warm-up. None when the warm-up is over."""
        self._fetches = 1
        self._middle = 0.0
        self._gil: deque[int] = deque(maxlen=RECENT)
        self._exposed: dict[int, tuple[int, int]] = {}
        self._times = _StepTimes()
        self._wait_us: int | None = None
        self._inode = 0
        self._read = 0
        self._seen = 0
        """Steps of the recording process that are already counted."""

    def look(self) -> None:
        """Read the new lines. An unreadable record costs only its figures."""
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
                self.take(key, value)

    def take(self, key: str, value: Any) -> None:
        try:
            if key == "begin":
                self.python, self.ended, self._seen = True, False, 0
            elif key == "python":
                self.python, self._began = True, float(_number(value["at"]))
            elif key == "steps":
                self._take_steps(value)
            elif key == "folded":
                self._take_block(value)
            elif key == "doing":
                self.doing, self.doing_at = str(value["what"])[:20], float(_number(value["at"]))
                if isinstance(value.get("file"), str):
                    self.saved = (value["file"][:400], self.steps)
            elif key == "nan" and self.nan_step is None:
                self.nan_step = int(_number(value["step"]))
            elif key == "ddp":
                names = ("forward_us", "backward_us", "comm_us", "overlap_us")
                forward, backward, comm, overlap = (int(_number(value.get(name, 0))) for name in names)
                exposed = max(0, comm - overlap)
                self._exposed[int(_number(value.get("iteration", 0)))] = (exposed, forward + backward + exposed)
                if len(self._exposed) > RECENT:
                    del self._exposed[min(self._exposed)]
            elif key == "memory":
                self.alloc_retries = int(_number(value["alloc_retries"]))
            elif key == "note" and value not in self.notes and len(self.notes) < _MAX_NOTES:
                self.notes.append(str(value)[:300])
            elif key == "end":
                self.ended = True
                if self._early:
                    self._end_warm_up()
        except (AttributeError, LookupError, TypeError, ValueError):
            self.torn += 1

    def _take_steps(self, batch: dict[str, Any]) -> None:
        waits, first, end = batch.get("wait_us"), _number(batch["first"]), _number(batch["end"])
        fetched = batch.get("fetched")
        saves: dict[int, int] = {}
        for offset, us in batch.get("save_us", ()):
            saves[offset] = saves.get(offset, 0) + _number(us)
        for offset, took in enumerate(batch["us"]):
            if first + offset < self._seen:
                continue
            wait = waits[offset] if waits is not None else None
            wait = None if wait is None else _number(wait)
            us = None if took is None else _number(took)
            self._seen = first + offset + 1
            self.steps += 1
            if us is not None:
                save = min(us, saves[offset]) if offset in saves else 0
                self.phase_s[_SAVE] += save / 1e6
                self._interval(us - save, wait, int(_number(fetched[offset])) if fetched else 1)
        self._middle = self._times.quantile_us(0.5) or self._middle
        if "gil_us" in batch:
            self._gil.append(int(_number(batch["gil_us"])))
        self.doing = ""
        if self.first_at is None:
            self.first_at = max(0.0, float(end) - sum(us for us in batch["us"] if us) / 1e6)
            self.phase_s[0] = max(0.0, self.first_at - self._began) if self._began else 0.0
        self.last_at = max(self.last_at or 0.0, float(end))

    def _interval(self, us: int, wait: int | None, fetched: int) -> None:
        """Count one interval from a step's end to the next step's end, without its saves."""
        if self._early is not None:
            self._early.append((us, wait, fetched))
            if len(self._early) == _WARM_STEPS:
                self._end_warm_up()
            return
        middle = self._middle or us
        evaluates = fetched >= self._fetches + 2
        if us < _PAUSE * middle or (not evaluates and (wait or 0) > (us - middle) / 2):
            self._times.add(us)
            self.phase_s[_STEPS] += us / 1e6
            self._recent.append((us, wait))
            if wait is not None:
                self._wait_us = (self._wait_us or 0) + wait
            return
        phase = "evaluation" if evaluates else "pause"
        self.phase_s[PHASES.index(phase)] += (us - middle) / 1e6
        self.phase_s[_STEPS] += middle / 1e6

    def _end_warm_up(self) -> None:
        """End the warm-up, which is the longer intervals at the beginning. Later intervals are judged as usual."""
        early, self._early = self._early or [], None
        late = sorted(us for us, _, _ in early[len(early) // 2 :])
        usual = late[len(late) // 2]
        first = next((number for number, (us, _, _) in enumerate(early) if us <= _WARM * usual), 0)
        self.phase_s[PHASES.index("warm-up")] += sum(us for us, _, _ in early[:first]) / 1e6
        self._fetches = sorted(fetched for _, _, fetched in early)[len(early) // 2]
        self._middle = usual
        for us, wait, fetched in early[first:]:
            self._interval(us, wait, fetched)

    def _take_block(self, block: dict[str, Any]) -> None:
        first, count, timed, sum_us, end, wait = (
            _number(block.get(name, 0)) for name in ("first", "count", "timed", "sum_us", "end", "wait_sum_us")
        )
        quantiles = [_number(us) for us in block["us"][1:]]
        if first + count <= self._seen:
            return
        self._seen = first + count
        self.steps += count
        self._times.add_block(timed, sum_us, quantiles)
        if "wait_sum_us" in block:
            self._wait_us = (self._wait_us or 0) + wait
        self.last_at = max(self.last_at or 0.0, float(end))

    @property
    def step_ms(self) -> float | None:
        """Return the median of the newest steps."""
        values = sorted(us for us, _ in self._recent) or sorted(us for us, _, _ in self._early or ())
        return values[len(values) // 2] / 1000.0 if values else None

    @property
    def median_ms(self) -> float | None:
        """Return the median of all steps, or of the newest if there are no others."""
        return self._times.quantile_ms(0.5) if self._times.count > RECENT else self.step_ms

    @property
    def gil_us(self) -> int | None:
        """Return the median time to get Python's GIL back."""
        return sorted(self._gil)[len(self._gil) // 2] if len(self._gil) >= _FEW_ITERATIONS else None

    @property
    def wait_share(self) -> float | None:
        return _share([(wait, us) for us, wait in self._recent if wait is not None])

    @property
    def comm_share(self) -> float | None:
        """Return the share of communication that does not overlap with computing.

        It is the median of the iterations that DDP measured. Each is divided by its own iteration, which the
        measurement makes longer, or by the median step if that is longer.
        """
        step = self.step_ms
        if not step or len(self._exposed) < _FEW_ITERATIONS:
            return None
        shares = sorted(exposed / max(1.0, whole, 1000.0 * step) for exposed, whole in self._exposed.values())
        return shares[len(shares) // 2]

    @property
    def all_ms(self) -> float | None:
        return self._times.sum_us / self._times.count / 1000.0 if self._times.count > 0 else None

    @property
    def p95_ms(self) -> float | None:
        return self._times.quantile_ms(0.95)

    @property
    def all_wait_share(self) -> float | None:
        whole = self._times.sum_us
        return None if self._wait_us is None or whole <= 0 else min(1.0, self._wait_us / whole)


def _number(value: Any) -> Any:
    """Return a number that a rank can measure. Raises `ValueError` for NaN, overflowing and all other values."""
    if not isinstance(value, (int, float)) or not 0 <= value < _MAX_NUMBER:
        raise ValueError("not a number of a record")
    return value


def _share(pairs: list[tuple[int, int]]) -> float | None:
    whole = sum(us for _, us in pairs)
    return min(1.0, sum(wait for wait, _ in pairs) / whole) if whole > 0 else None


def follow(folder: str, known: dict[int, RankSteps]) -> None:
    """Read all records of a directory. Add new ones to `known`."""
    for name in listed(folder):
        if name.isascii() and name.isdigit() and len(name) < 10 and int(name) not in known:
            known[int(name)] = RankSteps(os.path.join(folder, name))
    for record in known.values():
        record.look()
