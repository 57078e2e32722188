"""Node-local caches after a run: saved if the user asked for it, then removed.

A file in the state folder names the run and its nodes until its caches are removed everywhere. A run that is killed
leaves this file. The next run on one of these nodes removes the caches there, if the killed run is over.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from string import Template

import msgspec

from windlass.agents.step import run_node_step
from windlass.backends.schedulers import get_scheduler
from windlass.backends.schedulers.base import JobState
from windlass.base.notation.hostlist import expand_hostlist
from windlass.base.notation.shell import expandable, quote
from windlass.base.settings import read_settings
from windlass.errors import WindlassError
from windlass.model.jsontext import from_json, to_json
from windlass.model.plan import Plan
from windlass.node.sys.atomic import create_file, replace_file, replacing
from windlass.node.sys.folders import open_own
from windlass.node.sys.identity import Process, start_of, this_process
from windlass.node.sys.reading import read_bytes, read_text
from windlass.plan.agents import plan_node_step
from windlass.plan.render.rank_lines import cache_parent, kept_folder
from windlass.plan.render.variables import JobFacts
from windlass.run.folder import RunFolder
from windlass.run.output import OutputView
from windlass.run.rendezvous import is_this_host
from windlass.run.scheduler_commands import ask_status
from windlass.run.trust import seal_file, why_no_file_seal

KEEP_FILE = "caches.tar"
_OWNER_FILE = ".owner"
_REMOVE_TIMEOUT_S = 30.0
_HASTY_TIMEOUT_S = 8.0
_SAVE_TIMEOUT_S = 300.0
_ASK_S = 2.0
_MAX_JOBS_ASKED = 3
_RUN_ID = re.compile(r"[0-9a-f]{1,32}(-[0-9a-f]{1,8})?")
_LIVE = {JobState.QUEUED, JobState.HELD, JobState.RUNNING, JobState.ENDING, JobState.UNKNOWN}


class UncleanNodes(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes of a run that may have its caches, and the windlass process that removes them at the end."""

    version: int = 1
    run_dir: str
    cache_root: str
    hosts: tuple[str, ...]
    scheduler: str
    job_id: str | None
    process: Process


def local_parent(plan: Plan, facts: JobFacts, environ: Mapping[str, str]) -> Path:
    """Return this run's cache folder on this node."""
    return Path(Template(cache_parent(plan, facts)).safe_substitute(environ))


def may_unpack(plan: Plan, folder: RunFolder, environ: Mapping[str, str], view: OutputView) -> bool:
    """Return whether the ranks may unpack the caches of an earlier job. Adds a note to the view if not.

    Code in the caches runs in the ranks, so this user must have created them.
    """
    archive = Path(plan.keep_caches or "/nonexistent") / KEEP_FILE
    if not plan.caches or not os.path.lexists(archive):
        return True
    why = why_no_file_seal(archive, folder.path, read_settings(environ).state_dir)
    if why:
        view.note(f"windlass: {archive} is not used: {why}. The ranks compile again, and this run saves a new one")
    return not why


def claim_caches(plan: Plan, folder: RunFolder, facts: JobFacts, environ: Mapping[str, str]) -> None:
    """Create this run's folder on this node with an owner mark, and remove the folders of killed runs.

    Also stores which other nodes will have caches. Never raises: the rank script creates missing folders and reports
    errors.
    """
    parent = local_parent(plan, facts, environ)
    with contextlib.suppress(OSError):
        for old in parent.parent.glob(f"windlass-{facts.uid}-*"):
            if old != parent and old.is_dir() and not old.is_symlink() and _owner_is_dead(old):
                shutil.rmtree(old, ignore_errors=True)
        if plan.caches:
            _store_unclean(plan, folder, facts, environ)
            parent.mkdir(mode=0o700)
            create_file(
                parent / _OWNER_FILE, f"{socket.gethostname()} {os.getpid()} {start_of(os.getpid())}\n".encode()
            )


def _others(hosts: tuple[str, ...], environ: Mapping[str, str]) -> bool:
    """Return whether one of these is another node than this one."""
    return len(hosts) > 1 or (len(hosts) == 1 and not is_this_host(hosts[0], environ))


def _unclean_folder(environ: Mapping[str, str]) -> Path:
    return read_settings(environ).state_dir / "unclean"


