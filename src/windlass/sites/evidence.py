"""Gather evidence about this machine without slow queries. This is the only I/O of detection.

No name service is queried, because `getfqdn` may hang for minutes on a compute node. The domain comes from the host
name itself, from `/etc/resolv.conf` and from the scheduler's own configuration. Every access to a path has a deadline,
because a dead file system blocks even `stat`.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from windlass.base.procs.command import run_command, which
from windlass.errors import CommandError
from windlass.node.sys.reading import open_plain

SchedulerKind = Literal["slurm", "pbs", "flux"]

_JOB_VARIABLES: dict[SchedulerKind, tuple[str, ...]] = {
    "slurm": ("SLURM_JOB_ID", "SLURM_JOBID"),
    "pbs": ("PBS_JOBID",),
    "flux": ("FLUX_JOB_ID", "FLUX_URI"),
}
_COMMANDS: dict[SchedulerKind, str] = {"slurm": "sbatch", "pbs": "qsub", "flux": "flux"}
_SLURM_CONF = ("etc/slurm/slurm.conf", "run/slurm/conf/slurm.conf", "etc/slurm-llnl/slurm.conf")
_CLUSTER_NAME = re.compile(r"^\s*ClusterName\s*=\s*(\S+)", re.IGNORECASE | re.MULTILINE)
_PBS_SERVER = re.compile(r"^\s*PBS_SERVER\s*=\s*(\S+)", re.MULTILINE)
_PBS_EXEC = re.compile(r"^[ \t]*PBS_EXEC=[\"']?(/[^\s\"']*)", re.MULTILINE)
_READ_BYTES = 1 << 20


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The evidence. Absent values are empty, not guessed."""

    hostname: str = ""
    domains: dict[str, str] = {}
    """Maps a domain to the place where it was read."""
    cluster_name: str | None = None
    cluster_where: str = ""
    variables: dict[str, str] = {}
    files: tuple[str, ...] = ()
    schedulers: dict[str, str] = {}
    """Maps a scheduler to the way in which it was detected."""
    job: str | None = None
    """The scheduler of the job in which this process runs."""
    arch: str = ""
    vendor: str | None = None
    """Vendor of the devices, if they were probed."""


def gather_evidence(
    *,
    environ: Mapping[str, str],
    variables: Iterable[str] = (),
    paths: Iterable[str] = (),
    hostname: str | None = None,
    root: Path = Path("/"),
    ask_scheduler: bool = False,
) -> Evidence:
    """Gather the evidence. `variables` and `paths` are those that the catalog's sites look for.

    With `ask_scheduler`, Slurm may be asked for the cluster's name if no file contains it. This can take seconds.
    """
    host = socket.gethostname() if hostname is None else hostname
    job = _job(environ)
    schedulers = _schedulers(environ, job, root)
    name, name_where = _cluster_name(environ, root)
    if name is None and ask_scheduler and "slurm" in schedulers:
        name, name_where = _asked_cluster_name(environ), "scontrol show config"
    return Evidence(
        hostname=host.split(".", 1)[0],
        domains=_domains(host, environ, root),
        cluster_name=name,
        cluster_where=name_where if name else "",
        variables={key: environ[key] for key in sorted(set(variables)) if environ.get(key)},
        files=existing(paths, root=root),
        schedulers=schedulers,
        job=job,
        arch=os.uname().machine,
    )


def existing(paths: Iterable[str], *, root: Path = Path("/"), deadline_s: float = 1.0) -> tuple[str, ...]:
    """Those of `paths` that exist, as far as the file systems answer within the deadline."""
    wanted = sorted(set(paths))
    found: list[str] = []

    def look(path: str) -> None:
        if os.path.lexists(root / path.lstrip("/")):
            found.append(path)

    # One thread per path, so that a dead file system does not hide the results of the others. The threads are daemons,
    # so that a blocked thread does not keep the process alive.
    threads = [threading.Thread(target=look, args=(path,), daemon=True) for path in wanted]
    for thread in threads:
        thread.start()
    step_s = deadline_s / max(1, len(threads))
    for thread in threads:
        thread.join(timeout=step_s)
    return tuple(sorted(found))


def _job(env: Mapping[str, str]) -> SchedulerKind | None:
    for kind, names in _JOB_VARIABLES.items():
        if any(env.get(name) for name in names):
            return kind
    return None


def _schedulers(env: Mapping[str, str], job: SchedulerKind | None, root: Path) -> dict[str, str]:
    """Schedulers that can be used. A client command without configuration does not count."""
    seen: dict[str, str] = {}
    if job is not None:
        seen[job] = f"this is a {job} job"
    for kind, command in _COMMANDS.items():
        if kind in seen or not _configured(kind, env, root):
            continue
        if which(command, env):
            seen[kind] = f"{command} is in PATH and configured"
        elif kind == "pbs" and os.access(root / (place := _pbs_qsub(env, root)).lstrip("/"), os.X_OK):
            seen[kind] = f"{place} exists and is configured"
    return seen


def _pbs_qsub(env: Mapping[str, str], root: Path) -> str:
    """The path of qsub from PBS's own configuration. qsub is often missing in PATH."""
    conf = env.get("PBS_CONF_FILE")
    return f"{_match(_PBS_EXEC, _read(Path(conf) if conf else root / 'etc/pbs.conf')) or '/opt/pbs'}/bin/qsub"


def _configured(kind: SchedulerKind, env: Mapping[str, str], root: Path) -> bool:
    if kind == "slurm":
        named = env.get("SLURM_CONF") or env.get("SLURM_CONF_SERVER")
        return bool(named) or any((root / path).exists() for path in _SLURM_CONF)
    if kind == "pbs":
        return bool(env.get("PBS_CONF_FILE")) or (root / "etc/pbs.conf").exists()
    return True


def _domains(host: str, env: Mapping[str, str], root: Path) -> dict[str, str]:
    """Domains of this machine, the most significant first."""
    domains: dict[str, str] = {}
    own = host.partition(".")[2]
    if own:
        domains[own.lower()] = "host name"
    server = env.get("PBS_SERVER") or _match(_PBS_SERVER, _read(root / "etc/pbs.conf"))
    if server and "." in server:
        domains.setdefault(server.partition(".")[2], "PBS server")
    for line in _read(root / "etc/resolv.conf").splitlines():
        words = line.split()
        if words and words[0] in {"search", "domain"}:
            for domain in words[1:]:
                domains.setdefault(domain.strip(".").lower(), "/etc/resolv.conf")
    return domains


def _cluster_name(env: Mapping[str, str], root: Path) -> tuple[str | None, str]:
    if env.get("SLURM_CLUSTER_NAME"):
        return env["SLURM_CLUSTER_NAME"], "SLURM_CLUSTER_NAME"
    configured = env.get("SLURM_CONF")
    places = [Path(configured)] if configured else [root / place for place in _SLURM_CONF]
    for place in places:
        name = _match(_CLUSTER_NAME, _read(place))
        if name:
            return name, str(place)
    return None, ""


def _asked_cluster_name(env: Mapping[str, str]) -> str | None:
    """The cluster name from the controller, or None if it does not answer in time."""
    try:
        done = run_command(("scontrol", "show", "config"), timeout_s=5.0, env=env)
    except CommandError:
        return None
    return _match(_CLUSTER_NAME, done.stdout)


def _match(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return match.group(1) if match else None


def _read(path: Path) -> str:
    """The beginning of a small configuration file, or "" if it cannot be read."""
    try:
        with open_plain(path, follow=True) as file:
            return file.read(_READ_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
