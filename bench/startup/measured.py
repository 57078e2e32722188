"""What a record of `bench/start.py --stages` says of the cache's own costs, in the form that the simulator takes.

Costs are of one miss that a reader waits for, and of pushing what a trace names; the shared file system's part of a
miss is taken out, because at another size it is another one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from startup.rows import STAGE
from windlass.bench.record import BenchRecord, Measurement
from windlass.errors import ConfigError

_HINT = "measure with --nodes 1,8 --cases native,direct,cache,cache+trace --stages"
_WAIT = "mount: miss: wait for the peer"
_OBJECT = re.compile(r"\w+: read (chunk|folder)")
_READ = "read from the shared file system"
_FINISHED = "finish in the mount"
_PARTS = {
    "queue for a reader": "peer: queue for a reader",
    "digest": "peer: digest",
    "store": "peer: store",
    "hand to who waits": "peer: tell who waits",
    _FINISHED: "mount: miss: finish",
}
"""Stages of a miss beside reading; what is left of the wait is the sockets, switches and threads between."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageCosts:
    """Measured seconds and counts, of one import on `nodes` nodes of one machine and of one node alone."""

    nodes: int
    native_s: float
    misses: float
    """Of one node: what somebody waited for."""
    read_s: float
    """Reading from the measurement's own shared file system, of one miss; not part of the next two."""
    parts_s: tuple[tuple[str, float], ...]
    """The rest of a miss on the node that reads, by stage."""
    level_s: float
    """What a miss takes more for every level between a node and the one that reads."""
    calls: float
    """Of the one reader."""
    calls_per_object: float
    bytes: float
    push_alone_s: float
    """Processor seconds of the reader's peer for all that a trace names, with nobody to send it to."""
    push_root_s: float
    """The same with children: reading, digest, store, sends."""
    push_node_s: float
    """Of the peer of another node."""
    seconds: tuple[tuple[str, int, float], ...]
    """What was measured: case, nodes, seconds."""

    @property
    def miss_s(self) -> float:
        """One miss on the node that reads, without the shared file system."""
        return sum(seconds for _, seconds in self.parts_s)

    @property
    def hop_bytes_per_s(self) -> float:
        """At which one node receives, checks, keeps and hands on a push, as far as its processor lets it."""
        return self.bytes / self.push_node_s


def stage_costs(record: BenchRecord, fanout: int) -> StageCosts:
    """The costs of a record. `ConfigError` where it has not what it takes."""
    nodes = max((int(row.labels["nodes"] or 1) for row in record.rows), default=1)
    if nodes < 2:
        raise ConfigError("the record has no start of several nodes", hint=_HINT)
    alone, cold, traced = (_row(record, *key) for key in (("cache", 1), ("cache", nodes), ("cache+trace", nodes)))
    root, other = _stages(alone, "root"), _stages(cold, "node")
    misses, waited = _waited(root)
    objects = sum(calls for name, (calls, _) in root.items() if _OBJECT.match(name))
    if not objects:
        raise ConfigError("the record has no stage of reading chunks or folders", hint=_HINT)
    parts = _parts(root, waited / misses, objects)
    wait_there = _waited(other)
    level_s = max(0.0, wait_there[1] / wait_there[0] - waited / misses) / _mean_depth(nodes, fanout)
    return StageCosts(
        nodes=nodes,
        native_s=_row(record, "native", 1).figures["seconds"].value,
        misses=misses,
        read_s=parts.pop(_READ),
        parts_s=tuple(parts.items()),
        level_s=level_s,
        calls=alone.figures["shared_calls"].value,
        calls_per_object=alone.figures["shared_calls"].value / objects,
        bytes=traced.figures["shared_bytes"].value,
        push_alone_s=_peer_cpu_s(_stages(_row(record, "cache+trace", 1), "root")),
        push_root_s=_peer_cpu_s(_stages(traced, "root")),
        push_node_s=_peer_cpu_s(_stages(traced, "node")),
        seconds=tuple(
            (str(row.labels["case"]), int(row.labels["nodes"] or 1), row.figures["seconds"].value)
            for row in record.rows
            if row.labels["case"] in {"native", "direct", "cache", "cache+trace"}
        ),
    )


def _row(record: BenchRecord, case: str, nodes: int) -> Measurement:
    found = [row for row in record.rows if row.labels["case"] == case and row.labels["nodes"] == nodes]
    if not found:
        raise ConfigError(f"the record has no {case} on {nodes} nodes", hint=_HINT)
    return found[0]


def _stages(row: Measurement, who: str) -> dict[str, tuple[float, float]]:
    """Calls and seconds of each stage of the reader (`root`) or of the mean of the others (`node`)."""
    start = f"{STAGE}{who} "
    found = {}
    for name, figure in row.figures.items():
        count = re.search(r"([\d.e+]+) (?:calls|switches)$", figure.formula)
        if name.startswith(start) and count:
            found[name[len(start) :]] = float(count[1]), figure.value
    return found


def _waited(stages: Mapping[str, tuple[float, float]]) -> tuple[float, float]:
    """How many misses somebody waited for, and how long in all; from the mount's own view where no peer is asked."""
    own = [value for name, value in stages.items() if name.startswith("mount: miss of ")]
    calls, seconds = stages.get(_WAIT) or (sum(calls for calls, _ in own), sum(seconds for _, seconds in own))
    if not calls:
        raise ConfigError("the record has no stage of a miss", hint=_HINT)
    return calls, seconds


def _parts(root: Mapping[str, tuple[float, float]], wait_s: float, objects: float) -> dict[str, float]:
    """Seconds of one miss by stage. A stage's mean counts what was read ahead, too, by threads that hinder each other
    while nobody waits: where the means are more than the wait, they are taken as shares of it."""
    parts = {_READ: sum(seconds for name, (_, seconds) in root.items() if "source: " in name) / objects}
    for name, stage in _PARTS.items():
        calls, seconds = root.get(stage, (0.0, 0.0))
        parts[name] = seconds / calls if calls else 0.0
    total = wait_s + parts[_FINISHED]
    parts["sockets and switches between"] = max(0.0, total - sum(parts.values()))
    share = total / sum(parts.values())
    return {name: seconds * share for name, seconds in parts.items()}


def _peer_cpu_s(stages: Mapping[str, tuple[float, float]]) -> float:
    """Of all processes of a node but its mount."""
    threads = {name: seconds for name, (_, seconds) in stages.items() if " thread " in name}
    found = sum(seconds for name, seconds in threads.items() if not name.startswith("mount "))
    if not found:
        raise ConfigError("the record has no processor time of the push", hint=_HINT)
    return found


def _mean_depth(nodes: int, fanout: int) -> float:
    """Levels between the reader and the others, on average, in a tree that is filled level by level."""
    depths, level, left = 0, 1, nodes - 1
    while left > 0:
        here = min(left, fanout**level)
        depths, left, level = depths + here * level, left - here, level + 1
    return depths / (nodes - 1)