def _store_unclean(plan: Plan, folder: RunFolder, facts: JobFacts, environ: Mapping[str, str]) -> None:
    """Store the nodes of this start, in addition to those of earlier starts of the run."""
    hosts = expand_hostlist(plan.hosts) if plan.hosts else ()
    if not _others(hosts, environ):
        return
    file = _unclean_folder(environ) / facts.run_id
    before = _read_unclean(file)
    entry = UncleanNodes(
        run_dir=str(folder.path),
        cache_root=plan.cache_root,
        hosts=tuple(dict.fromkeys((*(before.hosts if before else ()), *hosts))),
        scheduler=plan.scheduler,
        job_id=plan.job_id,
        process=this_process(),
    )
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(file, to_json(entry))


def _read_unclean(file: Path) -> UncleanNodes | None:
    """Read one of these files. None if another user could have written it: a state folder may be shared."""
    try:
        os.close(open_own(file))
        return from_json(read_bytes(file), UncleanNodes)
    except (OSError, msgspec.DecodeError):
        return None


def _forget_unclean(file: Path, hosts: tuple[str, ...]) -> None:
    """Record that these nodes have no caches of the run any more."""
    entry = _read_unclean(file)
    with contextlib.suppress(OSError):
        left = tuple(host for host in entry.hosts if host not in hosts) if entry is not None else ()
        if entry is not None and left:
            replace_file(file, to_json(msgspec.structs.replace(entry, hosts=left)))
        else:
            file.unlink(missing_ok=True)


