"""Figures that the rules need and that only all samples of a job together show. Pure."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Sequence

import msgspec

from windlass.diagnose.watch.figures import ENOUGH_STEPS, own_ms, slow_ranks
from windlass.diagnose.watch.job import Job

_RECENT = 30
"""Number of newest samples that a running job compares. In a small job they cover one minute."""
_SERIES = 128
_LEAST_SAMPLES = 5
"""Minimum for a mean. A device that lowers its clock for a moment could do so in one of two samples."""
_PARTS, _PART_SAMPLES = 6, 2
_GROWN, _GROWN_BYTES, _STEADY = 0.05, 128 << 20, 0.5
"""A leak grows by more than a twentieth and by more than allocators keep, and its speed does not fall by half."""
_OWN_SHARE = 0.9
"""Share of a node's cores. Ranks that use this share themselves wait for each other."""


class Past:
    """Figures over all samples: slow ranks, busy devices, growth of memory, and how long ranks waited for a core.

    Only samples in which ranks took steps count."""

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}
        self._all: Counter[int] = Counter()
        self._compared = self._uneven = 0
        self._recent: deque[tuple[int, ...]] = deque(maxlen=_RECENT)
        self._busy: dict[tuple[int, int], list[float]] = {}
        self._throttled: dict[tuple[int, int], list[float]] = {}
        self._delays: dict[int, list[float]] = {}
        self._peak: dict[int, int] = {}
        self._memory: dict[int, GrowingSeries] = {}

    def add(self, job: Job) -> None:
        moved = [rank for rank in job.ranks if rank.steps > self._steps.get(rank.rank, 0) and rank.step_ms is not None]
        self._steps = {rank.rank: rank.steps for rank in job.ranks}
        for number, node in enumerate(job.nodes):
            self._peak[number] = max(self._peak.get(number, 0), node.memory_bytes or 0)
        if not moved:
            return
        for device in job.devices:
            key = (device.node, device.index)
            if device.busy is not None:
                _add(self._busy.setdefault(key, [0, 0]), device.busy)
            if device.throttled is not None:
                _add(self._throttled.setdefault(key, [0, 0]), device.throttled)
        for number, node in enumerate(job.nodes):
            if node.memory_bytes is not None:
                self._memory.setdefault(number, GrowingSeries()).add(job.at, node.memory_bytes)
        used = [0.0] * len(job.nodes)
        for rank in job.ranks:
            used[rank.node] += rank.cpu or 0.0
        for rank in moved:
            if rank.run_delay is not None:
                own = job.cores and used[rank.node] >= _OWN_SHARE * job.cores
                _add(self._delays.setdefault(rank.rank, [0, 0]), 0.0 if own else rank.run_delay)
        steady = [rank for rank in moved if rank.steps >= ENOUGH_STEPS]
        if len(steady) > 1:
            slow = slow_ranks({rank.rank: own_ms(rank) for rank in steady})
            self._recent.append(slow)
            self._all.update(slow)
            self._compared += 1
            self._uneven += bool(slow)

    def added_to(self, job: Job) -> Job:
        """The job with these figures. Uses the newest samples of a running job, and all samples of an ended job."""
        times = self._all if job.ended else Counter(rank for slow in self._recent for rank in slow)
        compared = self._compared if job.ended else len(self._recent)
        replace = msgspec.structs.replace
        return replace(
            job,
            compared=compared,
            uneven=self._uneven if job.ended else sum(map(bool, self._recent)),
            nodes=tuple(
                replace(
                    node,
                    memory_peak_bytes=self._peak.get(number) or None,
                    growth_bytes_s=self._memory[number].growth() if number in self._memory else None,
                )
                for number, node in enumerate(job.nodes)
            ),
            devices=tuple(
                replace(
                    device,
                    worked=_mean_of(self._busy.get((device.node, device.index))),
                    throttled_share=_mean_of(self._throttled.get((device.node, device.index))),
                )
                for device in job.devices
            ),
            ranks=tuple(
                replace(
                    rank,
                    slow_share=_short(times[rank.rank] / compared) if compared else None,
                    run_delay=_mean_of(self._delays.get(rank.rank)),
                )
                for rank in job.ranks
            ),
        )


class GrowingSeries:
    """A bounded series of a node's memory. When it is full, every second value is removed."""

    def __init__(self) -> None:
        self._values: list[tuple[float, int]] = []
        self._every = self._skipped = 0

    def add(self, at: float, value: int) -> None:
        self._skipped += 1
        if self._skipped <= self._every:
            return
        self._skipped = 0
        self._values.append((at, value))
        if len(self._values) >= _SERIES:
            self._values = self._values[::2]
            self._every = 2 * self._every + 1

    def growth(self) -> float | None:
        """Bytes per second if the memory grows continuously, otherwise None.

        A model has its memory after its first steps, so the first part is ignored. Memory leaks if it grows in each
        sixth of the rest, and as fast in the second half as in the first. A cache that fills grows more slowly over
        time."""
        size = len(self._values) // (_PARTS + 1)
        if size < _PART_SAMPLES:
            return None
        parts = [self._values[n * size : (n + 1) * size] for n in range(1, _PARTS + 1)]
        means = [sum(value for _, value in part) / size for part in parts]
        rises = [later - earlier for earlier, later in itertools.pairwise(means)]
        grown, seconds = means[-1] - means[0], parts[-1][-1][0] - parts[0][0][0]
        slower = rises[-1] + rises[-2] < _STEADY * (rises[0] + rises[1])
        if min(rises) <= 0 or slower or seconds <= 0 or grown < max(_GROWN_BYTES, _GROWN * means[0]):
            return None
        return grown / seconds


def _add(sums: list[float], value: float) -> None:
    sums[0] += value
    sums[1] += 1


def _mean_of(sums: Sequence[float] | None) -> float | None:
    return _short(sums[0] / sums[1]) if sums and sums[1] >= _LEAST_SAMPLES else None


def _short(value: float) -> float:
    return float(f"{value:.4g}")
