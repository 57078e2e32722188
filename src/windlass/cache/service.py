"""A node's cache for the layers above: start, wait, ask and stop, with windlass's own errors.

The work is done in `node/control.py`, which the nodes also run from the bundle where windlass is not installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from windlass.cache.node import control
from windlass.cache.node.config import ConfigFileError, NodeConfig
from windlass.errors import DeadlineError, MachineError

_HINT = "the logs peer.log and mount.log lie in the cache's state folder"


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """The cache of a whole job in a few figures. `shared` is what the shared file system saw."""

    nodes: int
    ready: int
    gone: tuple[int, ...]
    shared_calls: int
    shared_bytes: int
    parent_bytes: int
    peer_bytes: int
    mount_hits: int
    mount_misses: int
    used_bytes: int
    budget_bytes: int
    fallbacks: int
    changed: int
    corrupt: int
    errors: int
    pushed: bool


def start_node(config: NodeConfig, node: int, *, deadline_s: float = 20.0) -> NodeConfig:
    """Starts the cache of one node on this machine and returns its own configuration; the mount is there on return."""
    mine = config.for_node(node)
    try:
        control.start(mine, deadline_s)
    except (control.ControlError, ConfigFileError, OSError) as error:
        raise MachineError(f"cache of node {node}: {error}", hint=_HINT) from error
    return mine


def wait_ready(config: NodeConfig, deadline_s: float, *, pushed: bool = False) -> None:
    """Waits until all nodes are up and, with `pushed`, until the trace has reached this node and its kernel."""
    try:
        control.wait_ready(config.state_dir, deadline_s, pushed=pushed)
    except control.NotReadyError as error:
        missing = ", ".join(config.hosts[n] for n in error.missing[:8])
        raise DeadlineError(
            f"cache: {error}" + (f"; missing: {missing}" if missing else ""),
            argv=(),
            code=None,
            hint="is the cache started on every node, and can the nodes reach each other?",
        ) from error
    except control.ControlError as error:
        raise MachineError(f"cache: {error}", hint=_HINT) from error


def node_status(config: NodeConfig, *, tree: bool = False, timeout_s: float = 5.0) -> tuple[dict[str, Any], ...]:
    """Status of this node, or with `tree` of it and all below it: from node 0, of the whole job."""
    try:
        return tuple(control.status(config.state_dir, tree=tree, timeout_s=timeout_s))
    except control.ControlError as error:
        raise MachineError(f"cache: {error}", hint=_HINT) from error


def stop_node(config: NodeConfig, *, timeout_s: float = 10.0) -> None:
    """Ends the cache of this node; mount, processes, sockets and store are gone on return."""
    control.stop(config.state_dir, timeout_s)


def stop_job(config: NodeConfig, *, timeout_s: float = 10.0) -> None:
    """From node 0: ends the caches of all nodes that can be reached, then this one."""
    control.stop_tree(config.state_dir, timeout_s)


def sweep(state_base: str) -> tuple[str, ...]:
    """Removes what crashed caches left in the folder that holds the state folders; returns what went."""
    return tuple(control.sweep(state_base))


def totals(statuses: Sequence[dict[str, Any]]) -> Totals:
    """Sums over nodes; what the mount processes read themselves counts as shared."""
    alive = [s for s in statuses if s["state"] != "gone"]

    def add(*names: str) -> int:
        total = 0
        for status in alive:
            value: Any = status
            for name in names:
                value = value.get(name, {}) if isinstance(value, dict) else {}
            total += value if isinstance(value, int) else 0
        return total

    return Totals(
        nodes=max((s.get("nodes", 0) for s in alive), default=0),
        ready=sum(s["state"] == "ready" for s in alive),
        gone=tuple(sorted(s["node"] for s in statuses if s["state"] == "gone")),
        shared_calls=add("source_calls") + add("mount", "source_calls"),
        shared_bytes=add("source_bytes") + add("mount", "source_bytes"),
        parent_bytes=add("bytes", "parent"),
        peer_bytes=add("bytes", "peer"),
        mount_hits=add("mount", "hits"),
        mount_misses=add("mount", "misses"),
        used_bytes=add("used_bytes"),
        budget_bytes=add("budget_bytes"),
        fallbacks=add("fallbacks") + add("mount", "direct"),
        changed=add("changed"),
        corrupt=add("corrupt"),
        errors=add("errors"),
        pushed=all(s["push"]["ended"] for s in alive),
    )
