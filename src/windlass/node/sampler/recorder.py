"""Record one rank's steps: one line of JSON per batch of steps, in a small file on the node.

The recorder runs in the user's process. It therefore needs only the standard library, costs microseconds per step and
never raises. One process at a time records for a rank: the first that takes a step. It holds a lock on the file. Each
line is written at once, and a torn line costs only itself. The size of the file is limited: old steps are folded into
quantiles.

`docs/reference/records.md` describes the lines.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time

TYPE_CHECKING = False  # not from `typing`, whose import costs milliseconds in every Python of a rank
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

VERSION = 1
FOLDER_VARIABLE = "WINDLASS_STEPS"
"""Directory of this node with one file per rank. Nothing is recorded if it is not set."""
FLUSH_S = 1.0
MAX_BYTES = 512 * 1024
KEPT_STEPS = 4096
"""Number of newest steps that folding keeps individually."""
BLOCK_STEPS = 256
MAX_BLOCKS = 512
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_SWITCH_AFTER = 32
"""After this many steps of another optimizer without one of the current optimizer, the other one counts."""
_NOBODY = object()
_PROGRAM = object()
shared: Recorder | None = None
"""The recorder of this process, if the start-up hook made one."""


class Recorder:
    """Records the steps of this process. With `path` None, nothing is recorded and every call is cheap."""

    def __init__(self, path: str | None, clock: Callable[[], float] = time.perf_counter) -> None:
        self.path = path
        self.on = path is not None
        self.steps = 0
        self.extra: list[Callable[[], dict[str, Any] | None]] = []
        """Sources of additional lines, called at most once per flush: DDP's figures, the allocator's."""
        self.after_step: Callable[[], None] | None = None
        """Called after each step that counts. Used by the profiler."""
        self._clock = clock
        self._file = -1
        self._pid = os.getpid()
        self._who: Any = _NOBODY
        self._other: Any = _NOBODY
        self._others = 0
        self._last = 0.0
        self._wait = 0.0
        self._loader = False
        self._next = 0.0
        self._first = 0
        self._us: list[int | None] = []
        self._wait_us: list[int] = []
        self._fetched: list[int] = []
        self._batches = 0
        self._saves: list[tuple[int, int]] = []

    def waited(self, seconds: float) -> None:
        """Record that the rank has waited so long for a batch.

        A batch without a step belongs to an evaluation, which reports about once a second that it still runs.
        """
        self._wait += seconds
        self._loader = True
        self._batches += 1
        if self._batches > 1 and self._clock() >= self._next:
            self.doing("data")

    def saved(self, seconds: float) -> None:
        """Record that the program has saved, and how long it took."""
        self._saves.append((len(self._us), int(seconds * 1e6)))

    def doing(self, what: str, file: str = "") -> None:
        """Record that the program waits for `data` or begins to `save`, with the file if it is known."""
        if self.on and self._file >= 0:
            self.flush()
        if self.on and self._file >= 0:
            line: dict[str, Any] = {"what": what, "at": round(time.time(), 3)}
            self._write({"doing": dict(line, file=file) if file else line})

    def step(self, who: Any = None) -> None:
        """Record that a step has ended.

        `who` distinguishes optimizers. The first one counts the steps. The steps of the others are parts of them.
        """
        if not self.on:
            return
        if who != self._who and not self._takes_over(who):
            return
        self._other = _NOBODY
        now = self._clock()
        self._us.append(int((now - self._last) * 1e6) if self._last else None)
        self._wait_us.append(int(self._wait * 1e6))
        self._fetched.append(self._batches)
        self._last = now
        self._wait = 0.0
        self._batches = 0
        self.steps += 1
        if now >= self._next:
            self.flush()
        if self.after_step is not None:
            self.after_step()

    def explicit(self) -> None:
        """Record a step that the program itself reports. From now on only such reports count."""
        if self._who is not _PROGRAM:
            self._who, self._last = _PROGRAM, 0.0
        self.step(_PROGRAM)

    def _takes_over(self, who: Any) -> bool:
        if self._who is _PROGRAM:
            return False
        if self._who is not _NOBODY:
            if who != self._other:
                self._other, self._others = who, 0
                return False
            self._others += 1
            if self._others < _SWITCH_AFTER:
                return False
        self._who, self._last = who, 0.0
        return True

    def flush(self) -> None:
        """Write the pending lines. An error ends the record, never the program."""
        self._next = self._clock() + FLUSH_S
        if not self.on or os.getpid() != self._pid:
            self.on = False
            return
        try:
            if self._file < 0 and not self._begin():
                self.on = False
                return
            self._write_steps()
            for ask in self.extra:
                line = ask()
                if line:
                    self._write(line)
            if os.fstat(self._file).st_size > MAX_BYTES:
                self._fold()
        except Exception:
            self.on = False

    def note(self, text: str) -> None:
        """Record a remark about the record itself."""
        self.extra.append(_once({"note": text}))

    def close(self) -> None:
        """End the record at the end of the program."""
        if self.on and self.steps and os.getpid() == self._pid:
            self.flush()
            if self.on:
                self._write({"end": {"at": round(time.time(), 3), "steps": self.steps}})

    def forget(self) -> None:
        """Stop recording in a forked child, because the file belongs to the parent."""
        self.on = False

    def _begin(self) -> bool:
        assert self.path is not None
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            return False
        self._file = file
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            os.write(file, b"\n")  # end the torn line of a process that was killed
        torch = sys.modules.get("torch")
        begin: dict[str, Any] = {"version": VERSION, "pid": self._pid, "at": round(time.time(), 3)}
        begin["torch"] = str(getattr(torch, "__version__", "")) if torch else ""
        self._write({"begin": begin})
        return True

    def _write_steps(self) -> None:
        if not self._us:
            return
        ago = self._clock() - self._last
        steps: dict[str, Any] = {"first": self._first, "end": round(time.time() - ago, 3), "us": self._us}
        if self._loader:
            steps["wait_us"] = self._wait_us
        if any(count > 1 for count in self._fetched):
            steps["fetched"] = self._fetched
        if self._saves:
            steps["save_us"] = [pair for pair in self._saves if pair[0] < len(self._us)]
        if (gil_us := _gil_us()) is not None:
            steps["gil_us"] = gil_us
        self._saves = [(0, us) for at, us in self._saves if at >= len(self._us)]
        self._first += len(self._us)
        self._us, self._wait_us, self._fetched = [], [], []
        self._write({"steps": steps})

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._file, _line_bytes(line))

    def _fold(self) -> None:
        """Rewrite the file with its older steps as quantiles. A reader finds either the old file or the new one."""
        assert self.path is not None
        with open(self.path, "rb") as old:
            lines = fold_lines(old.read().splitlines())
        partial = "%s.%d" % (self.path, self._pid)
        file = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        data = b"".join(_line_bytes(line) for line in lines)
        while data:
            data = data[os.write(file, data) :]
        os.rename(partial, self.path)
        os.close(self._file)
        self._file = file


def _gil_us() -> int | None:
    """Return how long this thread waits to get Python's GIL back after it releases it.

    Another thread that holds the GIL gives it back after `sys.getswitchinterval()`, 5 ms. Otherwise it is back in
    microseconds. Time in which the thread is ready but has no core does not count. None if the kernel does not
    report that time.
    """
    before = _run_delay_us()
    begin = time.perf_counter()
    time.sleep(0)
    us = (time.perf_counter() - begin) * 1e6
    after = _run_delay_us()
    return None if before is None or after is None else max(0, int(us - (after - before)))


def _run_delay_us() -> float | None:
    """Return how long this thread has waited for a core in total."""
    try:
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(file, 100).split()[1]) / 1e3
        finally:
            os.close(file)
    except (OSError, ValueError, IndexError):
        return None


def _line_bytes(line: dict[str, Any]) -> bytes:
    import json  # imported here because a Python that takes no step does not need it

    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _once(line: dict[str, Any]) -> Callable[[], dict[str, Any] | None]:
    left = [line]
    return lambda: left.pop() if left else None


# Folding. Readers of records also use it.


def parse_lines(raw: list[bytes]) -> tuple[list[dict[str, Any]], int]:
    """Return the lines of a record, and the number of unreadable lines."""
    from windlass.node.sys.reading import loads

    lines, torn = [], 0
    for text in raw:
        if not text.strip():
            continue
        try:
            line = loads(text)
        except ValueError:
            line = None
        if isinstance(line, dict):
            lines.append(line)
        else:
            torn += 1
    return lines, torn


def fold_lines(raw: list[bytes]) -> list[dict[str, Any]]:
    """Shorten a record: blocks of quantiles for all but the newest steps, and the newest of the other lines."""
    lines, _ = parse_lines(raw)
    kept: list[dict[str, Any]] = []
    newest = 0
    for line in reversed(lines):
        if "steps" in line and newest >= KEPT_STEPS:
            continue
        newest += len(line["steps"]["us"]) if "steps" in line else 0
        kept.append(line)
    kept.reverse()
    old = [line["steps"] for line in lines if "steps" in line and line not in kept]
    blocks = [line["folded"] for line in lines if "folded" in line] + _blocks(old)
    while len(blocks) > MAX_BLOCKS:
        blocks = [merge_blocks(blocks[i : i + 2]) for i in range(0, len(blocks), 2)]
    head = [line for line in kept if "begin" in line or "python" in line][-8:]
    rest = [line for line in kept if "steps" in line or "end" in line]
    last = {key: line for line in kept for key in line if key in ("ddp", "memory", "note", "nan")}
    return [*head, *({"folded": block} for block in blocks), *last.values(), *rest]


def _blocks(batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    group: list[dict[str, Any]] = []
    count = 0
    for batch in batches:
        if group and (count + len(batch["us"]) > BLOCK_STEPS or batch["first"] == 0):
            blocks.append(block_of(group))
            group, count = [], 0
        group.append(batch)
        count += len(batch["us"])
    return blocks + ([block_of(group)] if group else [])


def block_of(batches: list[dict[str, Any]]) -> dict[str, Any]:
    """Combine consecutive steps into one block. A program's first step has no duration and is only counted."""
    us = sorted(value for batch in batches for value in batch["us"] if value is not None)
    block: dict[str, Any] = {
        "first": batches[0]["first"],
        "count": sum(len(batch["us"]) for batch in batches),
        "begin": batches[0]["end"],
        "end": batches[-1]["end"],
        "timed": len(us),
        "sum_us": sum(us),
        "us": quantiles(us),
    }
    wait = sorted(value for batch in batches for value in batch.get("wait_us", ()))
    if wait:
        block["wait_sum_us"] = sum(wait)
        block["wait_us"] = quantiles(wait)
    return block


