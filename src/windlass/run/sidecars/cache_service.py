"""The cooperative cache of a run: agents with the cache service, started before the ranks and ended after them.

Before the agents start, the environments below the cache's roots are examined once: their scripts, and their base. The
result is sent to the agents, so that not every node reads the first line of every script in `bin`.

Also prints the status of a cache: a table, and its totals.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from windlass.agents.start import Agents, ServiceSpec
from windlass.base.notation.counts import counted, size_text
from windlass.errors import WindlassError
from windlass.model.jsontext import to_json
from windlass.model.plan import CachePlan
from windlass.node.sys.reading import open_plain, read_text
from windlass.plan.cache import is_below
from windlass.run.folder import RunFolder
from windlass.run.output import OutputView
from windlass.run.sidecars.traces import environment_identity, newest_trace, trace_path

_MAX_SCRIPTS = 4000
_MAX_BYTES = 4 << 20
_HEAD_BYTES = 4096
_FIRST = re.compile(rb"\A#![ \t]*(/[^\s]+)[ \t]*([^\n]*)\n")
_LONG = re.compile(rb"\A#!/bin/sh\n'''exec' \"?([^\"\n]+?)\"?()( \"\$0\" \"\$@\")\n' '''\n")
"""The form that installers use for a first line that is too long or contains spaces."""


def environment_front(prefix: str, cache: CachePlan) -> dict[str, object]:
    """Return the input of `services.node.cache.write_front` for one environment."""
    folder = Path(prefix)
    front: dict[str, object] = {"prefix": _as_declared(prefix, cache), "scripts": dict(_scripts(folder, cache))}
    config = _nested_config(folder, cache)
    if config is not None:
        front |= config
    return front


def _scripts(folder: Path, cache: CachePlan) -> Iterator[tuple[str, tuple[str, list[str]]]]:
    try:
        entries = sorted((folder / "bin").iterdir())[:_MAX_SCRIPTS]
    except OSError:
        return
    for entry in entries:
        found = _script(entry, cache)
        if found is not None:
            yield entry.name, found


def _script(path: Path, cache: CachePlan) -> tuple[str, list[str]] | None:
    """Return the interpreter and its options for a script whose interpreter is below a root."""
    try:
        status = path.stat()
        if not path.is_file() or status.st_size > _MAX_BYTES or not status.st_mode & 0o111:
            return None
        with open_plain(path, follow=True) as stream:
            data = stream.read(_HEAD_BYTES)
    except OSError:
        return None
    match = _LONG.match(data) or _FIRST.match(data)
    if match is None:
        return None
    interpreter = match.group(1).decode("utf-8", "surrogateescape")
    declared = _as_declared(interpreter, cache)
    if not any(is_below(declared, root.path) for root in cache.roots):
        return None
    options = match.group(2).decode("utf-8", "surrogateescape").strip()
    return declared, [options] if options else []  # the kernel also passes all options as one argument


def _nested_config(folder: Path, cache: CachePlan) -> dict[str, object] | None:
    """Return a new configuration for a virtual environment whose base interpreter is also below a root.

    Its `pyvenv.cfg` contains the real path of the base, which would bypass the view. The front therefore gets a
    `pyvenv.cfg` with the path in the view.
    """
    try:
        text = read_text(folder / "pyvenv.cfg", follow=True)
    except (OSError, UnicodeDecodeError):
        return None
    home = re.search(r"(?m)^home\s*=\s*(.+?)\s*$", text)
    if home is None:
        return None
    base = _as_declared(home.group(1), cache)
    if not any(is_below(base, root.path) for root in cache.roots):
        return None
    pythons = sorted(entry.name for entry in (folder / "bin").glob("python*") if _is_python(entry))
    interpreter = next((name for name in pythons if (Path(base) / name).exists()), "python3")
    return {
        "config": text[: home.start(1)] + "{view}" + base + text[home.end(1) :],
        "base_python": f"{base}/{interpreter}",
        "pythons": pythons,
        "parts": sorted(entry.name for entry in folder.iterdir() if entry.name not in {"bin", "pyvenv.cfg"}),
    }


def _is_python(path: Path) -> bool:
    return re.fullmatch(r"python[\d.]*", path.name) is not None


def _as_declared(path: str, cache: CachePlan) -> str:
    """Convert a path below the resolved root to the path below the declared root."""
    for root in cache.roots:
        if is_below(path, root.path):
            return path
        if is_below(path, root.real):
            return root.path + path[len(root.real) :]
    return path


FIGURES_FILE = "cache.json"
_ENTRY = "windlass.node.agent.cache:make"
STATUS_ENTRY = "windlass.node.agent.cache:status"


def cache_service(cache: CachePlan, traces_dir: Path | None) -> ServiceSpec:
    """Return the settings of every node's cache. Reads the roots once: their marks, and the scripts of environments."""
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
        roots = [root.path for root in cache.roots]
        trace = trace_path(traces_dir, environment_identity(roots))
        settings["trace_out"] = str(trace)
        # That of an older version of the environment helps: what is still the same is pushed.
        settings["trace_in"] = str(trace if trace.exists() else newest_trace(traces_dir, roots) or "")
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
        """Show the messages of the agents."""
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
"""Maximum ratio of all nodes' requests to those of the busiest node, if one node reads for all."""


