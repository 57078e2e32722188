"""The blocks of one stripe on one node, in order: a window in memory, and the progress of each reader.

A thread that fills the row waits while the window is full. A slow disk or a slow child therefore slows down its parent
and needs no additional memory. One or more threads fill, any number take.
"""

from __future__ import annotations

import threading
import time

_LOOK_EVERY_S = 0.5


class BlockBuffer:
    """A block in memory."""

    __slots__ = ("_memory", "digest", "length", "used")

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self.length = 0
        self.digest = b""
        self.used = False

    @property
    def memory(self) -> memoryview:
        return self._memory

    @property
    def data(self) -> memoryview:
        return self._memory[: self.length]


class Cursor:
    """A reader that takes block after block. `behind`: its next block is no longer in the window."""

    __slots__ = ("behind", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.behind = True


class StripeWindow:
    """The blocks of one stripe.

    `awaited`: children that will connect. Their blocks are kept for them until `patience_s` have passed. Blocks stay as
    long as their memory is not needed, so a child that is a little late finds all of them.
    """

    def __init__(self, count: int, block_bytes: int, window: int, *, awaited: int = 0, patience_s: float = 0.0) -> None:
        self.count = count
        self.first = 0
        self.arrived = 0
        self.digests: list[bytes] = []
        self._block_bytes = block_bytes
        self._begun = 0
        self._slots: dict[int, BlockBuffer] = {}
        self._free: list[BlockBuffer] = []
        self._unmade = window
        self._cursors: set[Cursor] = set()
        self._awaited = awaited
        self._callers: set[int] = set()
        self._patient_until = time.monotonic() + patience_s
        self._changed = threading.Condition()
        self._closed = False

    # Filling

    def begin(self) -> tuple[int, BlockBuffer] | None:
        """Return the next position to fill and its memory, when there is room. None if all positions are begun."""
        with self._changed:
            while not self._closed and self._begun < self.count:
                slot = self._spare()
                if slot is not None:
                    self._begun += 1
                    return self._begun - 1, slot
                self._changed.wait(_LOOK_EVERY_S)
            return None

    def undo(self, slot: BlockBuffer) -> None:
        """Give back the last begun position, which was not filled. Only for a single filling thread."""
        with self._changed:
            self._begun -= 1
            self._free.append(slot)

    def fill(self, position: int, slot: BlockBuffer, length: int, digest: bytes) -> bool:
        """Store a block. Waits for the blocks before it. Return False if the row was closed first."""
        slot.length, slot.digest, slot.used = length, digest, False
        with self._changed:
            self._changed.wait_for(lambda: self.arrived == position or self._closed)
            if self._closed:
                return False
            self._slots[position] = slot
            self.digests.append(digest)
            self.arrived += 1
            self._changed.notify_all()
            return True

    def _spare(self) -> BlockBuffer | None:
        if self._free:
            return self._free.pop()
        if self._unmade:
            self._unmade -= 1
            return BlockBuffer(memoryview(bytearray(self._block_bytes)))
        if self.first == self.arrived or not self._may_go():
            return None
        self.first += 1
        return self._slots.pop(self.first - 1)

    def _may_go(self) -> bool:
        """Return whether the first block of the window is no longer needed."""
        if not self._slots[self.first].used or any(cursor.position <= self.first for cursor in self._cursors):
            return False
        return len(self._callers) >= self._awaited or time.monotonic() > self._patient_until

    # Taking

    def take(self, position: int, timeout_s: float) -> BlockBuffer | None:
        """Return the block for use on this node, before `used`. None if it has not arrived yet."""
        with self._changed:
            self._changed.wait_for(lambda: self.arrived > position or self._closed, timeout_s)
            return self._slots.get(position)

    def used(self, position: int) -> None:
        """Record that only children may still need the block."""
        with self._changed:
            self._slots[position].used = True
            self._changed.notify_all()

    def join(self, position: int, caller: int) -> Cursor:
        """Return a cursor for a child that needs all blocks from `position` on."""
        cursor = Cursor(position)
        with self._changed:
            self._callers.add(caller)
            self._look(cursor)
        return cursor

    def wait(self, cursor: Cursor, timeout_s: float) -> BlockBuffer | None:
        """Return the block at the cursor. None if it has not arrived, or if the cursor is behind the window."""
        with self._changed:
            self._look(cursor)
            if cursor.behind:
                return None
            self._changed.wait_for(lambda: self.arrived > cursor.position or self._closed, timeout_s)
            return self._slots.get(cursor.position)

    def step(self, cursor: Cursor) -> None:
        """Move the cursor past its block."""
        with self._changed:
            cursor.position += 1
            self._changed.notify_all()

    def leave(self, cursor: Cursor) -> None:
        with self._changed:
            self._cursors.discard(cursor)
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _look(self, cursor: Cursor) -> None:
        if cursor.behind and cursor.position >= self.first:
            cursor.behind = False
            self._cursors.add(cursor)
