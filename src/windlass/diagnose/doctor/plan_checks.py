"""Checks that need no node: variables, the user's command and the plan, against known problems. Pure."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from windlass.base.notation.counts import counted
from windlass.model.finding import Finding, Severity
from windlass.model.plan import Plan
from windlass.model.request import Request
from windlass.model.site import Site
from windlass.node.sys.text import listed
from windlass.plan.command import nested_launcher

_MISSPELT = {
    "FI_CXI_OVFLOW_BUF_SIZE": "FI_CXI_OFLOW_BUF_SIZE",
    "NCCL_NET_GDR_LVL": "NCCL_NET_GDR_LEVEL",
    "NCCL_SOCKET_IF_NAME": "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IF_NAME": "GLOO_SOCKET_IFNAME",
    "NCCL_IB_DISABLED": "NCCL_IB_DISABLE",
}
_DEBUGGING = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE")
_PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
_WORKERS = re.compile(r"\A-{0,2}(?:data[._-]?loader[._-])?(?:num[_-]?)?(?:data[_-])?workers(?:=(\d+))?\Z")
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "WANDB_MODE")
_MIN_CORES = 2
_STDLIB = sys.stdlib_module_names - {"__main__", "__init__", "setup"}


def rank_environ(plan: Plan, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the known variables of the ranks: the shell's variables, overridden by those of the plan."""
    found = dict(environ)
    for setting in plan.environment:
        if setting.value is None:
            found.pop(setting.name, None)
        elif not setting.joins:
            found[setting.name] = setting.value
    return found


def check_plan(plan: Plan, request: Request, site: Site, environ: Mapping[str, str]) -> list[Finding]:
    """Run all checks that need only the plan, the request and the environment."""
    variables = rank_environ(plan, environ)
    return [
        check_settings(variables, plan.nodes),
        check_nesting(request, variables, plan.ranks_per_node),
        check_proxies(variables, site.file.offline),
        check_workers(request, plan),
        check_shadowed(request),
    ]


