"""The cooperative cache of a run: agents with the cache service, started before the ranks and ended after them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from windlass.agents.start import Agents, ServiceSpec
from windlass.base.notation.counts import counted
from windlass.base.notation.sizes import size_text
from windlass.errors import WindlassError
from windlass.model.jsontext import to_json
from windlass.model.plan import CachePlan
from windlass.run.folder import RunFolder
from windlass.run.output import OutputView
from windlass.run.sidecars.shims import environment_front
from windlass.run.sidecars.traces import environment_identity, trace_path

FIGURES_FILE = "cache.json"
_ENTRY = "windlass.node.agent.cache:make"
STATUS_ENTRY = "windlass.node.agent.cache:status"


def cache_service(cache: CachePlan, traces_dir: Path | None) -> ServiceSpec:
    """What every node's cache is told. Looks at the roots once: their marks, and the scripts of environments."""
    settings: dict[str, object] = {
        "roots": [[root.path, root.real] for root in cache.roots],
        "fronts": [environment_front(prefix, cache) for prefix in cache.environments],
        "config": {
            "placement": cache.placement,
            "budget_bytes": cache.budget_bytes,
            "readers": cache.readers,
            "allow_other": cache.allow_other,
        },
        "store": cache.store,
        "start_s": cache.ready_s,
    }
    if traces_dir is not None and cache.trace and cache.placement == "replicate":
        trace = trace_path(traces_dir, environment_identity([root.path for root in cache.roots]))
        settings["trace_out"] = str(trace)
        settings["trace_in"] = str(trace) if trace.exists() else ""
    return ServiceSpec(name="cache", entry=_ENTRY, settings=settings)


class CacheSidecar:
    """`run.execute.Sidecar`: the cache while the ranks run."""

    def __init__(
        self, agents: Agents, folder: RunFolder, view: OutputView, hosts: tuple[str, ...], *, quiet: bool
    ) -> None:
        self._agents = agents
        self._folder = folder
        self._view = view
        self._hosts = hosts
        self._quiet = quiet
        self._told = 0

    def start(self, stopping: Callable[[], bool]) -> bool:
        return self._agents.start(stopping)

    def poll(self) -> None:
        """Tell what the agents have noticed."""
        self._agents.hear()
        fresh, self._told = self._agents.lines[self._told :], len(self._agents.lines)
        for line in fresh:
            if "news" in line and line.get("service") == "cache":
                self._view.note(f"windlass: {self._hosts[line['node']]}: {line['news']}")
            elif "agent" in line:
                self._view.note(f"windlass: the agent on {self._hosts[line['node']]} {line['agent']}")

    def stop(self) -> None:
        self._agents.stop()
        self.poll()
        ended = self._agents.ended("cache")
        if not ended:
            return
        nodes = [{"node": node, **figures} for node, figures in sorted(ended.items())]
        try:
            self._folder.write_bytes(FIGURES_FILE, to_json({"nodes": nodes, "total": figures_total(ended)}))
        except WindlassError as error:
            self._view.note(f"windlass: {error.message}")
        if not self._quiet:
            self._view.note(f"windlass: {figures_text(ended)}")


_LIKE_ONE = 1.5
"""All nodes together ask so many times as often as the one that asks most, where one reads for all."""


def figures_total(ended: Mapping[int, Mapping[str, Any]]) -> dict[str, int]:
    names = ("source_calls", "source_bytes", "hits", "misses", "errors", "failovers", "corrupt", "changed", "direct")
    return {name: sum(int(figures.get(name, 0)) for figures in ended.values()) for name in names}


def figures_text(ended: Mapping[int, Mapping[str, Any]]) -> str:
    """One line: what the shared file system saw of the run."""
    total = figures_total(ended)
    text = (
        f"cache: {counted(len(ended), 'node')} asked the shared file system "
        f"{total['source_calls']:,} times for {size_text(total['source_bytes'])}"
    )
    most = max(int(figures.get("source_calls", 0)) for figures in ended.values())
    if len(ended) > 1 and 0 < total["source_calls"] <= _LIKE_ONE * most:
        text += ", hardly more than one node alone would"
    if any(int(figures.get("pushed", 0)) for figures in ended.values()):
        text += ", ahead of the ranks, as an earlier run recorded it"
    elif any(figures.get("recorded") for figures in ended.values()):
        text += "; what they read is recorded, and pushed ahead in the next run"
    problems = [f"{total[name]} {name}" for name in ("errors", "failovers", "corrupt", "changed") if total[name]]
    return text + (f" ({', '.join(problems)})" if problems else "")
