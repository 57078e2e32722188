"""Node-local caches after a run: saved where the user wants to keep them, then removed."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from string import Template

from windlass.launch.folder import RunFolder
from windlass.launch.output import View
from windlass.launch.script import JobFacts, cache_parent
from windlass.model.plan import Plan

_KEEP_FILE = "caches.tar"


def local_parent(plan: Plan, facts: JobFacts, environ: Mapping[str, str]) -> Path:
    """This run's cache folder on this node."""
    return Path(Template(cache_parent(plan, facts)).safe_substitute(environ))


def finish_caches(plan: Plan, folder: RunFolder, facts: JobFacts, environ: Mapping[str, str], view: View) -> None:
    """Save the first node's caches for the next job (--keep-caches), then remove them from this node. Never raises:
    the run has ended, and a cache is only a cache."""
    parent = local_parent(plan, facts, environ)
    if not parent.is_dir() or parent.is_symlink():
        return
    try:
        if plan.keep_caches:
            _save(parent / "n0", Path(plan.keep_caches))
    except OSError as error:
        view.note(f"windlass: the caches could not be saved to {plan.keep_caches}: {error.strerror or error}")
    shutil.rmtree(parent, ignore_errors=True)


def _save(source: Path, keep: Path) -> None:
    """One archive, replaced as a whole, so that a job which starts meanwhile reads the old one or the new one."""
    if not source.is_dir():
        return
    keep.mkdir(parents=True, exist_ok=True)
    partial = keep / f".{_KEEP_FILE}.{os.getpid()}"
    try:
        with tarfile.open(partial, "w") as archive:
            for entry in sorted(source.iterdir()):
                if entry.name != ".ready":
                    archive.add(entry, arcname=entry.name)
        partial.replace(keep / _KEEP_FILE)
    finally:
        partial.unlink(missing_ok=True)
