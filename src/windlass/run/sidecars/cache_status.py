"""The status of a cache: as a table for people, and its totals. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from windlass.base.notation.counts import size_text

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
    """One line per node and one for all. Hits that the kernel answers from its own caches are seen by nobody."""
    rows = [_row(node) for node in nodes]
    alive = [node for node in nodes if node["state"] != "gone"]
    total = _row(_sum(alive), name=f"{len(alive)} of {len(nodes)}") if alive else ()
    table = [_COLUMNS, *rows, *([total] if total else [])]
    widths = [max(len(row[index]) for row in table if row) for index in range(len(_COLUMNS))]
    lines = ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in table]
    pushed = sum(node.get("push", {}).get("bytes", 0) for node in alive)
    notes = [
        "",
        "bytes by origin; `calls` are those made on the shared file system; what the kernel answers is not seen",
    ]
    if pushed:
        notes.append(f"pushed ahead: {size_text(pushed)}")
    notes += [f"{node['host']}: {node.get('reason', 'gone')}" for node in nodes if node["state"] == "gone"]
    return "\n".join((*lines, *notes))


def totals(nodes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The cache of a whole job in a few figures. `shared` is what the shared file system saw, also from the mounts."""
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
    """All nodes as if they were one."""
    out: dict[str, Any] = {"state": "ready" if all(n["state"] == "ready" for n in nodes) else "starting"}
    for name in _SUMMED:
        out[name] = sum(node[name] for node in nodes)
    for part in ("bytes", "mount"):
        names = {name for node in nodes for name, value in node[part].items() if type(value) is int}
        out[part] = {name: sum(node[part].get(name, 0) for node in nodes) for name in names}
    out["mount"]["alive"] = True
    return out
