"""Measure the current cluster and write a site file for it: `windlass sites adopt`, `windlass init`.

Also writes the user's `config.toml`: sets keys in place and keeps the rest of the file.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from windlass.backends.schedulers import get_scheduler
from windlass.backends.schedulers.base import Scheduler
from windlass.base.procs.command import run_command, which
from windlass.base.settings import CONFIG_FILE, ConfigFolders, read_config
from windlass.errors import MachineError, UsageError, WindlassError, os_errors
from windlass.model.request import Allocation
from windlass.model.site import Site
from windlass.model.topology import Nic, Topology
from windlass.node.sys.atomic import replace_file
from windlass.node.sys.reading import read_text
from windlass.plan.environment.modules import loaded_modules
from windlass.run.context import find_allocation
from windlass.run.remote import probe_node
from windlass.run.rendezvous import is_this_host
from windlass.run.scheduler_commands import scheduler_environ
from windlass.sites.adopted import Measurements, site_file_text
from windlass.sites.catalog import load_site
from windlass.sites.check import check_text
from windlass.sites.detect import detect_site, generic_site
from windlass.sites.evidence import Evidence
from windlass.sites.folders import catalog_names, catalog_path
from windlass.sites.topology.described import probe_topology, spec_of_topology

_ASK_TIMEOUT_S = 15.0
_LAUNCHERS = {"slurm": ("srun", "--version"), "flux": ("flux", "--version"), "pbs": ("mpiexec", "--version")}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, kw_only=True, slots=True)
class AdoptedSite:
    """A written site file and the measurements it is based on."""

    path: Path
    seen: Measurements


def adopt_site(
    name: str, environ: Mapping[str, str], *, folders: ConfigFolders, target: Path | None = None, replace: bool = False
) -> AdoptedSite:
    """Measure this cluster and write a site file for it, to the user's configuration or to `target`."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"a site cannot be called {name!r}", hint="letters, digits and . _ - inside")
    if catalog_path("site", name):
        raise UsageError(f"{name} is in the catalog already", hint="choose another name")
    path = target or folders["user"] / "sites" / f"{name}.toml"
    if path.exists() and not replace:
        raise UsageError(f"{path} already exists", hint="--force replaces it; --output FILE writes elsewhere")
    seen = measurements(name, ask_cluster(environ))
    text = site_file_text(seen)
    problems = check_text(
        text, file=str(path), stem=name, known=lambda kind: catalog_names(kind, folders), builtin=False
    )
    if problems:
        raise MachineError(
            f"the measurement gives no valid site file: {problems[0].sentence()}", hint="please report this"
        )
    with os_errors(f"write {path}", hint="--output FILE writes elsewhere"):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode(), 0o644)
    return AdoptedSite(path=path, seen=seen)


