"""Staging for a job: agents that push sources of the shared file system to storage of the nodes, and say how far."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from windlass.agents.start import ServiceSpec
from windlass.model.plan import CacheRoot

_ENTRY = "windlass.node.stage.stage:make"


def stage_service(
    sources: tuple[CacheRoot, ...],
    to: str,
    *,
    extract: bool,
    shard: bool,
    one_reader: bool = False,
    per_node: bool = False,
) -> ServiceSpec:
    """What every node is told. With `shard` each node gets its part of the files and not all of them; with `one_reader`
    the first node alone reads the sources."""
    settings: dict[str, object] = {
        "sources": [{"path": source.path, "real": source.real} for source in sources],
        "to": to,
        "extract": extract,
        "shard": shard,
        "one_reader": one_reader,
        "per_node": per_node,
    }
    return ServiceSpec(name="stage", entry=_ENTRY, settings=settings)


def warnings(lines: list[dict[str, Any]]) -> list[str]:
    """What the agents said that a person should know, each thing once."""
    return list(dict.fromkeys(line["news"] for line in lines if line.get("service") == "stage" and "news" in line))


class StageProgress:
    """Follows the agents' lines and says now and then how far they are: the slowest node counts."""

    def __init__(self, nodes: int, show: Callable[[str], None], every_s: float) -> None:
        self._nodes = nodes
        self._show = show
        self._every_s = every_s
        self._began = self._last = time.monotonic()
        self._staged: dict[int, tuple[int, int]] = {}
        self._complete: set[int] = set()
        self._read = 0

    def look(self, lines: list[dict[str, Any]]) -> None:
        """Read the lines that are new, and show where the nodes are if it is time to."""
        for line in lines[self._read :]:
            if "staged" in line:
                self._staged[line["node"]] = line["staged"], line["of"]
            elif "up" in line:
                self._complete.add(line["node"])
        self._read = len(lines)
        now = time.monotonic()
        if now - self._last >= self._every_s and (self._staged or self._complete):
            self._last = now
            self._show(self._text(now - self._began))

    def _text(self, seconds: float) -> str:
        waiting = {node: how for node, how in self._staged.items() if node not in self._complete}
        text = f"{len(self._complete)} of {self._nodes} nodes complete"
        if not waiting:
            return text
        staged, total = min(waiting.values(), key=lambda how: how[0] / max(how[1], 1))
        rate = sum(how[0] for how in waiting.values()) / len(waiting) / max(seconds, 0.1)
        where = f"{staged / 1e6:,.0f} of {total / 1e6:,.0f} MB on the slowest node, {rate / 1e6:,.0f} MB/s a node"
        return f"{where}, {text}"
