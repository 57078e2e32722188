"""Node-local caches after a run: saved if the user asked for it, then removed."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from string import Template

from windlass.agents.step import run_node_step
from windlass.base.notation.hostlist import expand_hostlist
from windlass.base.notation.shell import expandable, quote
from windlass.base.settings import read_settings
from windlass.errors import WindlassError
from windlass.model.plan import Plan
from windlass.node.sys.atomic import create_file, replacing
from windlass.node.sys.identity import start_of
from windlass.node.sys.reading import read_text
from windlass.plan.agents import plan_node_step
from windlass.plan.render.rank_lines import cache_parent, kept_folder
from windlass.plan.render.variables import JobFacts
from windlass.run.folder import RunFolder
from windlass.run.output import OutputView
from windlass.run.rendezvous import is_this_host
from windlass.run.trust import seal_file, why_no_file_seal

KEEP_FILE = "caches.tar"
_OWNER_FILE = ".owner"
_REMOVE_TIMEOUT_S = 30.0
_SAVE_TIMEOUT_S = 300.0


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
        view.note(f"windlass: {archive} is not used: {why}. The ranks compile again, and this run keeps a new one")
    return not why


def claim_caches(plan: Plan, facts: JobFacts, environ: Mapping[str, str]) -> None:
    """Create this run's folder on this node with an owner mark, and remove the folders of killed runs.

    Never raises: the rank script creates missing folders and reports errors.
    """
    parent = local_parent(plan, facts, environ)
    with contextlib.suppress(OSError):
        for old in parent.parent.glob(f"windlass-{facts.uid}-*"):
            if old != parent and old.is_dir() and not old.is_symlink() and _owner_is_dead(old):
                shutil.rmtree(old, ignore_errors=True)
        if plan.caches:
            parent.mkdir(mode=0o700)
            create_file(
                parent / _OWNER_FILE, f"{socket.gethostname()} {os.getpid()} {start_of(os.getpid())}\n".encode()
            )


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
    being ended (`in_haste`), other nodes are contacted only if this node had cache files: time is short, and a job that
    is ending may not be able to start steps. Never raises: the run has ended, and a cache can be rebuilt.
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
    if not plan.hosts or (in_haste and not held):
        return
    if plan.nodes > 1 or not is_this_host(expand_hostlist(plan.hosts)[0], environ):
        _remove_elsewhere(plan, folder, facts, environ, view, worth_a_word=held)


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
    plan: Plan,
    folder: RunFolder,
    facts: JobFacts,
    environ: Mapping[str, str],
    view: OutputView,
    *,
    worth_a_word: bool,
) -> None:
    """Remove the caches of the other nodes too.

    Each rank script has created folders, and their content is not known here. If this node had no files, a failed step
    is not `worth_a_word`.
    """
    text = (
        f"rm -rf {expandable(cache_parent(plan, facts))}; w_kept={expandable(kept_folder(plan, facts))}; "
        '[ -O "$w_kept" ] && [ ! -L "$w_kept" ] && cd "$w_kept" || exit 0; '
        'for w_link in *; do [ -e "$w_link" ] || rm -f "$w_link"; done; cd /; rmdir "$w_kept" 2>/dev/null; :'
    )
    try:
        step = plan_node_step(plan, "end", host_file="step-hosts")
        run_node_step(step, ("/bin/sh", "-c", text), environ=environ, timeout_s=_REMOVE_TIMEOUT_S, folder=folder)
    except WindlassError as error:
        if worth_a_word:
            where = local_parent(plan, facts, environ)
            view.note(f"windlass: caches may be left in {where} on the other nodes: {error.message}")


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