def leftover_caches(plan: Plan, facts: JobFacts, environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return id and folder of killed runs whose caches may be on nodes of this plan. Never raises.

    A run is killed if its windlass process is gone. If that process was on another machine, the scheduler must report
    that its job is over.
    """
    hosts = frozenset(expand_hostlist(plan.hosts)) if plan.hosts else frozenset()
    found: list[tuple[str, str]] = []
    over: dict[tuple[str, str | None], bool] = {}
    with contextlib.suppress(OSError):
        for file in sorted(_unclean_folder(environ).iterdir()):
            entry = _read_unclean(file) if _RUN_ID.fullmatch(file.name) and file.name != facts.run_id else None
            if entry is None or entry.cache_root != plan.cache_root or hosts.isdisjoint(entry.hosts):
                continue
            job = (entry.scheduler, entry.job_id)
            alive = entry.process.alive()
            if alive is None and job not in over and len(over) < _MAX_JOBS_ASKED:
                over[job] = _job_is_over(entry, plan, environ)
            if alive is False or (alive is None and over.get(job)):
                found.append((file.name, entry.run_dir))
    return tuple(found)


def _job_is_over(entry: UncleanNodes, plan: Plan, environ: Mapping[str, str]) -> bool:
    """Return whether the scheduler reports the end of that job. Without an answer the job may be running."""
    if entry.job_id is None or entry.job_id == plan.job_id or entry.scheduler != plan.scheduler:
        return False
    try:
        scheduler = get_scheduler(entry.scheduler)
        status = ask_status(scheduler, entry.job_id, environ, _ASK_S, from_job=plan.job_id is not None)
    except WindlassError:
        return False
    return status.gone or status.state not in _LIVE


def _owner_is_dead(folder: Path) -> bool:
    """Return whether the folder is provably a leftover: it is ours, and its windlass process here is gone."""
    try:
        if folder.stat().st_uid != os.getuid():
            return False
        host, pid, ticks = read_text(folder / _OWNER_FILE).split()
    except (OSError, ValueError):
        return False
    return host == socket.gethostname() and start_of(int(pid)) != ticks


def finish_caches(
    plan: Plan,
    folder: RunFolder,
    facts: JobFacts,
    environ: Mapping[str, str],
    view: OutputView,
    *,
    in_haste: bool = False,
) -> None:
    """Save the first node's caches for the next job (--keep-caches), then remove them from all nodes.

    If windlass runs on another node (after salloc, this is the login node), the first node saves them. If the job is
    being ended (`in_haste`), only a few seconds are spent on other nodes: a job that is ending may not be able to start
    steps. The next run on these nodes then removes what is left. Never raises: the run has ended, and a cache can be
    rebuilt.
    """
    parent = local_parent(plan, facts, environ)
    if parent.is_symlink() or not plan.caches:
        return
    try:
        if plan.keep_caches and (parent / "n0").is_dir():
            _save(parent / "n0", Path(plan.keep_caches))
            seal_file(Path(plan.keep_caches) / KEEP_FILE, folder.path, read_settings(environ).state_dir)
        elif plan.keep_caches and plan.hosts and not in_haste:
            _save_elsewhere(plan, folder, facts, environ)
    except OSError as error:
        view.note(f"windlass: the caches could not be saved to {plan.keep_caches}: {error.strerror or error}")
    except WindlassError as error:
        view.note(f"windlass: the caches could not be saved to {plan.keep_caches}: {error.message}")
    held = parent.is_dir() and any(path.is_file() and path.name != _OWNER_FILE for path in parent.rglob("*"))
    remove_caches(plan, facts, environ)
    hosts = expand_hostlist(plan.hosts) if plan.hosts else ()
    for run_id, _ in facts.leftovers:  # the ranks of this run have removed these
        _forget_unclean(_unclean_folder(environ) / run_id, hosts)
    if not _others(hosts, environ):
        return
    timeout_s = _HASTY_TIMEOUT_S if in_haste else _REMOVE_TIMEOUT_S
    try:
        _remove_elsewhere(plan, folder, facts, environ, timeout_s)
    except WindlassError as error:
        if held and not in_haste:
            view.note(f"windlass: caches may be left in {parent} on the other nodes: {error.message}")
    else:
        _forget_unclean(_unclean_folder(environ) / facts.run_id, hosts)


def remove_caches(plan: Plan, facts: JobFacts, environ: Mapping[str, str]) -> None:
    """Remove this run's caches from this node."""
    parent = local_parent(plan, facts, environ)
    if parent.is_dir() and not parent.is_symlink():
        shutil.rmtree(parent, ignore_errors=True)
    kept = Path(Template(kept_folder(plan, facts)).safe_substitute(environ))
    with contextlib.suppress(OSError):
        for link in kept.iterdir():
            if link.is_symlink() and link.readlink().is_relative_to(parent):
                link.unlink()
        kept.rmdir()


def _remove_elsewhere(
    plan: Plan, folder: RunFolder, facts: JobFacts, environ: Mapping[str, str], timeout_s: float
) -> None:
    """Remove the caches of the other nodes too. Raises `WindlassError` if a node could not do it."""
    text = (
        f"rm -rf {expandable(cache_parent(plan, facts))}; w_kept={expandable(kept_folder(plan, facts))}; "
        '[ -O "$w_kept" ] && [ ! -L "$w_kept" ] && cd "$w_kept" || exit 0; '
        'for w_link in *; do [ -e "$w_link" ] || rm -f "$w_link"; done; cd /; rmdir "$w_kept" 2>/dev/null; :'
    )
    step = plan_node_step(plan, "end", host_file="step-hosts")
    run_node_step(step, ("/bin/sh", "-c", text), environ=environ, timeout_s=timeout_s, folder=folder)


def _save_elsewhere(plan: Plan, folder: RunFolder, facts: JobFacts, environ: Mapping[str, str]) -> None:
    """Save the caches with a step on the first node, if this is another node. A node without caches saves nothing."""
    first = expand_hostlist(plan.hosts or "")[0]
    if is_this_host(first, environ):
        return
    keep = quote(plan.keep_caches or "")
    text = (
        f"w_parent={expandable(cache_parent(plan, facts))}; "
        '[ -O "$w_parent" ] && [ ! -L "$w_parent" ] && cd "$w_parent/n0" 2>/dev/null || exit 0; '
        f"mkdir -p {keep} && w_new=$(mktemp {keep}/.{KEEP_FILE}.XXXXXXXX) || exit 1; "
        f'tar --format=pax --exclude=./.ready -cf "$w_new" . && mv -f "$w_new" {keep}/{KEEP_FILE} || '
        '{ rm -f "$w_new"; exit 1; }'
    )
    step = plan_node_step(plan, "keep", hosts=(first,), host_file="step-hosts")
    run_node_step(step, ("/bin/sh", "-c", text), environ=environ, timeout_s=_SAVE_TIMEOUT_S, folder=folder)
    seal_file(Path(plan.keep_caches or "") / KEEP_FILE, folder.path, read_settings(environ).state_dir)


def _exact_time(source: Path) -> Callable[[tarfile.TarInfo], tarfile.TarInfo]:
    """Return a filter that keeps times to the nanosecond. Build tools compare them with recorded times."""

    def exact(info: tarfile.TarInfo) -> tarfile.TarInfo:
        whole, part = divmod((source / info.name).lstat().st_mtime_ns, 10**9)
        info.pax_headers = {**info.pax_headers, "mtime": f"{whole}.{part:09d}"}
        return info

    return exact


def _save(source: Path, keep: Path) -> None:
    """Write one archive and replace the old one atomically. A job that starts now reads the old or the new one."""
    if not source.is_dir():
        return
    keep.mkdir(parents=True, exist_ok=True)
    with (
        replacing(keep / KEEP_FILE) as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for entry in sorted(source.iterdir()):
            if entry.name != ".ready":
                archive.add(entry, arcname=entry.name, filter=_exact_time(source))