def merge_blocks(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge several blocks. Sums and extremes are exact. The quantiles between are weighted means."""
    if len(blocks) == 1:
        return blocks[0]
    merged = dict(blocks[0], end=blocks[-1]["end"])
    for name in ("count", "timed", "sum_us", "wait_sum_us"):
        if any(name in block for block in blocks):
            merged[name] = sum(block.get(name, 0) for block in blocks)
    for name in ("us", "wait_us"):
        known = [(block[name], max(1, block["timed"])) for block in blocks if block.get(name)]
        if known:
            total = sum(weight for _, weight in known)
            middle = [int(sum(q[i] * w for q, w in known) / total) for i in range(1, len(QUANTILES) - 1)]
            merged[name] = [min(q[0] for q, _ in known), *middle, max(q[-1] for q, _ in known)]
    return merged


def quantiles(values: list[int]) -> list[int]:
    """Return the quantiles of sorted values. Empty if there are no values."""
    return [values[min(len(values) - 1, int(q * len(values)))] for q in QUANTILES] if values else []


def rank_file(environ: Any = os.environ) -> str | None:
    """Return the file of this rank, from the launcher's environment and the rank that frameworks use."""
    folder, rank = environ.get(FOLDER_VARIABLE), environ.get("RANK") or environ.get("WINDLASS_RANK")
    return os.path.join(folder, rank) if folder and rank and rank.isdigit() and os.path.isdir(folder) else None