class ClusterAnswers(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Raw answers of a cluster on one day. `measurements` converts them to the facts of a site file on any machine."""

    date: str
    """Format: 2026-08-19."""
    evidence: Evidence
    answers: dict[str, str] = {}
    """Output of each command that exists here. Empty if the command failed or timed out."""
    allocation: Allocation | None = None
    topology: Topology | None = None
    """A compute node: the first node of the allocation, or this machine if there is no scheduler."""
    modules: tuple[str, ...] = ()


def ask_cluster(environ: Mapping[str, str]) -> ClusterAnswers:
    """Collect what can be measured from here.

    Inside an allocation, its first node is probed. Outside of an allocation, no compute node is probed. Raises
    `MachineError` if the node of the allocation cannot be probed.
    """
    evidence = detect_site(environ=environ, ask_scheduler=True).evidence
    site = load_site(generic_site(evidence))
    scheduler = get_scheduler(site.file.scheduler.kind)
    allocation = find_allocation(environ)
    found = scheduler_environ(scheduler, environ)
    return ClusterAnswers(
        date=datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat(),
        evidence=evidence,
        answers={" ".join(argv): _asked(argv, found) for argv in _questions(scheduler) if which(argv[0], found)},
        allocation=allocation,
        topology=_look(site, allocation, environ),
        modules=loaded_modules(environ),
    )


def measurements(name: str, seen: ClusterAnswers) -> Measurements:
    """Convert the answers of a cluster to the facts of a site file. Pure."""
    generic = generic_site(seen.evidence)
    scheduler = get_scheduler(load_site(generic).file.scheduler.kind)
    queues = "\n".join(filter(None, (seen.answers.get(" ".join(argv)) for argv in scheduler.queues_argv())))
    offers = seen.answers.get(" ".join(scheduler.offers_argv() or ()), "")
    facts = Measurements(
        name=name,
        date=seen.date,
        extends=generic,
        scheduler=scheduler.name,
        cluster_name=seen.evidence.cluster_name if scheduler.name == "slurm" else None,
        queues=scheduler.parse_queues(queues) if queues else (),
        offers=scheduler.parse_offers(offers) if offers else (),
        launcher=_launcher(scheduler, seen.answers),
        modules=seen.modules,
    )
    return _with_node(facts, seen.topology, seen.allocation)


def _questions(scheduler: Scheduler) -> tuple[tuple[str, ...], ...]:
    """Commands that report what the cluster is and which launcher it has."""
    offers, launcher = scheduler.offers_argv(), _LAUNCHERS.get(scheduler.name)
    return (*scheduler.queues_argv(), *((offers,) if offers else ()), *((launcher,) if launcher else ()))


def _look(site: Site, allocation: Allocation | None, environ: Mapping[str, str]) -> Topology | None:
    """Probe a compute node: one of the allocation, or this machine if there is no scheduler."""
    if allocation is None:
        return probe_topology() if site.file.scheduler.kind == "none" else None
    if any(is_this_host(host, environ) for host in allocation.hosts):
        return probe_topology(allowed_by="cgroup")
    return probe_node(allocation.hosts[0], site.file.launcher.kind, site.file.launcher, environ).topology


def _with_node(seen: Measurements, topology: Topology | None, allocation: Allocation | None) -> Measurements:
    if topology is None:
        reason = f"run `windlass sites adopt {seen.name} --force` inside an allocation, which looks at its first node"
        return msgspec.structs.replace(seen, node_missing=reason)
    network = fabric_of(topology.nics)
    spec, reason = spec_of_topology(topology)
    if spec is None:
        return msgspec.structs.replace(seen, network=network, node_missing=reason)
    return msgspec.structs.replace(
        seen,
        network=network,
        node=spec[0],
        devices=spec[1],
        node_host=allocation.hosts[0] if allocation else "this machine",
        node_partition=allocation.partition if allocation else None,
    )


def fabric_of(nics: tuple[Nic, ...]) -> str | None:
    """Return the catalog's network for these devices, or None.

    CXI is Slingshot 11. An `ib` interface with an RDMA device is InfiniBand. RDMA over Ethernet and plain Ethernet
    return None.
    """
    if any(nic.device.startswith("cxi") for nic in nics):
        return "slingshot-11"
    if any(nic.device and nic.name.startswith("ib") for nic in nics):
        return "infiniband"
    return None


def _launcher(scheduler: Scheduler, answers: Mapping[str, str]) -> str | None:
    """Return the launcher of this cluster, or None if unknown. PBS has no launcher, and `mpiexec` prints its vendor."""
    argv = _LAUNCHERS.get(scheduler.name)
    said = answers.get(" ".join(argv)) if argv else None
    if argv is None or said is None:
        return None
    if argv[0] != "mpiexec":
        return argv[0]
    known = (("HYDRA", "hydra"), ("Open MPI", "openmpi"), ("OpenRTE", "openmpi"), ("PALS", "pals"))
    return next((launcher for word, launcher in known if word in said), None)


def _asked(argv: tuple[str, ...], environ: Mapping[str, str]) -> str:
    """Return the output of a command, or an empty string if it fails or times out."""
    try:
        return run_command(argv, timeout_s=_ASK_TIMEOUT_S, env=environ, check=True).stdout
    except WindlassError:
        return ""


_TABLE = re.compile(r"^\s*\[\s*(?P<name>[^\[\]]+?)\s*\]\s*(?:#.*)?$")


def write_config(config_dir: Path, site: str | None, keys: Mapping[str, str]) -> Path:
    """Set `keys` in the user's configuration, for all sites or for one.

    Raises `ConfigError` if the existing file is invalid, and does not change it.
    """
    path = config_dir / CONFIG_FILE
    read_config(path)
    with os_errors(f"write {path}", hint="set WINDLASS_CONFIG"):
        text = read_text(path, follow=True).lstrip("\ufeff") if path.exists() else ""
        config_dir.mkdir(parents=True, exist_ok=True)
        replace_file(path, with_keys(text, f"sites.{site}" if site else None, keys).encode(), 0o600)
    read_config(path)
    return path


def with_keys(text: str, table: str | None, keys: Mapping[str, str]) -> str:
    """Return the text of a TOML file with these keys of a table (None: the top level) set to strings."""
    lines = text.splitlines()
    start, end = _range_of(lines, table)
    if start is None:
        lines += ["", f"[{table}]"] if lines else [f"[{table}]"]
        start = end = len(lines)
    for key, value in keys.items():
        line = f"{key} = {json.dumps(value, ensure_ascii=False)}"
        at = next((n for n in range(start, end) if re.match(rf"\s*{re.escape(key)}\s*=", lines[n])), None)
        if at is None:
            lines.insert(end, line)
            end += 1
        else:
            lines[at] = line
    return "\n".join(lines) + "\n"


def _range_of(lines: list[str], table: str | None) -> tuple[int | None, int]:
    """Return the first line after the table's header and the line after its last key. None without such a table."""
    heads = [(n, match["name"].replace('"', "")) for n, line in enumerate(lines) if (match := _TABLE.match(line))]
    start = 0 if table is None else next((n + 1 for n, name in heads if name == table), None)
    if start is None:
        return None, len(lines)
    end = next((n for n, _ in heads if n >= start), len(lines))
    while end > start and not lines[end - 1].strip():
        end -= 1
    return start, end