def figures_total(ended: Mapping[int, Mapping[str, Any]]) -> dict[str, int]:
    names = ("source_calls", "source_bytes", "hits", "misses", "errors", "failovers", "corrupt", "changed", "direct")
    return {name: sum(int(figures.get(name, 0)) for figures in ended.values()) for name in names}


def figures_text(ended: Mapping[int, Mapping[str, Any]]) -> str:
    """Return one line: the load of the run on the shared file system."""
    total = figures_total(ended)
    text = (
        f"cache: {counted(len(ended), 'node')} asked the shared file system "
        f"{total['source_calls']:,} times for {size_text(total['source_bytes'])}"
    )
    most = max(int(figures.get("source_calls", 0)) for figures in ended.values())
    if len(ended) > 1 and 0 < total["source_calls"] <= _LIKE_ONE * most:
        text += ", about as often as one node alone"
    if any(int(figures.get("pushed", 0)) for figures in ended.values()):
        text += ", ahead of the ranks, from the record of an earlier run"
    elif any(figures.get("recorded") for figures in ended.values()):
        text += "; the files read are recorded, and pushed ahead in the next run"
    problems = [f"{total[name]} {name}" for name in ("errors", "failovers", "corrupt", "changed") if total[name]]
    return text + (f" ({', '.join(problems)})" if problems else "")


_COLUMNS = ("node", "state", "hits", "misses", "local", "parent", "peer", "shared", "calls", "memory", "errors")
_SUMMED = (
    "source_bytes",
    "source_calls",
    "used_bytes",
    "budget_bytes",
    "errors",
    "fallbacks",
    "changed",
    "corrupt",
)


def status_text(nodes: Sequence[dict[str, Any]]) -> str:
    """Return one line per node and one for all. Hits in the kernel's caches cannot be counted."""
    rows = [_row(node) for node in nodes]
    alive = [node for node in nodes if node["state"] != "gone"]
    total = _row(_sum(alive), name=f"{len(alive)} of {len(nodes)}") if alive else ()
    table = [_COLUMNS, *rows, *([total] if total else [])]
    widths = [max(len(row[index]) for row in table if row) for index in range(len(_COLUMNS))]
    lines = ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in table]
    pushed = sum(node.get("push", {}).get("bytes", 0) for node in alive)
    notes = [
        "",
        "bytes by origin; `calls` are calls on the shared file system; reads that the kernel answers are not counted",
    ]
    if pushed:
        notes.append(f"pushed ahead: {size_text(pushed)}")
    notes += [f"{node['host']}: {node.get('reason', 'gone')}" for node in nodes if node["state"] == "gone"]
    return "\n".join((*lines, *notes))


def totals(nodes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Summarise the cache of a whole job. `shared` is the load on the shared file system, including the mounts."""
    alive = [node for node in nodes if node["state"] != "gone"]
    total = _sum(alive)
    mount, origin = total["mount"], total["bytes"]
    return {
        "nodes": max((node.get("nodes", 0) for node in alive), default=0),
        "ready": sum(node["state"] == "ready" for node in alive),
        "gone": sorted(node["node"] for node in nodes if node["state"] == "gone"),
        "shared_calls": total["source_calls"] + mount.get("source_calls", 0),
        "shared_bytes": total["source_bytes"] + mount.get("source_bytes", 0),
        "parent_bytes": origin.get("parent", 0),
        "peer_bytes": origin.get("peer", 0),
        "mount_hits": mount.get("hits", 0),
        "mount_misses": mount.get("misses", 0),
        "used_bytes": total["used_bytes"],
        "budget_bytes": total["budget_bytes"],
        "fallbacks": total["fallbacks"] + mount.get("direct", 0),
        "changed": total["changed"],
        "corrupt": total["corrupt"],
        "errors": total["errors"],
        "pushed": all(node["push"]["ended"] for node in alive),
    }


def _row(node: dict[str, Any], name: str | None = None) -> tuple[str, ...]:
    if node["state"] == "gone":
        return (str(node["host"]), "gone", *("-" for _ in _COLUMNS[2:]))
    mount, origin = node["mount"], node["bytes"]
    shared = node["source_bytes"] + mount.get("source_bytes", 0)
    return (
        name or str(node["host"]),
        str(node["state"]) if mount.get("alive", True) else "no mount",
        f"{mount.get('hits', 0):,}",
        f"{mount.get('misses', 0):,}",
        size_text(mount.get("hit_bytes", 0)),
        size_text(origin.get("parent", 0)),
        size_text(origin.get("peer", 0)),
        size_text(shared),
        f"{node['source_calls'] + mount.get('source_calls', 0):,}",
        f"{size_text(node['used_bytes'])} of {size_text(node['budget_bytes'])}",
        str(node["errors"] + mount.get("errors", 0)),
    )


def _sum(nodes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the sum over all nodes."""
    out: dict[str, Any] = {"state": "ready" if all(n["state"] == "ready" for n in nodes) else "starting"}
    for name in _SUMMED:
        out[name] = sum(node[name] for node in nodes)
    for part in ("bytes", "mount"):
        names = {name for node in nodes for name, value in node[part].items() if type(value) is int}
        out[part] = {name: sum(node[part].get(name, 0) for node in nodes) for name in names}
    out["mount"]["alive"] = True
    return out
