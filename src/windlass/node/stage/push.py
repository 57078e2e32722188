"""Push staged blocks through trees: every node receives each block once, verifies it, and forwards it.

There are a few trees (stripes), each a rotation of the others. Each has one reader of the shared file system. A
connection carries one stripe from a parent to a child. If a parent is silent, dead or sends wrong bytes, the child
continues with the next ancestor from its current block. If no ancestor is left, the child reads the shared file system.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import random
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from windlass.node.agent.host import AgentError
from windlass.node.cache.keys import BadKeyError, chunk_key
from windlass.node.cache.limits import NodeHealth, TokenBucket, fallback_jitter_s
from windlass.node.cache.roots import Root
from windlass.node.cache.source import Source
from windlass.node.stage.layout import Layout, LayoutError, PushTrees, parse_items, survey
from windlass.node.stage.push_client import Caller, FailedError, MessageKind, Patience, PushReader, Tick
from windlass.node.stage.window import BlockBuffer, StripeWindow
from windlass.node.wire.proof import Identity, ProtocolError

_WINDOW_BYTES = 128 << 20
_SMALLEST_WINDOW = 6
_READERS = 4
_WRITERS = 2
_FALLBACKS_PER_S = 50.0
_STALLED_S = 120.0


class PushNode(NamedTuple):
    """This node among the others."""

    identity: Identity
    hosts: tuple[str, ...]
    roots: tuple[Root, ...]
    shape: PushTrees
    patience: Patience = Patience()

    @property
    def number(self) -> int:
        return self.identity.node


class Push:
    """The push on one node.

    Several threads call `write(index, data)` for every block as it arrives. It returns False for a block that `take`
    uses later, in order.
    """

    def __init__(self, place: PushNode, write: Callable[[int, memoryview], bool]) -> None:
        self._place = place
        self._write = write
        self._health = NodeHealth()
        self._caller = Caller(place.identity, place.hosts, place.patience)
        self._bucket = TokenBucket(_FALLBACKS_PER_S, _FALLBACKS_PER_S)
        self._arrivals: queue.SimpleQueue[tuple[StripeWindow, int, int, BlockBuffer] | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._lock = threading.Condition()
        self._written: dict[int, int] = {}
        self.error = ""
        self.bytes = 0
        self.fallbacks = 0
        self.layout: Layout | None = None
        self.rows: list[StripeWindow] = []
        self._survey = self._source = Source(place.roots, 0)

    @property
    def source_calls(self) -> int:
        """Return the number of calls of this node to the shared file system."""
        return self._survey.calls + (self._source.calls if self._source is not self._survey else 0)

    @property
    def source_bytes(self) -> int:
        return self._source.bytes

    # The layout

    def learn(self, tick: Tick) -> Layout:
        """Return the layout. The first node makes it, the others receive it. Raises `OSError`, `AgentError`."""
        shape = self._place.shape
        way = shape.route(self._place.number, 0)
        for node in way:
            with contextlib.suppress(OSError, ProtocolError, LayoutError), self._caller.call(node, tick) as reader:
                reader.ask(MessageKind.LAYOUT, 0, 0)
                items = parse_items(reader.whole())
                if any(item.source >= len(self._place.roots) for item in items):
                    raise LayoutError("a layout of other sources")
                return self._learned(Layout(items, shape.stripes))
        if way:
            self._stop.wait(fallback_jitter_s(len(self._place.hosts), random.Random(os.urandom(8))))
            self.fallbacks += 1
        sources = [(root.view, root.real) for root in self._place.roots]
        return self._learned(Layout(survey(sources, self._survey.read), shape.stripes))

    def _learned(self, layout: Layout) -> Layout:
        with self._lock:
            self.layout = layout
            self._lock.notify_all()
        return layout

    def wait_layout(self, timeout_s: float) -> Layout | None:
        with self._lock:
            self._lock.wait_for(lambda: self.layout is not None, timeout_s)
            return self.layout

    # Blocks

    def begin(self, layout: Layout, *, alone: bool = False, kept_for_late: bool = False) -> None:
        """Start to fill the rows.

        `alone`: read everything from the shared file system and nothing from other nodes. `kept_for_late`: blocks
        cannot be read again after use, so they stay in memory for all children.
        """
        self._source = Source(self._place.roots, layout.block_bytes)  # the cut is known only now
        self._blocks_of = layout
        window = max(_SMALLEST_WINDOW, _WINDOW_BYTES // layout.block_bytes // layout.stripes)
        rows = [self._row(layout, stripe, window, kept_for_late) for stripe in range(layout.stripes)]
        for stripe, row in enumerate(rows):
            way = () if alone else self._place.shape.route(self._place.number, stripe)
            for _ in range(1 if way else _READERS):
                work = self._follow if way else self._read
                self._thread("stripe-%d" % stripe, work, layout, stripe, row, way)
        for number in range(_WRITERS):
            self._thread("write-%d" % number, self._write_arrivals)
        with self._lock:
            self.rows = rows
            self._lock.notify_all()

    def _row(self, layout: Layout, stripe: int, window: int, kept_for_late: bool) -> StripeWindow:
        awaited = len(self._place.shape.children(self._place.number, stripe)) if kept_for_late else 0
        count = layout.count(stripe)
        return StripeWindow(count, layout.block_bytes, window, awaited=awaited, patience_s=self._place.patience.late_s)

    def take(self, index: int, tick: Tick) -> memoryview:
        """Return the bytes of a block that `write` did not use. `used` releases them. Raises `AgentError`."""
        stripe, position = self._blocks_of.place(index)
        deadline = time.monotonic() + _STALLED_S
        while True:
            slot = self.rows[stripe].take(position, 0.25)
            self.check()
            if slot is not None:
                return slot.data
            if time.monotonic() > deadline:
                raise AgentError("nothing came for %.0f s" % _STALLED_S)
            tick()

    def used(self, index: int) -> None:
        stripe, position = self._blocks_of.place(index)
        self._count(index)
        self.rows[stripe].used(position)

    def wait_written(self, source: int, count: int, tick: Tick) -> None:
        """Wait until `count` blocks of a source are written here.

        Raises `AgentError` if a block is not available or there is no progress.
        """
        moved, seen = time.monotonic(), -1
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._written.get(source, 0) >= count or bool(self.error), 0.25)
                written = self._written.get(source, 0)
            self.check()
            tick()
            if written >= count:
                return
            if written != seen:
                moved, seen = time.monotonic(), written
            elif time.monotonic() - moved > _STALLED_S:
                raise AgentError("nothing came for %.0f s" % _STALLED_S)

    def check(self) -> None:
        if self.error:
            raise AgentError(self.error)

    def fail(self, text: str) -> None:
        """Fail on this node and, through it, on the nodes below."""
        with self._lock:
            self.error = self.error or text
            self._lock.notify_all()
        for row in self.rows:
            row.close()

    def close(self) -> None:
        self._stop.set()
        self._caller.close()
        for row in self.rows:
            row.close()
        for _ in range(_WRITERS):
            self._arrivals.put(None)
        self._source.close()
        self._survey.close()

    # Private methods

    def _thread(self, name: str, work: Callable[..., None], *arguments: object) -> None:
        def run() -> None:
            try:
                work(*arguments)
            except FailedError as error:
                self.fail(str(error))
            except OSError as error:
                name = os.fsdecode(error.filename) if error.filename else ""
                self.fail("%s%s" % (name + ": " if name else "", error.strerror or error))
            except Exception as error:  # the waiting run must receive the error of this node
                self.fail("%s: %s" % (type(error).__name__, error))

        threading.Thread(target=run, name=name, daemon=True).start()

    def _read(self, layout: Layout, stripe: int, row: StripeWindow, _way: tuple[int, ...]) -> None:
        """Read a stripe as its reader of the shared file system. Several threads run this."""
        while True:
            begun = row.begin()
            if begun is None:
                return
            self._read_into(layout, stripe, row, *begun)

    def _follow(self, layout: Layout, stripe: int, row: StripeWindow, way: tuple[int, ...]) -> None:
        fallen = False
        while row.arrived < row.count and not self._stop.is_set() and not self.error:
            before = row.arrived
            node = next((node for node in way if self._health.usable(node)), None)
            if node is not None:
                self._receive(layout, stripe, row, node)
                if row.arrived > before:
                    self._health.answered(node)
                if row.arrived < row.count:
                    self._health.failed(node)
                continue
            if not fallen:
                fallen = True
                self._stop.wait(fallback_jitter_s(len(self._place.hosts), random.Random(os.urandom(8))))
            self._fall_back(layout, stripe, row)

    def _fall_back(self, layout: Layout, stripe: int, row: StripeWindow) -> None:
        """Read one block from the shared file system because no node can send it."""
        begun = row.begin()
        if begun is None:
            return
        self.fallbacks += 1
        self._stop.wait(self._bucket.take())
        self._read_into(layout, stripe, row, *begun)

    def _read_into(self, layout: Layout, stripe: int, row: StripeWindow, position: int, slot: BlockBuffer) -> None:
        """Read a block from the shared file system into a slot of the row."""
        index = layout.index(stripe, position)
        length = self._read_block(layout, index, slot.memory)
        self._land(row, index, position, slot, length, layout.digest(index, slot.memory[:length]))

    def _receive(self, layout: Layout, stripe: int, row: StripeWindow, node: int) -> None:
        """Receive blocks from one node until it ends or is lost.

        Raises `FailedError` if the node reports that no block is available.
        """
        with contextlib.ExitStack() as stack:
            try:
                reader = stack.enter_context(self._caller.call(node))
                reader.ask(MessageKind.STRIPE, stripe, row.arrived)
            except (OSError, ProtocolError):
                return
            while True:
                begun = row.begin()
                if begun is None:
                    return
                position, slot = begun
                index = layout.index(stripe, position)
                length = layout.blocks[index].length
                digest = self._take_block(reader, layout, index, slot.memory[:length], node)
                if digest is None:
                    row.undo(slot)
                    return
                self._land(row, index, position, slot, length, digest)

    def _take_block(
        self, reader: PushReader, layout: Layout, index: int, target: memoryview, node: int
    ) -> bytes | None:
        """Receive a block and its digest from a parent. None if it did not arrive or is wrong."""
        try:
            digest = reader.block(index, target)
        except (OSError, ProtocolError):
            return None
        if layout.digest(index, target) != digest:
            self._health.sent_wrong_bytes(node)
            return None
        return digest

    def _land(
        self, row: StripeWindow, index: int, position: int, slot: BlockBuffer, length: int, digest: bytes
    ) -> None:
        """Store a verified block: children may take it, and this node writes it."""
        if row.fill(position, slot, length, digest):
            self._arrivals.put((row, position, index, slot))

    def _write_arrivals(self) -> None:
        """Write blocks on separate threads: during a write the next block is received and verified."""
        while True:
            arrival = self._arrivals.get()
            if arrival is None:
                return
            row, position, index, slot = arrival
            if self._write(index, slot.data):
                self._count(index)
                row.used(position)

    def _count(self, index: int) -> None:
        block = self._blocks_of.blocks[index]
        with self._lock:
            self._written[block.source] = self._written.get(block.source, 0) + 1
            self.bytes += block.length
            self._lock.notify_all()

    def _read_block(self, layout: Layout, index: int, target: memoryview) -> int:
        """Read a block from the shared file system. Raises `OSError` if a file differs from the layout."""
        block = layout.blocks[index]
        for part in block.parts:
            item = layout.items[part.item]
            view = self._place.roots[item.source].view
            path = view + b"/" + item.path if item.path else view
            try:
                data = self._source.read(chunk_key(path, item.pin, part.chunk))
            except BadKeyError as error:
                raise OSError(errno.EINVAL, str(error)) from error
            except OSError as error:
                if error.filename is None:
                    raise
                raise OSError(error.errno, error.strerror, path) from error  # with the full path of the source
            target[part.start : part.start + part.length] = data
        return block.length
