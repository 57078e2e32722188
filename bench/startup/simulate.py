"""What start-up costs at sizes that nobody can measure here: discrete events, pure, seeded.

Three ways to start are played through. *Direct*: every rank asks the shared file system. *Copper-like*: whole files,
store and forward down a tree, no caching in the kernel, so every rank of a node asks the node's daemon for everything;
files above a limit bypass the tree. *windlass*: directories and chunks down a tree, asked for (without a trace) or
streamed ahead (with one), kernel caches on, so only the first rank of a node pays; what each stage of that costs is
measured (`measured.StageCosts`), and not assumed.

The constants are assumptions with a low and a high end; a result is a range over draws from them and never one number.
`docs/explanation/start-up-simulated.md` says where each comes from.
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from startup.measured import StageCosts
from windlass.node.cache.config import TREE_CHILDREN

Way = Literal["direct", "copper", "windlass", "windlass+trace"]
WAYS: tuple[Way, ...] = ("direct", "copper", "windlass", "windlass+trace")
FANOUT = TREE_CHILDREN
"""Of a node in the cache's tree of many nodes; the few that form a chain are measured, not simulated."""
COPPER_FANOUT = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """What one import asks for. Defaults: `import torch` of a GPU build with 42,000 files, as published for Aurora as
    far as there are figures (calls, touched files); the rest are assumptions in the proportions of the CPU build."""

    calls: int = 25_000
    """Calls that one rank makes of a file system when it starts cold."""
    calls_again: int = 25_000
    """Calls of a further rank on the node."""
    files: int = 1_982
    bytes: int = 300_000_000
    file_bytes: int = 2_000_000_000
    """Size of the touched files as wholes: what moves where only whole files can."""
    bypass_bytes: int = 1_600_000_000
    """Part of `file_bytes` in files above the limit beyond which a whole-file cache steps aside."""
    cpu_s: float = 6.0
    """What the import costs where every byte is in memory, with all ranks of the node at once."""


