"""The time of a cold start by stage, queried from the cache processes after the ranks have ended."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from windlass.node.cache import control

_NEWS_S = 0.7
"""The mount process sends its figures every half second."""
_ROLES = ("peer", "mount")
Costs = dict[str, tuple[float, float]]
"""By "node role: stage": calls and seconds. By "node role thread NAME": switches and CPU seconds."""


def read_costs(state_dirs: Sequence[str]) -> Costs:
    """Return the costs of the caches of all nodes so far.

    Node 0, which reads the shared file system, is listed separately from the mean of the other nodes. The result is
    empty if a cache no longer answers.
    """
    time.sleep(_NEWS_S)
    try:
        found = [node_costs(control.status(state_dir)[0]) for state_dir in state_dirs]
    except control.ControlError:
        return {}
    costs = {f"root {name}": value for name, value in found[0].items()}
    others = found[1:]
    for name in sorted({name for each in others for name in each}):
        values = [each.get(name, (0.0, 0.0)) for each in others]
        mean = (sum(calls for calls, _ in values) / len(values), sum(seconds for _, seconds in values) / len(values))
        costs[f"node {name}"] = mean
    return costs


def node_costs(status: Mapping[str, Any]) -> Costs:
    """Return the stages and threads of one node's two processes."""
    costs: Costs = {}
    for role in _ROLES:
        own = status if role == "peer" else status.get("mount", {})
        for stage, (calls, seconds) in own.get("stages", {}).items():
            costs[f"{role}: {stage}"] = (calls, seconds)
        for name, (seconds, willing, unwilling) in own.get("threads", {}).items():
            costs[f"{role} thread {name}"] = (willing + unwilling, seconds)
    return costs


def mean_costs(samples: Sequence[Costs]) -> Costs:
    """Return the mean over rounds. A stage that is missing in a round counts as zero there."""
    rounds = [sample for sample in samples if sample]
    names = dict.fromkeys(name for sample in rounds for name in sample)
    values = {name: [sample.get(name, (0.0, 0.0)) for sample in rounds] for name in names}
    return {
        name: (
            round(sum(calls for calls, _ in each) / len(each), 1),
            round(sum(seconds for _, seconds in each) / len(each), 4),
        )
        for name, each in values.items()
    }


def costs_text(title: str, costs: Mapping[str, tuple[float, float]]) -> str:
    """Return a table: calls, milliseconds per call, total seconds."""
    lines = [title, f"  {'stage':<42}{'calls':>10}{'ms each':>10}{'seconds':>10}"]
    for name, (calls, seconds) in sorted(costs.items()):
        each = f"{1000 * seconds / calls:.3f}" if calls and " thread " not in name else ""
        lines.append(f"  {name:<42}{calls:>10,.0f}{each:>10}{seconds:>10.3f}")
    return "\n".join(lines)
