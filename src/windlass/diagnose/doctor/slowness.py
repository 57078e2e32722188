"""Who is slow, in words: what the search of `doctor --full` says about nodes, links and devices. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.model.finding import Finding
from windlass.model.plan import Plan

_COMPARE = 4
"""Fewer nodes than this make no two pairs to compare."""


def check_slowness(plan: Plan, hosts: tuple[str, ...], reports: Mapping[int, Mapping[str, Any]]) -> list[Finding]:
    """Findings about single nodes, links and devices; one that says that all are alike where they are."""
    search = (reports.get(0) or {}).get("slow")
    if not isinstance(search, dict):
        return [Finding("slow-node", "skipped", "not searched: there was no all-reduce")]
    steps = search.get("rounds", [])
    findings = []
    for node in search.get("nodes", {}):
        seen = f"all-reduces with it take {search['factor']} times as long, whoever its partner is"
        findings.append(_bad("slow-node", hosts[int(node)], seen))
    for left, right in search.get("links", []):
        seen = f"{hosts[left]} and {hosts[right]} are {search['factor']} times slower together, not with others"
        remedy = "the link between them is slow: leave one of them out, and tell the site's support"
        findings.append(Finding("slow-link", "warning", seen, remedy))
    for rank, factor in search.get("devices", {}).items():
        node, local = divmod(int(rank), plan.ranks_per_node)
        seen = f"the device of local rank {local} takes {factor} times as long for a product of matrices"
        findings.append(_bad("slow-device", hosts[node], seen))
    if not findings:
        how = f"{len(steps)} rounds" if plan.nodes >= _COMPARE else "products of matrices only: four nodes make pairs"
        alike = "no node, link or device stands out" if plan.world_size > 1 else "there is nothing to compare it with"
        findings.append(Finding("slow-node", "ok", f"{alike} ({how})"))
    return findings


def _bad(name: str, host: str, seen: str) -> Finding:
    remedy = "leave it out; `windlass nodes list` remembers it, and the next jobs avoid it"
    return Finding(name, "error", seen, remedy, subject=host)
