"""Decides a job's cache: one configuration for all nodes, from which each node makes its own by its number."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from windlass.cache.node.config import NodeConfig, dump_config
from windlass.cache.node.roots import declare_roots
from windlass.errors import MachineError, UsageError

Placement = Literal["replicate", "partition"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheOptions:
    """What a user may choose. The defaults are right for an environment of some GB on up to 10,000 nodes."""

    budget_bytes: int = 2 << 30
    placement: Placement = "replicate"
    fanout: int = 4
    readers: int = 1
    chunk_bytes: int = 96 << 10
    allow_other: bool = False
    store_dir: str = ""
    port: int = 0


def plan_cache(
    *,
    job: str,
    hosts: tuple[str, ...],
    roots: tuple[str, ...],
    mount: str,
    state_dir: str,
    key_file: Path,
    trace_in: str = "",
    trace_out: str = "",
    options: CacheOptions | None = None,
) -> NodeConfig:
    """The configuration of node 0; `for_node` makes the others from it.

    `mount` and `state_dir` are node-local paths; `{node}` in them becomes the node's number, for several nodes on one
    machine. Raises `UsageError` for roots, hosts or options that cannot be, `MachineError` for a root that is missing.
    """
    chosen = options or CacheOptions()
    if not hosts:
        raise UsageError("a cache needs at least one host")
    if not roots:
        raise UsageError("a cache needs at least one root", hint="name a folder, for example --cache /path/to/env")
    if not job or any(c in job for c in "/,: \n"):
        raise UsageError(f"job name {job!r} cannot name a mount", hint="use letters, digits, dots and dashes")
    if chosen.budget_bytes < chosen.chunk_bytes:
        raise UsageError(f"a budget of {chosen.budget_bytes} bytes cannot hold one chunk of {chosen.chunk_bytes}")
    try:
        declared = declare_roots(roots)
    except OSError as error:
        raise MachineError(f"root {error.filename}: {error.strerror}", hint="roots are read from every node") from error
    for root in declared:
        if os.fsencode(mount).startswith(root.view + b"/") or root.view == b"/":
            raise UsageError(f"the mount {mount} cannot lie inside the root {os.fsdecode(root.view)}")
    return NodeConfig(
        job=job,
        node=0,
        hosts=hosts,
        roots=declared,
        state_dir=state_dir,
        key_file=str(key_file),
        mount=mount,
        store_dir=chosen.store_dir,
        budget_bytes=chosen.budget_bytes,
        chunk_bytes=chosen.chunk_bytes,
        fanout=chosen.fanout,
        readers=chosen.readers,
        placement=chosen.placement,
        port=chosen.port,
        allow_other=chosen.allow_other,
        trace_in=trace_in,
        trace_out=trace_out,
    )


def write_key(path: Path) -> Path:
    """A new key in a file that only its owner can read. Raises `MachineError` where the file exists."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise MachineError(f"cannot write the job's key to {path}: {error.strerror}") from error
    with os.fdopen(fd, "wb") as file:
        file.write(secrets.token_bytes(32))
    return path


def write_plan(path: Path, config: NodeConfig) -> Path:
    """The file every node reads; it holds no secret."""
    path.write_text(dump_config(config))
    return path


def view_path(config: NodeConfig, path: str) -> str | None:
    """Where a path of the shared file system appears in the view, or None where it lies outside the roots.

    A path that leads into a root by another name (through a symbolic link) is found as well.
    """
    plain = os.fsencode(os.path.normpath(Path.cwd() / path))
    for name in (plain, os.path.realpath(plain)):
        for root in config.roots:
            for base in (root.view, root.real):
                if name == base or name.startswith(base + b"/"):
                    return config.mount + os.fsdecode(root.view + name[len(base) :])
    return None
