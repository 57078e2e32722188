"""Clusters outside the catalog, each with the plan that its administrator would write (`tests/data/clusters.toml`)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from planning import plan_for
from windlass.backends.schedulers import get_scheduler
from windlass.errors import UsageError
from windlass.model.origin import argv_of
from windlass.model.topology import Topology

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CLUSTERS = tomllib.loads((Path(__file__).parents[2] / "data" / "clusters.toml").read_text())["cluster"]
UNKNOWN = Topology(arch="", cores=())


def _wrong(cluster: dict[str, Any]) -> str | None:
    """How the plan differs from the expected one."""
    asked = {key: tuple(v) if isinstance(v, list) else v for key, v in cluster.get("asked", {}).items()}
    scheduler = get_scheduler(cluster.get("scheduler", "slurm"))
    try:
        plan, _ = plan_for(
            f"generic-{scheduler.name}",
            topology=UNKNOWN,
            offers=scheduler.parse_offers(cluster["offers"] if "offers" in cluster else cluster["sinfo"]),
            queues=scheduler.parse_queues(cluster.get("partitions", "")),
            accounts=scheduler.parse_accounts(cluster.get("accounts", "")),
            **asked,
        )
    except UsageError as error:
        said = f"{error.message} {error.hint}"
        missing = [text for text in cluster.get("asks", ["a plan"]) if text not in said]
        return f"{missing} not in: {said}" if missing else None
    words = argv_of(plan.directives)
    if "asks" in cluster:
        return f"planned {plan.ranks_per_node} ranks with {words}"
    missing = [word for word in cluster["words"] if word not in words]
    if missing or plan.ranks_per_node != cluster["ranks"]:
        return f"{plan.ranks_per_node} ranks, {missing} not in {words}"
    if not plan.request.gpus_per_node and not cluster["words"] and any("gpu" in word for word in words):
        return f"asks for GPUs: {words}"
    if plan.remarks[: len(cluster.get("warns", ()))] and plan.remarks[0].kind not in cluster.get("warns", ()):
        return f"does not begin with {cluster['warns']}: {plan.remarks[0]}"
    return None


def test_every_cluster_gets_the_plan_of_its_administrator() -> None:
    wrong = {cluster["name"]: problem for cluster in CLUSTERS if (problem := _wrong(cluster))}
    assert not wrong, "\n".join(f"{name}: {problem}" for name, problem in wrong.items())
