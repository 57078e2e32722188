"""Staging as a service of the agent: copy sources of the shared file system to the node, without a mount.

The bytes are read from the shared file system once, travel down the trees of `push`, and are verified at every hop. A
dead neighbour costs time but no bytes. An incomplete copy has a name that no program reads. It gets its final name in
one step when it is complete (`places`).
"""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any

from windlass.node.agent.cache import reachable_hosts
from windlass.node.agent.host import AgentError, NodeContext, expand, say
from windlass.node.cache.roots import Root
from windlass.node.stage.images import end_mount, end_mounts, is_squashfs, start_mount, sweep_mounts
from windlass.node.stage.layout import Item, Layout, make_trees
from windlass.node.stage.places import Workplace, sweep_partial
from windlass.node.stage.push import Push, PushNode
from windlass.node.stage.push_server import Feeder
from windlass.node.stage.unpacking import Archive, archive_of, unpack
from windlass.node.stage.writing import Copy
from windlass.node.sys.folders import exposure
from windlass.node.wire.proof import Identity

_TELL_EVERY_S = 1.0
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def make(node: NodeContext, settings: dict[str, Any]) -> StageService:
    return StageService(node, settings)


class StageService:
    """`start` returns when all copies are complete on this node. The node then continues to feed others."""

    def __init__(self, node: NodeContext, settings: dict[str, Any]) -> None:
        self._node = node
        self._sources: list[dict[str, str]] = settings["sources"]
        self._to: str = settings["to"]
        self._extracts = bool(settings.get("extract"))
        self._shards = bool(settings.get("shard"))
        self._one_reader = bool(settings.get("one_reader"))
        self._per_node = bool(settings.get("per_node"))
        self._place = self._make_place()
        self._push = Push(self._place, self._write)
        self._feeder: Feeder | None = None
        self._layout: Layout | None = None
        self._copies: dict[int, Copy] = {}
        self._unpacked: dict[int, Archive] = {}
        self._mounts: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._archives = 0
        self._span = (0.0, 0.0)
        self._news: list[str] = []
        self._told_at = time.monotonic()
        self._stopped = False

    def _make_place(self) -> PushNode:
        number = str(self._node.number)
        roots = []
        for source in self._sources:
            real = source["real"].replace("{node}", number) if self._per_node else source["real"]
            roots.append(Root(os.fsencode(source["path"]), os.fsencode(real)))
        hosts = reachable_hosts(self._node.hosts, self._node.number)
        shape = make_trees(len(hosts), one_reader=self._one_reader)
        identity = Identity(self._node.key, self._node.run_id, "stage", self._node.number)
        return PushNode(identity, hosts, tuple(roots), shape)

    def start(self) -> None:
        target = expand(self._to).replace("{node}", str(self._node.number))
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        try:
            os.makedirs(target, exist_ok=True)
            sweep_mounts()
            sweep_partial(target)
        except OSError as error:
            raise AgentError("%s: %s" % (error.filename or target, error.strerror)) from error
        exposed = exposure(os.path.join(target, "any"))
        self._news += [exposed] if exposed else []
        before = {number: signal.signal(number, self._hear) for number in _STOPS}
        try:
            self._stage_all(target)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def news(self) -> list[str]:
        """Report which users could replace the staged files."""
        said, self._news = self._news, []
        return said

    def end(self) -> dict[str, Any]:
        if self._feeder is not None:
            self._feeder.close()
        self._push.close()
        for where, server in reversed(self._mounts):
            end_mount(where, server)
        end_mounts(self._node)
        used = resource.getrusage(resource.RUSAGE_SELF)
        below = resource.getrusage(resource.RUSAGE_CHILDREN)
        return {
            "files": sum(copy.files for copy in self._copies.values()) + self._archives,
            "bytes": self._push.bytes,
            "span": self._span,
            "cpu_s": round(used.ru_utime + used.ru_stime + below.ru_utime + below.ru_stime, 3),
            "fallbacks": self._push.fallbacks,
            "source_calls": self._push.source_calls,
            "source_bytes": self._push.source_bytes,
        }

    # All sources

    def _stage_all(self, target: str) -> None:
        began = time.monotonic()
        place = self._place
        if len(place.hosts) > 1:
            self._feeder = Feeder(place, self._push, self._reread)
        layout = self._push.learn(self._tick)
        sources: Sequence[int] = range(len(self._sources))
        if self._shards:
            items = share(layout.items, place.number, len(place.hosts))
            layout, sources = Layout(items, 1), sorted({item.source for item in items})
        self._layout = layout
        if self._extracts:
            tops = [item.source for item in layout.items if not item.path and item.is_file]
            known = {source: archive_of(self._name(source)) for source in tops}
            self._unpacked = {source: archive for source, archive in known.items() if archive is not None}
        self._check_room(target, layout)
        with Workplace(target) as work:
            for source in sources:
                self._prepare(layout, source, work)
            self._push.begin(layout, alone=self._shards, kept_for_late=bool(self._unpacked) and not self._shards)
            for source in sources:
                self._finish(layout, source, work, target)
        self._span = (round(began, 3), round(time.monotonic(), 3))
        say(node=self._node.number, staged=self._push.bytes, of=layout.total)

    def _check_room(self, target: str, layout: Layout) -> None:
        """Check the free space before the transfer starts. An error now is better than one after an hour."""
        seen = os.statvfs(target)
        room = seen.f_bavail * seen.f_frsize
        compressed = {source for source, archive in self._unpacked.items() if archive.compressed}
        kept = sum(i.pin.size for i in layout.items if i.is_file and i.source not in compressed)
        if kept > room:
            text = "%s has room for %.1f MB, what is staged takes %.1f MB"
            raise AgentError(text % (target, room / 1e6, kept / 1e6))

    def _name(self, source: int) -> str:
        return os.path.basename(self._sources[source]["path"])

    def _prepare(self, layout: Layout, source: int, work: Workplace) -> None:
        if source in self._unpacked:
            os.mkdir(str(source), dir_fd=work.fd)
        else:
            self._copies[source] = Copy(layout.items, source, work.fd, str(source), layout.block_bytes)
            self._copies[source].begin()

    def _finish(self, layout: Layout, source: int, work: Workplace, target: str) -> None:
        blocks = [index for index, block in enumerate(layout.blocks) if block.source == source]
        name = self._name(source)
        if source in self._copies:
            self._push.wait_written(source, len(blocks), self._tick)
            self._copies[source].settle()
            if count := self._copies[source].dropped_bits:
                text = "%s: %d copies have no setuid, setgid, group or world write permission, which their sources have"
                self._news.append(text % (name, count))
            final = name
        else:
            folder = os.open(str(source), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=work.fd)
            try:
                unpack(self._ordered(blocks), folder, name)
            finally:
                os.close(folder)
            self._archives += 1
            final = self._unpacked[source].stem
        work.put_in_place(str(source), final)
        if source in self._copies:
            self._copies[source].moved(work.target_fd, final)
        image = os.path.join(target, final)
        if self._extracts and is_squashfs(image):
            where = os.path.join(target, os.path.splitext(name)[0])
            self._mounts.append((where, start_mount(self._node, image, where)))

    def _ordered(self, blocks: Sequence[int]) -> Iterator[memoryview]:
        for index in blocks:
            yield self._push.take(index, self._tick)
            self._push.used(index)
            self._tick()

    def _write(self, index: int, data: memoryview) -> bool:
        assert self._layout is not None
        block = self._layout.blocks[index]
        copy = self._copies.get(block.source)
        if copy is None:
            return False
        copy.write(block, data)
        return True

    def _reread(self, index: int, target: memoryview) -> bool:
        assert self._layout is not None
        block = self._layout.blocks[index]
        copy = self._copies.get(block.source)
        return copy is not None and copy.read(block, target)

    # Progress for the waiting run

    def _hear(self, *_: Any) -> None:
        self._stopped = True

    def _tick(self) -> None:
        """Report the progress. Raises `AgentError` if the run no longer needs the copy."""
        if self._stopped or (self._node.follows_stdin and input_ended()):
            raise AgentError("stopped before it was complete")
        now = time.monotonic()
        if now - self._told_at > _TELL_EVERY_S and self._layout is not None:
            self._told_at = now
            say(node=self._node.number, staged=self._push.bytes, of=self._layout.total)


def input_ended() -> bool:
    """Return whether the parent process has closed our standard input. Does not consume its remaining bytes."""
    poll = select.poll()
    poll.register(0, 0)
    return any(events & select.POLLHUP for _, events in poll.poll(0))


def share(items: Sequence[Item], node: int, nodes: int) -> list[Item]:
    """Return the share of a node: every directory and link, and every n-th file. Also every n-th file source."""
    sources = {item.source: item for item in items if not item.path}
    mine = []
    count = 0
    for item in items:
        if not sources[item.source].is_folder:
            if item.source % nodes == node:
                mine.append(item)
        elif item.is_file:
            if count % nodes == node:
                mine.append(item)
            count += 1
        else:
            mine.append(item)
    return mine
