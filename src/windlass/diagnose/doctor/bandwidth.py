"""Judge the bandwidth and the transport of the short all-reduce. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.diagnose.doctor.comm_log import Transport, leads_nowhere, transport_text
from windlass.model.finding import Finding
from windlass.model.plan import Plan
from windlass.model.site import Site

FLOOR = 0.2
"""Below this share of the expected bandwidth, the data uses TCP or only one NIC. See docs/howto/doctor.md."""
LOW = 0.5
_REFERENCE = "all_reduce at 128 MB"


def check_all_reduce(
    plan: Plan, site: Site, reports: Mapping[int, Mapping[str, Any]], way: Transport, silent_s: float = 0.0
) -> list[Finding]:
    """Return findings about result, bandwidth and transport of the all-reduce over all ranks.

    `silent_s`: how long the ranks were silent before they were ended.
    """
    said = [report for report in reports.values() if "backend" in report or "all_reduce_error" in report]
    imported = sum("import_s" in report for report in reports.values())
    if not said and imported < plan.world_size:
        return [Finding("all-reduce", "skipped", f"not tried: {imported} of {plan.world_size} ranks imported torch")]
    ended = f"has not ended after {silent_s:.0f} s" if silent_s else None if said else "a rank died in it"
    broken = next((report["all_reduce_error"] for report in said if "all_reduce_error" in report), ended)
    if broken is not None:
        remedy = "read the library's log: windlass doctor --run-dir DIR, then windlass explain-log DIR/ranks/comm/*"
        return [Finding("all-reduce", "error", str(broken), remedy)]
    wrong = [rank for rank, report in reports.items() if report.get("all_reduce_right") is False]
    if wrong:
        seen = f"wrong sums on ranks {', '.join(map(str, wrong[:8]))}: data is corrupted in transfer"
        return [Finding("all-reduce", "error", seen, "`windlass doctor --full` finds the node")]
    backend = str(said[0].get("backend"))
    got = min(float(report.get("busbw_gbs", 0.0)) for report in said)
    if plan.world_size == 1:
        return [Finding("all-reduce", "ok", f"right, on one rank ({backend})")]
    findings = [judge_bandwidth(got, expected_gbs(plan, site), backend, plan.nodes)]
    if backend == "nccl":
        findings.append(judge_transport(way, plan.nodes, site.file.network or ""))
    return findings


def expected_gbs(plan: Plan, site: Site) -> tuple[float, str] | None:
    """Return the expected bus bandwidth of this shape in GB/s, and its source. None if unknown."""
    for reference in site.file.references:
        same = reference.nodes in {None, plan.nodes} and reference.ranks_per_node in {None, plan.ranks_per_node}
        if reference.what == _REFERENCE and reference.unit == "GB/s" and same:
            return reference.value, f"the site's own {reference.value:g} GB/s"
    node = site.file.node
    if plan.nodes > 1 and node.nic_gbits and node.nics:
        line = node.nic_gbits / 8 * len(node.nics)
        return line, f"the line rate of {len(node.nics)} NICs, {line:g} GB/s"
    return None


def judge_bandwidth(got: float, expected: tuple[float, str] | None, backend: str, nodes: int) -> Finding:
    seen = f"right, {got:.3g} GB/s bus bandwidth ({backend})"
    if expected is None or backend == "gloo":
        return Finding("all-reduce", "ok", seen, facts={"busbw_gbs": got})
    share = got / expected[0]
    text = f"{seen}, {share:.0%} of {expected[1]}"
    if share < FLOOR:
        remedy = (
            "TCP or a single NIC: see `transport` below; check that the network plugin is loaded and GPUDirect is on"
        )
        return Finding("all-reduce", "error", text, remedy, facts={"busbw_gbs": got})
    if share < LOW:
        remedy = "not all NICs in use, no GPUDirect, or a slow node: `windlass doctor --full` finds which"
        return Finding("all-reduce", "warning", text, remedy, facts={"busbw_gbs": got})
    return Finding("all-reduce", "ok", text, facts={"busbw_gbs": got})


def judge_transport(way: Transport, nodes: int, network: str) -> Finding:
    """Judge the transport between nodes, from the library's log."""
    name, text = "transport", transport_text(way)
    if way.forced_missing:
        seen = f"NCCL_NET forces {way.forced_missing}, which is missing"
        remedy = "its library is not in LD_LIBRARY_PATH of the ranks: load the module, bind it into the container"
        return Finding(name, "error", seen, remedy)
    if nodes == 1:
        return Finding(name, "skipped", f"one node; between nodes it would be {text}")
    astray = [item for item in (*way.interfaces, way.bootstrap) if item and leads_nowhere(item)]
    if astray:
        remedy = "set NCCL_SOCKET_IFNAME to the fabric's interface"
        return Finding(name, "error", f"{text}: {astray[0]} does not reach other nodes", remedy)
    if way.is_tcp and network.startswith(("slingshot", "infiniband", "efa")):
        why = "no network plugin was found" if way.plugin_missing else "the fabric was not used"
        remedy = "load the plugin's module or bind it into the container; NCCL_NET makes its absence an error"
        return Finding(name, "error", f"TCP sockets on {network}: {why}", remedy)
    if way.direct is False and not way.is_tcp:
        remedy = "NCCL_NET_GDR_LEVEL=PHB lets the NIC read device memory; check the driver's module on the node"
        return Finding(name, "warning", text, remedy)
    return Finding(name, "ok", text)


_COMPARE = 4
"""With fewer nodes there are no two pairs to compare."""


def check_slowness(plan: Plan, hosts: tuple[str, ...], reports: Mapping[int, Mapping[str, Any]]) -> list[Finding]:
    """Return findings about single nodes, links and devices, or one finding that all are alike."""
    search = (reports.get(0) or {}).get("slow")
    if not isinstance(search, dict):
        return [Finding("slow-node", "skipped", "not searched: there was no all-reduce")]
    steps = search.get("rounds", [])
    findings = []
    for node in search.get("nodes", {}):
        seen = f"all-reduces with it take {search['factor']} times as long, with every partner"
        findings.append(_bad("slow-node", hosts[int(node)], seen))
    for left, right in search.get("links", []):
        seen = f"{hosts[left]} and {hosts[right]} are {search['factor']} times slower together, not with others"
        remedy = "the link between them is slow: leave one of them out, and report it to the site's support"
        findings.append(Finding("slow-link", "warning", seen, remedy))
    for rank, factor in search.get("devices", {}).items():
        node, local = divmod(int(rank), plan.ranks_per_node)
        seen = f"the device of local rank {local} takes {factor} times as long for a product of matrices"
        findings.append(_bad("slow-device", hosts[node], seen))
    if not findings:
        how = f"{len(steps)} rounds" if plan.nodes >= _COMPARE else "products of matrices only: four nodes make pairs"
        alike = "no slow node, link or device found" if plan.world_size > 1 else "there is nothing to compare it with"
        findings.append(Finding("slow-node", "ok", f"{alike} ({how})"))
    return findings


def _bad(name: str, host: str, seen: str) -> Finding:
    remedy = "leave it out; `windlass nodes list` contains it, and the next jobs avoid it"
    return Finding(name, "error", seen, remedy, subject=host)