def check_settings(variables: Mapping[str, str], nodes: int) -> Finding:
    """Check for settings that are known to hang, to slow down or to have no effect."""
    wrong: list[tuple[str, str]] = []
    severity: Severity = "warning"
    if variables.get("FI_MR_CACHE_MONITOR") == "memhooks":
        wrong.append(("FI_MR_CACHE_MONITOR=memhooks deadlocks with NCCL and RCCL", "set it to userfaultfd or kdreg2"))
        severity = "error"
    for name, right in _MISSPELT.items():
        if name in variables:
            wrong.append((f"{name} is not read by any library", f"use {right}"))
    net = variables.get("NCCL_NET")
    if net and net not in {"Socket", "IB"} and nodes == 1:
        text = f"NCCL_NET={net} is forced on one node: ranks of one node would use the network, or fail to start"
        wrong.append((text, "unset NCCL_NET for jobs on one node"))
        severity = "error"
    on = [name for name in _DEBUGGING if variables.get(name, "0") not in {"0", ""}]
    if on:
        wrong.append((f"{', '.join(on)} set: this disables the fast path between devices or nodes", "unset it"))
    visible = [n for n in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES") if n in variables]
    if len(visible) > 1 and len({variables[name] for name in visible}) > 1:
        wrong.append((f"{', '.join(visible)} conflict: each restricts the devices further", "set one of them"))
    if variables.get("NCCL_DEBUG") in {"INFO", "TRACE"} and nodes > 64 and "NCCL_DEBUG_FILE" not in variables:
        wrong.append((f"NCCL_DEBUG={variables['NCCL_DEBUG']} on every rank", "use --comm-log, for one rank"))
    if not wrong:
        return Finding("settings", "ok", "no variable with a known problem")
    return Finding("settings", severity, "; ".join(seen for seen, _ in wrong), "; ".join(remedy for _, remedy in wrong))


def check_nesting(request: Request, variables: Mapping[str, str], ranks_per_node: int) -> Finding:
    """Check for a launcher inside the ranks, or windlass inside another launcher."""
    name = "launcher-nesting"
    inside = nested_launcher(request.command) if request.kind in {"command", "script"} else None
    if request.kind == "module":
        inside = nested_launcher(("python", "-m", *request.command))
    if inside is not None and (ranks_per_node > 1 or inside in {"srun", "mpiexec", "mpirun"}):
        seen = f"the command starts {inside} inside every rank ({ranks_per_node} per node)"
        remedy = "leave it out: windlass starts one process per device and sets RANK, WORLD_SIZE and MASTER_ADDR"
        return Finding(name, "error", seen, remedy)
    if inside is not None:
        seen = f"{inside} runs inside windlass, one per node: its workers get no binding"
        return Finding(name, "warning", seen, "leave it out")
    if "TORCHELASTIC_RUN_ID" in variables or "OMPI_COMM_WORLD_RANK" in variables:
        other = "torchrun" if "TORCHELASTIC_RUN_ID" in variables else "mpirun"
        seen = f"windlass itself runs inside {other}: every one of its processes would start a whole run"
        return Finding(name, "error", seen, f"start windlass without {other}")
    seen = "no launcher inside the ranks" if request.command else "no launcher around windlass"
    return Finding(name, "ok", seen)


def check_proxies(variables: Mapping[str, str], offline: bool) -> Finding:
    """Check the proxy variables, and whether downloads at run time can work on the nodes."""
    proxies = sorted({name.lower() for name in _PROXIES if variables.get(name)})
    excluded = variables.get("no_proxy") or variables.get("NO_PROXY") or ""
    if proxies and not excluded:
        seen = f"{', '.join(proxies)} set without no_proxy: calls between nodes may use the proxy"
        return Finding("proxies", "warning", seen, "set no_proxy=localhost,127.0.0.1,.local")
    said = [name for name in _OFFLINE if variables.get(name, "0") not in {"0", "", "online"}]
    if offline and not proxies and not said:
        seen = "the nodes of this site have no internet access, and no offline variable is set"
        remedy = "download before the job; HF_HUB_OFFLINE=1 makes a missing file an error at once, not after minutes"
        return Finding("proxies", "warning", seen, remedy)
    if offline:
        return Finding("proxies", "ok", f"offline site; {', '.join(proxies + said)} set")
    return Finding("proxies", "ok", ", ".join(proxies) + " set" if proxies else "none set")


def loader_workers(words: tuple[str, ...]) -> int | None:
    """Return the number of DataLoader workers in the user's arguments, if a common option name is used."""
    for index, word in enumerate(words):
        match = _WORKERS.match(word.rpartition(".")[2] if "." in word.split("=")[0] else word)
        if not match:
            continue
        text = match[1] or (words[index + 1] if index + 1 < len(words) else "")
        if text.isdecimal():
            return int(text)
    return None


def check_shadowed(request: Request) -> Finding:
    """Check for files in the script's folder that Python imports instead of a standard module."""
    name = "shadowed-modules"
    scripts = [word for word in request.command[:2] if word.endswith(".py")]
    if request.kind not in {"script", "command"} or not scripts:
        return Finding(name, "skipped", "no script is named")
    folder = Path(scripts[0]).parent
    found = sorted(path for path in (*folder.glob("*.py"), *folder.glob("*/__init__.py")) if _module(path) in _STDLIB)
    if not found:
        return Finding(name, "ok", "no file next to the script has the name of a Python module")
    seen = f"{listed([str(path) for path in found])} is imported instead of Python's own module"
    return Finding(name, "warning", seen, "rename it: libraries that import the module would get this file")


def _module(path: Path) -> str:
    return path.parent.name if path.name == "__init__.py" else path.stem


def check_workers(request: Request, plan: Plan) -> Finding:
    """Compare the DataLoader workers of a rank with the cores that it gets."""
    name = "loader-workers"
    cores = [_cores(plan, rank.cpus) for rank in plan.binding.ranks if rank.cpus]
    if not cores:
        return Finding(name, "skipped", "ranks are not bound: they share the node's cores")
    least = min(cores)
    workers = loader_workers(request.command)
    if workers is None:
        seen = f"{counted(least, 'core')} for each rank"
        if least >= _MIN_CORES:
            return Finding(name, "ok", f"{seen}: room for {counted(least - 1, 'worker')}")
        remedy = "a rank with one core cannot load data during its step: use fewer ranks per node, or whole nodes"
        return Finding(name, "warning", seen, remedy)
    if workers + 1 > least:
        seen = f"{counted(workers, 'worker')} and the rank itself on {counted(least, 'core')}"
        remedy = f"use at most {max(least - 1, 1)} workers, or fewer ranks per node (-r)"
        return Finding(name, "warning", seen, remedy)
    return Finding(name, "ok", f"{counted(workers, 'worker')} on {counted(least, 'core')} for each rank")


def _cores(plan: Plan, cpus: tuple[int, ...]) -> int:
    """Return the number of physical cores among these hardware threads."""
    known = {cpu: core.id for core in plan.topology.cores for cpu in core.cpus}
    return len({known.get(cpu, cpu) for cpu in cpus})
