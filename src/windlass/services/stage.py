"""Staging for a job: agents that push sources of the shared file system to storage of the nodes, and say how far."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from windlass.agent.bundle import ServiceSpec
from windlass.model.plan import CacheRoot

_ENTRY = "windlass.services.node.stage:make"
_BUDGET_BYTES = 512 << 20


def stage_service(
    sources: tuple[CacheRoot, ...], to: str, *, extract: bool, shard: bool, per_node: bool = False
) -> ServiceSpec:
    """What every node is told. With `shard` each node gets its part of the files and not all of them."""
    settings: dict[str, object] = {
        "sources": [{"path": source.path, "real": source.real} for source in sources],
        "to": to,
        "extract": extract,
        "shard": shard,
        "per_node": per_node,
        "config": {"budget_bytes": _BUDGET_BYTES, "placement": "partition" if shard else "replicate"},
    }
    return ServiceSpec(name="stage", entry=_ENTRY, settings=settings)


class Progress:
    """Follows the agents' lines and says now and then how far they are: the slowest node counts."""

    def __init__(self, total_bytes: int, nodes: int, show: Callable[[str], None], every_s: float) -> None:
        self._total = total_bytes
        self._nodes = nodes
        self._show = show
        self._every_s = every_s
        self._began = self._last = time.monotonic()
        self._staged: dict[int, int] = {}
        self._read = 0

    def look(self, lines: list[dict[str, Any]]) -> None:
        for line in lines[self._read :]:
            if "staged" in line:
                self._staged[line["node"]] = line["staged"]
            elif "up" in line:
                self._staged[line["node"]] = self._total
        self._read = len(lines)
        now = time.monotonic()
        if now - self._last >= self._every_s and self._staged:
            self._last = now
            slowest = min(self._staged.values()) if len(self._staged) == self._nodes else 0
            done = sum(value >= self._total for value in self._staged.values())
            rate = sum(self._staged.values()) / self._nodes / max(now - self._began, 0.1)
            self._show(
                f"{slowest / 1e6:,.0f} of {self._total / 1e6:,.0f} MB on the slowest node, "
                f"{rate / 1e6:,.0f} MB/s a node, "
                f"{done} of {self._nodes} nodes complete"
            )
