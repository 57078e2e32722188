"""Decide whether a container gets the host's network libraries, and report how they get into the container. Pure.

The libraries are either injected from the host or part of the image (baked). Both ways fail silently: without its
plugin, the collective library uses TCP at a tenth of the speed.

Injection adds two directories to the search path in the container. This module decides which libraries to look for and
where the container sees the result. Each node finds the files before the ranks start (`node/libs/place.py`).
"""

from __future__ import annotations

import re

from windlass.backends.containers.binds import mount_of
from windlass.model.condition import Facts, holds
from windlass.model.origin import Argument, Origin
from windlass.model.plan import HostLibs, Mount, Setting
from windlass.model.site import HostLibrariesSpec, Site

FOLDER = "${WINDLASS_CACHE_DIR}/../host-libs"
"""Next to the job's caches on the node. Every runtime shows it in the container at the same path."""
NONE = "none"


def host_libs_plan(
    spec: HostLibrariesSpec, wanted: str | None, means: tuple[str, ...], facts: Facts, origin: Origin
) -> HostLibs | None:
    """The libraries that the nodes look for, or None if the image is used without the host's libraries.

    None if the user asked for that, if the site adds the libraries by its `means`, if the fabric needs none, or if the
    job has one node."""
    if wanted == NONE:
        return None
    if wanted is not None:
        return HostLibs(
            names=spec.names,
            folders=spec.folders,
            provider=spec.provider,
            own=wanted,
            because="requested by you",
            origin=Origin(scope="flag", where="--host-libs"),
        )
    if not spec.names or facts.nodes < 2 or means:
        return None
    return HostLibs(
        names=spec.names,
        folders=spec.folders,
        provider=spec.provider,
        because=spec.because or "the libraries of the fabric come from the host",
        origin=origin,
    )


def host_libs_note(taken: HostLibs) -> str:
    """The note for the plan, in the same form as `strategy_note`."""
    what = f"every network library in {taken.own}" if taken.own else ", ".join(taken.names)
    unless = (
        f"; nothing if the image's own libfabric supports {taken.provider}" if taken.provider and not taken.own else ""
    )
    return f"host-inject: each node copies {what} and their dependencies into the job's folder{unless}"


def host_libs_settings(taken: HostLibs | None) -> tuple[Setting, ...]:
    """The search path in the container: network libraries first, then dependencies that the image lacks."""
    if taken is None:
        return ()
    front = Setting(
        name="LD_LIBRARY_PATH",
        value=f"{FOLDER}/front",
        expand=True,
        prepend=True,
        because="the host's network libraries, in front of the image's",
        origin=taken.origin,
    )
    behind = Setting(
        name="LD_LIBRARY_PATH",
        value=f"{FOLDER}/behind",
        expand=True,
        append=True,
        because="dependencies that the image lacks, after all folders of the image",
        origin=taken.origin,
    )
    return (front, behind)


_LIBRARY = re.compile(r"libcxi|libfabric|libmpi|/mpich|nccl|rccl|/opt/cray(/|$)|/host(/|$)|apptainer-enable-mpi")
_OPTION = re.compile(r"--(nccl|mpi|cuda-mpi|openmpi-pmi)|--module=.*(nccl|mpich)")
_HOOK = re.compile(r"com\.hooks\.(cxi|aws_ofi_nccl|netstack)\b")
_MODULE = re.compile(r"binding|enable-mpi|multi-node|nccl|mpich-abi", re.IGNORECASE)


def host_means(
    mounts: tuple[Mount, ...], arguments: tuple[Argument, ...], annotations: dict[str, str], modules: tuple[str, ...]
) -> tuple[str, ...]:
    """The mounts, options, hooks and modules of a site that add the host's network libraries to a container."""
    by = [m.source for m in mounts if _LIBRARY.search(m.source) or _LIBRARY.search(m.target)]
    by += [" ".join(a.words) for a in arguments if _OPTION.search(" ".join(a.words))]
    by += [key for key, value in annotations.items() if _HOOK.match(key) and value != "false"]
    by += [f"module {name}" for name in modules if _MODULE.search(name)]
    return tuple(dict.fromkeys(by))


def strategy_note(means: tuple[str, ...], nodes: int) -> str:
    """`host-inject: …` with the means that add the host's libraries, or `baked: …`."""
    if means:
        return f"host-inject: network libraries of the host are added by {', '.join(means)}"
    if nodes == 1:
        return "baked: one node, so no network library of the host is added"
    return (
        "baked: no network library of the host is added, so the image must contain libfabric and the collective "
        "library's plugin; without them it falls back to TCP"
    )


def site_means(site: Site) -> tuple[str, ...]:
    """The `host_means` of a site for containers on several nodes.

    Uses the site's default if the site has several runtimes. If empty, windlass looks for the libraries itself."""
    for spec in sorted(site.file.containers, key=lambda spec: not spec.default)[:1]:
        facts = Facts(
            nodes=2,
            ranks_per_node=1,
            scheduler=site.file.scheduler.kind,
            launcher=site.file.launcher.kind,
            container=True,
            runtime=spec.runtime,
        )
        mounts = tuple(mount_of(bind) for bind in spec.binds if holds(bind.when, facts))
        arguments = tuple(Argument(words=a.words, because=a.because) for a in spec.arguments if holds(a.when, facts))
        return host_means(mounts, arguments, spec.annotations, spec.modules)
    return ()
