"""Compare the reports of the examination's ranks with the plan, the site and each other. Pure."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from windlass.base.notation.counts import format_cpulist
from windlass.base.notation.hostlist import expand_hostlist
from windlass.diagnose.doctor.bandwidth import check_all_reduce
from windlass.diagnose.doctor.comm_log import Transport
from windlass.diagnose.doctor.health import odd_values
from windlass.model.finding import Finding, Severity
from windlass.model.plan import Plan
from windlass.node.checks.space import judge_limits
from windlass.node.sys.reading import open_plain
from windlass.node.sys.text import listed
from windlass.plan.inputs import PlanningContext

Reports = Mapping[int, Mapping[str, Any]]
HostOf = Callable[[int], str]

SLOW_LOOK_US = 500.0
SLOW_IMPORT_S = 20.0
_LOOKS_OF_IMPORT = 17_700
"""Number of stat calls of one `import torch`."""
_DRIVER_FOR_CUDA = {11: 450, 12: 525, 13: 580}
"""Lowest driver version that runs a torch built for this major version of CUDA."""


def rank_hosts(plan: Plan, reports: Reports) -> tuple[str, ...]:
    """Return the host of each node of the ranks, according to the reports of its ranks.

    A launcher may order the nodes differently from the plan. Nodes without a report get the remaining hosts, in order.
    """
    planned = expand_hostlist(plan.hosts) if plan.hosts else ("",)
    named = {host.partition(".")[0]: host for host in planned}
    found: dict[int, str] = {}
    for rank, report in reports.items():
        own = named.get(str(report.get("host", "")).partition(".")[0])
        if own is not None and rank < len(planned) * plan.ranks_per_node:
            found[rank // plan.ranks_per_node] = own
    if len(set(found.values())) < len(found):  # mock nodes and containers may all have the same name
        return planned
    left = [host for host in planned if host not in found.values()]
    return tuple(found[node] if node in found else left.pop(0) for node in range(len(planned)))


def check_ranks(
    plan: Plan,
    context: PlanningContext,
    reports: Reports,
    way: Transport,
    level: str,
    environ: Mapping[str, str],
    silent_s: float = 0.0,
) -> list[Finding]:
    """Run all checks of the ranks' reports. `silent_s`: how long they were silent before they were ended."""
    hosts = rank_hosts(plan, reports)
    first = {rank: report for rank, report in reports.items() if report.get("local_rank") == 0}

    def host_of(rank: int) -> str:
        return hosts[rank // plan.ranks_per_node] if len(hosts) > 1 else ""

    findings = check_affinity(plan, reports, host_of)
    for rank, report in first.items():
        found = [
            check_python(plan, report, environ),
            check_torch(plan, report, silent_s, elsewhere=any("import_s" in other for other in reports.values())),
            check_place(report, plan.nodes, level),
            check_plugin(plan, context, report),
            check_providers(plan, context, report),
            _limits(report),
            check_threads(report),
        ]
        findings += [msgspec.structs.replace(finding, subject=host_of(rank)) for finding in found]
    findings += _same_everywhere(first, host_of)
    if level != "quick":
        findings += check_all_reduce(plan, context.site, reports, way, silent_s)
    return findings


def check_affinity(plan: Plan, reports: Reports, host_of: HostOf) -> list[Finding]:
    """Compare the CPUs that each rank really got with the plan and with its neighbours. One finding per node."""
    planned = {rank.local_rank: frozenset(rank.cpus) for rank in plan.binding.ranks if rank.cpus}
    nodes: dict[int, list[int]] = {}
    for rank in reports:
        nodes.setdefault(rank // plan.ranks_per_node, []).append(rank)
    return [_affinity_of(plan, planned, reports, sorted(ranks), host_of) for ranks in nodes.values()]


def _affinity_of(
    plan: Plan, planned: Mapping[int, frozenset[int]], reports: Reports, ranks: list[int], host_of: HostOf
) -> Finding:
    wrong: list[str] = []
    narrow = False
    for rank in ranks:
        got = tuple(reports[rank].get("cpus", ()))
        local = rank % plan.ranks_per_node
        wanted = planned.get(local)
        if wanted is not None and set(got) != wanted:
            wrong.append(f"local rank {local} is on CPUs {format_cpulist(got)} instead of {format_cpulist(wanted)}")
            narrow = narrow or len(got) < len(wanted)
        elif wanted is None and len(got) == 1 and len(plan.topology.cores) > plan.ranks_per_node:
            wrong.append(f"local rank {local} is pinned to one CPU ({got[0]})")
            narrow = True
    host = host_of(ranks[0])
    if wrong:
        remedy = (
            "the launcher binds differently from the plan: allocate whole nodes (--exclusive), unset SLURM_CPU_BIND"
        )
        severity: Severity = "error" if narrow else "warning"
        return Finding("affinity", severity, listed(wrong, 3, "; "), remedy, subject=host)
    seen = "every rank is on the CPUs of the plan" if planned else "ranks are not bound"
    return Finding("affinity", "ok", seen, subject=host)


def check_python(plan: Plan, report: Mapping[str, Any], environ: Mapping[str, str]) -> Finding:
    """Compare the interpreter that the ranks really use with the planned one and with the one that is active here."""
    python = report.get("python", {})
    executable, prefix = str(python.get("executable", "")), str(python.get("prefix", ""))
    seen = f"Python {python.get('version')} at {executable}"
    planned = plan.command[0] if plan.command else ""
    if plan.container is None and planned.startswith("/") and not same_python(planned, executable, prefix):
        remedy = "a wrapper, a module or PATH on the node puts another one first: give it with --python"
        return Finding("python", "error", f"{seen}, where the plan has {planned}", remedy)
    active = environ.get("VIRTUAL_ENV") or environ.get("CONDA_PREFIX") or ""
    if plan.container is None and active and os.path.realpath(active) != os.path.realpath(prefix):
        remedy = "give it with --python or --activate"
        return Finding("python", "warning", f"{seen}, but {active} is active here", remedy)
    return Finding("python", "ok", seen)


def same_python(planned: str, executable: str, prefix: str) -> bool:
    """Return whether this is the planned interpreter.

    All environments of one Python link to the same file. If the interpreter belongs to an environment, the environment
    is compared.
    """
    if _is_script(planned):  # a wrapper script of the user: any interpreter that it starts is accepted
        return True
    home = str(Path(planned).parent.parent)
    if executable == planned or os.path.realpath(home) == os.path.realpath(prefix):
        return True
    marks = (f"{home}/pyvenv.cfg", f"{home}/conda-meta")
    is_environment = any(Path(mark).exists() for mark in marks)
    return not is_environment and os.path.realpath(planned) == os.path.realpath(executable)


def _is_script(path: str) -> bool:
    try:
        with open_plain(path, follow=True) as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def check_torch(plan: Plan, report: Mapping[str, Any], silent_s: float = 0.0, *, elsewhere: bool = False) -> Finding:
    """Check the torch of the ranks: installed, and built for these devices and their driver.

    An import that has not ended is an error if ranks `elsewhere` have imported it. Otherwise the file system may only
    be cold.
    """
    torch = report.get("torch") or {}
    if "import_error" in report:
        remedy = "install it again for this machine, in a new environment"
        if report.get("hiding"):
            remedy = f"unset {report['hiding']} or take the folder out of it: without it torch can be imported"
        return Finding("torch", "error", f"cannot be imported: {report['import_error']}", remedy)
    if report.get("importing") and silent_s:
        remedy = (
            "leave the node out"
            if elsewhere
            else "a cold file system can be this slow: run it again; `windlass run --cache ENVIRONMENT` reads it once"
        )
        late: Severity = "error" if elsewhere else "warning"
        return Finding("torch", late, f"`import torch` has not ended after {silent_s:.0f} s", remedy)
    if not torch:
        remedy = "install it there, or give another interpreter with --python, --activate or --module"
        severity: Severity = "error" if plan.topology.devices else "warning"
        return Finding("torch", severity, "this Python has no torch", remedy)
    built = next((f"{name} {torch[name]}" for name in ("cuda", "hip", "xpu") if torch.get(name)), "CPU")
    seen = f"{torch.get('version', '?')} for {built} in {torch.get('folder')}"
    vendor = plan.topology.devices[0].vendor if plan.topology.devices else None
    wanted = {"nvidia": "cuda", "amd": "hip", "intel": "xpu"}.get(vendor or "")
    if wanted and not torch.get(wanted) and plan.request.gpus_per_node != 0:
        remedy = f"install a torch built for {wanted}: this one cannot use the devices"
        return Finding("torch", "error", f"{seen}, on nodes with devices of {vendor}", remedy)
    driver = str(report.get("driver") or "")
    lowest = _DRIVER_FOR_CUDA.get(_major(str(torch.get("cuda", ""))), 0)
    if driver and lowest and _major(driver) < lowest:
        remedy = f"use a torch for an older CUDA, or a node with driver {lowest} or newer"
        return Finding("torch", "error", f"{seen}, but the driver is {driver}", remedy)
    return Finding("torch", "ok", seen + (f"; driver {driver}" if driver else ""))


def _major(version: str) -> int:
    word = version.split(".", 1)[0]
    return int(word) if word.isdecimal() else 0


def check_place(report: Mapping[str, Any], nodes: int, level: str) -> Finding:
    """Check the file system of the environment, and what an import costs there."""
    places = report.get("places") or [{}]
    worst = max(places, key=lambda place: (place.get("kind") == "shared", place.get("look_us", 0.0)))
    kind, look_us = worst.get("kind"), float(worst.get("look_us", 0.0))
    seconds = report.get("import_s")
    cost = f"import torch took {seconds:.1f} s" if seconds is not None else f"a stat() takes {look_us:.0f} µs"
    seen = f"{worst.get('path')} is on {worst.get('file_system')} ({worst.get('mount')}); {cost}"
    slow = look_us > SLOW_LOOK_US or (seconds or 0.0) > SLOW_IMPORT_S
    if slow:
        guess = f", so `import torch` takes about {look_us * _LOOKS_OF_IMPORT / 1e6:.0f} s" if seconds is None else ""
        seen += guess
    remedy = ""
    if kind == "shared" and (slow or nodes > 1):
        remedy = f"read it once for all nodes: windlass run --cache {worst.get('path')} …; or push it: windlass stage"
    elif slow:
        remedy = (
            "the disk of this node is slow or busy: stage the environment into memory (windlass stage), or cache it"
        )
    return Finding("environment", "warning" if remedy else "ok", seen, remedy, facts={"import_s": seconds})


def needs_plugin(plan: Plan, context: PlanningContext) -> bool:
    """Return whether the plan has several nodes and a fabric that NCCL and RCCL support only through a plugin."""
    devices = plan.topology.devices
    network = context.site.file.network or ""
    return (
        plan.nodes > 1
        and bool(devices)
        and devices[0].vendor in {"nvidia", "amd"}
        and network.startswith(("slingshot", "efa"))
    )


def check_plugin(plan: Plan, context: PlanningContext, report: Mapping[str, Any]) -> Finding:
    """Check the network plugin, in the environment or container of the ranks."""
    name = "network-plugin"
    network = report.get("network") or {}
    found: list[str] = list(network.get("found", ()))
    where = "the container" if plan.container is not None else "LD_LIBRARY_PATH of the ranks"
    if not found:
        if not needs_plugin(plan, context):
            return Finding(name, "skipped", "none found, none needed here")
        seen = f"no libnccl-net or librccl-net in {where}: NCCL falls back to TCP, ten times slower or more"
        remedy = "load the site's module for it, or bind it into the container (`windlass explain NCCL_NET`)"
        return Finding(name, "error", seen, remedy)
    if network.get("error"):
        remedy = "a library that it needs is missing there (libfabric, libcxi, the device runtime): load its module"
        return Finding(name, "error", f"{found[0]} does not load: {network['error']}", remedy)
    if len(found) > 1:
        seen = f"{found[0]} is used, but another one is installed: {', '.join(found[1:])}"
        remedy = "keep only one in LD_LIBRARY_PATH: two plugins of different versions crash or hang"
        return Finding(name, "warning", seen, remedy)
    return Finding(name, "ok", f"{found[0]} loads")


def check_providers(plan: Plan, context: PlanningContext, report: Mapping[str, Any]) -> Finding:
    """Check the providers of libfabric."""
    name = "libfabric"
    providers = (report.get("network") or {}).get("providers")
    if providers is None:
        return Finding(name, "skipped", "no fi_info in PATH")
    wanted = {"slingshot": "cxi", "efa": "efa"}.get((context.site.file.network or "").split("-", 1)[0])
    seen = f"providers {', '.join(providers) or 'none'}"
    if wanted and wanted not in providers:
        remedy = "this libfabric is not the site's: load its module, or bind it into the container"
        return Finding(name, "error", f"{seen}; {wanted} is missing", remedy)
    return Finding(name, "ok", seen)


def check_threads(report: Mapping[str, Any]) -> Finding:
    """Compare OMP_NUM_THREADS of the ranks with the CPUs that they got."""
    text, cpus = str(report.get("omp_threads", "")), len(report.get("cpus", ()))
    if text.isdecimal() and len(text) < 9 and 0 < cpus < int(text):
        seen = f"OMP_NUM_THREADS={text}, but a rank has {cpus} CPUs: its threads share cores"
        return Finding("threads", "warning", seen, f"unset it, or set OMP_NUM_THREADS={cpus}")
    return Finding("threads", "ok", f"OMP_NUM_THREADS is {text or 'not set'}")


def _limits(report: Mapping[str, Any]) -> Finding:
    """Check the limits of the ranks, which may differ from those of the node step."""
    found = judge_limits(report.get("limits") or {"files": -1, "locked": -1, "processes": -1}, False)
    return msgspec.convert({**found, "kind": "ulimits-of-the-ranks"}, Finding)


def _same_everywhere(first: Reports, host_of: HostOf) -> list[Finding]:
    """Check that Python, torch and variables are the same on all nodes.

    A difference on one node causes a hang later.
    """
    versions, variables = {}, {}
    names = {name for report in first.values() for name in report.get("variables", {})}
    for rank, report in first.items():
        python, torch = report.get("python", {}), report.get("torch") or {}
        versions[rank] = {"Python": python.get("version"), "torch": torch.get("version", "")}
        variables[rank] = {name: report.get("variables", {}).get(name, "") for name in sorted(names)}
    remedy = "use one environment that all nodes can read, or stage it again"
    findings = [
        Finding("same-environment", "error", "; ".join(odd.values()), remedy, subject=host_of(rank))
        for rank, odd in odd_values(versions).items()
    ]
    for rank, odd in odd_values(variables).items():
        remedy = f"a profile or module of this node differs: give all ranks one value (--env {next(iter(odd))}=…)"
        seen = listed(list(odd.values()), 4, "; ")
        findings.append(Finding("same-environment", "warning", seen, remedy, subject=host_of(rank)))
    return findings