CPU_BUILD = Program(
    calls=9_100,
    calls_again=6_900,
    files=850,
    bytes=100_000_000,
    file_bytes=524_000_000,
    bypass_bytes=400_000_000,
    cpu_s=2.0,
)
"""`import torch` of the CPU build, as the shared file system of `python bench/start.py` counts it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """An assumption: a value between two ends, drawn evenly on a logarithmic scale."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        return math.sqrt(self.low * self.high)

    def draw(self, chance: random.Random) -> float:
        return math.exp(chance.uniform(math.log(self.low), math.log(self.high)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Assumptions about the machine, each with its ends."""

    metadata_per_s: Range = Range(low=1.3e6, high=2.7e6)
    """Calls a second that all metadata servers answer together. What the published times from 1,024 nodes on imply."""
    client_per_s: Range = Range(low=2.5e3, high=5.0e3)
    """Calls a second that one node's client gets answered, for all of its ranks together. What the published times
    below 1,024 nodes imply, which do not depend on the number of nodes."""
    call_s: Range = Range(low=0.15e-3, high=0.5e-3)
    """One call of an idle shared file system, seen from a node."""
    shared_bytes_per_s: Range = Range(low=50e9, high=400e9)
    """Data from the shared file system to all nodes together, for files that all nodes read."""
    node_bytes_per_s: Range = Range(low=1.0e9, high=3.0e9)
    """From the shared file system to one node."""
    link_bytes_per_s: Range = Range(low=1.0e9, high=5.0e9)
    """From one node to another, through the sockets of one process."""
    hop_s: Range = Range(low=0.1e-3, high=0.4e-3)
    """One question and answer between two nodes, daemons included."""
    rpc_s: Range = Range(low=0.4e-3, high=0.8e-3)
    """One call that a daemon without kernel caching answers, from a rank on the same node."""
    jitter: Range = Range(low=1.0, high=1.05)
    """How much longer the slowest of many nodes takes than a usual one, per factor of ten in nodes."""
    core: Range = Range(low=0.7, high=1.5)
    """Seconds of the cache's own stages, against the machine on which they were measured."""
    many_ranks: Range = Range(low=1.0, high=3.0)
    """Import where every byte is in memory, with all ranks of a node at once, against one rank alone."""
    fabric_s: Range = Range(low=0.02e-3, high=0.1e-3)
    """A question and its answer between two nodes through sockets, without the daemons at its ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """One set of values for all assumptions."""

    metadata_per_s: float
    client_per_s: float
    call_s: float
    shared_bytes_per_s: float
    node_bytes_per_s: float
    link_bytes_per_s: float
    hop_s: float
    rpc_s: float
    jitter: float
    core: float
    many_ranks: float
    fabric_s: float


def draw(machine: Machine, chance: random.Random) -> Draw:
    return Draw(**{name: getattr(machine, name).draw(chance) for name in Draw.__slots__})


class Events:
    """The clock: things happen in the order of their times, and nothing else moves it."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, time: float, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (time, self._count, what))

    def run(self) -> None:
        while self._queue:
            self.now, _, what = heapq.heappop(self._queue)
            what()


class Server:
    """Serves one request after the other; what comes while it is busy waits in line."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._free = 0.0

    def serve(self, seconds: float, done: Callable[[], None]) -> None:
        self._free = max(self._free, self._events.now) + seconds
        self._events.at(self._free, done)


def start_seconds(way: Way, nodes: int, ranks: int, program: Program, given: Draw, costs: StageCosts | None) -> float:
    """Seconds from the first rank's start until the last rank has imported. `costs`: needed for windlass's ways."""
    if way == "direct":
        seconds = _direct(nodes, ranks, program, given)
    elif way == "copper":
        seconds = _copper(nodes, ranks, program, given, COPPER_FANOUT)
    else:
        assert costs is not None, "a cache is simulated from what was measured of it"
        seconds = sum(cold_path(nodes, costs, given)) if way == "windlass" else _traced(nodes, costs, given)
    return seconds * given.jitter ** math.log10(max(nodes, 1)) if nodes > 1 else seconds


def _direct(nodes: int, ranks: int, program: Program, given: Draw) -> float:
    """Nodes ask in turns of a thousandth of their calls; the servers answer in order of arrival."""
    events = Events()
    metadata, data = Server(events), Server(events)
    turns = 20
    # Node by node up to a few dozen; beyond that, groups of nodes that do the same at the same time.
    groups = min(nodes, 64)
    weight = nodes / groups
    calls = (program.calls + (ranks - 1) * program.calls_again) / turns
    last = [0.0]

    def turn(group: int, left: int) -> None:
        if left == 0:
            last[0] = max(last[0], events.now)
            return
        # The calls of a rank follow each other, and the ranks of a node share what its client can do.
        moved = program.bytes / turns
        asking = max(program.calls / turns * given.call_s, calls / given.client_per_s)
        alone = asking + moved / given.node_bytes_per_s + program.cpu_s / turns

        def answered() -> None:
            data.serve(weight * moved / given.shared_bytes_per_s, lambda: turn(group, left - 1))

        began = events.now
        metadata.serve(
            weight * calls / given.metadata_per_s,
            lambda: events.at(max(events.now, began + alone), answered),
        )

    for group in range(groups):
        events.at(0.0, lambda group=group: turn(group, turns))  # type: ignore[misc]
    events.run()
    return last[0]


def depth_of(nodes: int, fanout: int) -> int:
    """Hops from the root to the deepest node of a full tree."""
    depth, reach, width = 0, 1, 1
    while reach < nodes:
        width *= fanout
        reach += width
        depth += 1
    return depth


def _copper(nodes: int, ranks: int, program: Program, given: Draw, fanout: int) -> float:
    """Whole files, one after the other as the import asks for them; each level waits for the level above."""
    events = Events()
    depth = depth_of(nodes, fanout)
    shared = Server(events)
    small = (program.file_bytes - program.bypass_bytes) / program.files
    done = [0.0]
    groups = 40
    per_group = program.files / groups

    def fetch(group: int, started: float) -> None:
        """A group of files goes down level by level, a file at a time, with a question at every level."""
        if group == groups:
            done[0] = events.now
            return
        hop = given.hop_s + fanout * small / given.link_bytes_per_s
        own = given.call_s + small / given.node_bytes_per_s
        events.at(events.now + per_group * (own + depth * hop), lambda: bypass(group))

    def bypass(group: int) -> None:
        # Files above the limit are read by every node from the shared file system, by what is touched of them.
        moved = nodes * (program.bytes * program.bypass_bytes / program.file_bytes) / groups
        shared.serve(moved / given.shared_bytes_per_s, lambda: fetch(group + 1, events.now))

    fetch(0, 0.0)
    events.run()
    # No kernel caching: every call of every rank is answered by the node's daemon, a few at a time.
    parallel = min(ranks, 4)
    daemon = ranks * program.calls * given.rpc_s / parallel
    return done[0] + daemon + program.cpu_s


class ColdPath(NamedTuple):
    """Seconds of a cold start without a trace, by what they are spent on; they follow each other."""

    imports: float
    shared: float
    """The one reader's calls and bytes of the shared file system."""
    reader: float
    """Misses on the node that reads: queue, digest, store, sockets."""
    levels: float
    """What every level of the tree adds to every miss."""


def cold_path(nodes: int, costs: StageCosts, given: Draw) -> ColdPath:
    """Asked for as the import goes: folders as wholes, chunks of what is touched; one wait per miss at each level."""
    depth = depth_of(nodes, FANOUT)
    waiting = costs.misses * costs.calls_per_object * given.call_s
    return ColdPath(
        imports=costs.native_s * given.many_ranks,
        shared=max(waiting, costs.calls / given.client_per_s) + costs.bytes / given.node_bytes_per_s,
        reader=costs.misses * costs.miss_s * given.core,
        levels=costs.misses * depth * (costs.level_s * given.core + given.fabric_s),
    )


def _traced(nodes: int, costs: StageCosts, given: Draw) -> float:
    """Streamed ahead in pieces: the reader reads, each level hands on what it has while the next piece comes."""
    events = Events()
    depth = depth_of(nodes, FANOUT)
    pieces = 64
    # Several threads read ahead, up to what the reader's client can do; meanwhile its processor hashes and sends.
    asking = costs.calls * max(given.call_s / 8, 1 / given.client_per_s)
    work_s = (costs.push_root_s if depth else costs.push_alone_s) * given.core
    read_s = max(asking, work_s, costs.bytes / given.node_bytes_per_s) / pieces
    hand_s = costs.push_node_s * given.core / pieces + given.fabric_s
    levels = [Server(events) for _ in range(depth)]
    reader = Server(events)
    arrived = [0.0] * pieces

    def down(piece: int, level: int) -> None:
        if level == depth:
            arrived[piece] = events.now
            return
        levels[level].serve(hand_s, lambda: down(piece, level + 1))

    for piece in range(pieces):
        reader.serve(read_s, lambda piece=piece: down(piece, 0))  # type: ignore[misc]
    events.run()
    # The import uses the pieces in order; it can never be further than what has arrived.
    now = 0.0
    for piece in range(pieces):
        now = max(now, arrived[piece]) + costs.native_s * given.many_ranks / pieces
    return now


def replayed(costs: StageCosts) -> list[tuple[str, int, float, float]]:
    """Case, nodes, measured and simulated seconds of the record itself: the measurement's own shared file system, one
    rank a node, the same machine. The model and its source must agree there."""
    free = {name: getattr(Machine(), name).low for name in Draw.__slots__}
    same = {"core": 1.0, "many_ranks": 1.0, "fabric_s": 0.0, "jitter": 1.0}
    wide = {"client_per_s": math.inf, "node_bytes_per_s": math.inf, "call_s": costs.read_s / costs.calls_per_object}
    given = Draw(**{**free, **same, **wide})
    ways: dict[str, Way] = {"cache": "windlass", "cache+trace": "windlass+trace"}
    return [
        (case, nodes, seconds, start_seconds(ways[case], nodes, 1, Program(), given, costs))
        for case, nodes, seconds in costs.seconds
        if case in ways
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """Seconds of one way at one size: the middle, and the tenth from either end."""

    way: Way
    nodes: int
    ranks: int
    low: float
    middle: float
    high: float


def predict(
    way: Way,
    sizes: Sequence[int],
    ranks: int,
    *,
    program: Program | None = None,
    machine: Machine | None = None,
    costs: StageCosts | None = None,
    draws: int = 60,
    seed: int = 1,
) -> list[Predicted]:
    """The range of one way over draws from the assumptions. The same seed gives the same answer."""
    asked, world = program or Program(), machine or Machine()
    out = []
    for nodes in sizes:
        chance = random.Random(f"{seed} {nodes}")
        times = sorted(start_seconds(way, nodes, ranks, asked, draw(world, chance), costs) for _ in range(draws))
        tenth = max(0, len(times) // 10 - 1)
        out.append(
            Predicted(
                way=way,
                nodes=nodes,
                ranks=ranks,
                low=times[tenth],
                middle=statistics.median(times),
                high=times[-1 - tenth],
            )
        )
    return out


# What was published for `import torch` with 12 ranks a node: nodes, shared file system alone, with Copper.
PUBLISHED: tuple[tuple[int, float, float], ...] = (
    (64, 105, 50),
    (128, 110, 52),
    (256, 110, 54),
    (512, 115, 56),
    (1024, 240, 58),
    (2048, 420, 58),
    (4096, 480, 59),
    (8192, 1020, 60),
)
