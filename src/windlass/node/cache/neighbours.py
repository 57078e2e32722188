"""Chunks to read with a requested chunk: a few around it, and many ahead of a sweep through the file.

The loader runs the initializers of a library one after the other. The pages that they touch are in link order. So the
accesses form a sweep through the file with gaps, forwards or (in the libraries of CUDA) backwards. Often there are two
or three sweeps at a time (code, constants). A read within a gap of the end of the last window continues the sweep with
a window twice as long.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

from windlass.node.cache.keys import chunk_count, chunk_index, file_size

RUN_CHUNKS = 4  # library chunks that are read together: neighbours of a requested chunk are mostly needed too
GAP_CHUNKS = 8
FIRST_WINDOW, LAST_WINDOW = 8, 32
_SWEEPS_EACH = 6
_FILES = 256


class FileSweep(NamedTuple):
    """A sweep through a file. The chunks from `start` to `end` are in transit.

    `window` is the size of the last request. It is negative for a backwards sweep.
    """

    start: int
    end: int
    window: int


class Neighbours:
    """The sweeps of the files that are read. Thread-safe. It only decides and reads nothing."""

    def __init__(self, chunk_bytes: int, limit_bytes: int) -> None:
        """`limit_bytes` limits all windows together. The group of a chunk is always read."""
        self._chunk_bytes = chunk_bytes
        self._left = limit_bytes
        self._lock = threading.Lock()
        self._files: OrderedDict[bytes, list[FileSweep]] = OrderedDict()

    def of(self, key: bytes) -> range:
        """Return the numbers of the chunks to read after the chunk of `key`, which may be among them."""
        index = chunk_index(key)
        count = chunk_count(file_size(key), self._chunk_bytes)
        with self._lock:
            sweeps = self._files.setdefault(key[5:], [])
            self._files.move_to_end(key[5:])
            if len(self._files) > _FILES:
                self._files.popitem(last=False)
            found = next((s for s in sweeps if s.start - GAP_CHUNKS <= index < s.end + GAP_CHUNKS), None)
            if found is None:
                group = index - index % RUN_CHUNKS
                sweep = FileSweep(group, min(group + RUN_CHUNKS, count), 0)
                wanted = range(sweep.start, sweep.end)
            elif found.start <= index < found.end:
                return range(0)  # in transit already
            else:
                sweeps.remove(found)
                window = self._window(found, forwards=index >= found.end)
                if window > 0:
                    wanted = range(index + 1, min(index + 1 + window, count))
                    sweep = FileSweep(found.start, max(index + 1, wanted.stop), window)
                else:
                    wanted = range(max(0, index + window), index)
                    sweep = FileSweep(wanted.start, found.end, window)
            sweeps.insert(0, sweep)
            del sweeps[_SWEEPS_EACH:]
        return wanted

    def _window(self, sweep: FileSweep, *, forwards: bool) -> int:
        """Return twice the last window if the sweep continues in its direction. The value is negative for backwards."""
        goes_on = sweep.window > 0 if forwards else sweep.window < 0
        window = min(LAST_WINDOW, max(FIRST_WINDOW, 2 * abs(sweep.window) if goes_on else 0))
        if self._left < window * self._chunk_bytes:
            window = RUN_CHUNKS
        else:
            self._left -= window * self._chunk_bytes
        return window if forwards else -window
