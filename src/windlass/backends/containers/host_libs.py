"""Whether a container gets the host's network libraries, and what that adds to it: two folders in its search path.

Which files these are, each node finds out for itself before the ranks start (`images/node/place.py`); here it is only
decided that it looks, for what, and where the result is seen inside. Pure.
"""

from __future__ import annotations

from windlass.model.condition import Facts
from windlass.model.origin import Origin
from windlass.model.plan import HostLibs, Setting
from windlass.model.site import HostLibrariesSpec

FOLDER = "${WINDLASS_CACHE_DIR}/../host-libs"
"""Beside the job's caches on the node, which every runtime shows inside at the same place."""
NONE = "none"


def host_libs_plan(
    spec: HostLibrariesSpec, wanted: str | None, means: tuple[str, ...], facts: Facts, origin: Origin
) -> HostLibs | None:
    """What the nodes look for; None where the image stays as it is: the user says so, the site brings the libraries in
    by its own `means`, the fabric needs none, or there is one node."""
    if wanted == NONE:
        return None
    if wanted is not None:
        return HostLibs(
            names=spec.names,
            folders=spec.folders,
            provider=spec.provider,
            own=wanted,
            because="you asked for it",
            origin=Origin(scope="flag", where="--host-libs"),
        )
    if not spec.names or facts.nodes < 2 or means:
        return None
    return HostLibs(
        names=spec.names,
        folders=spec.folders,
        provider=spec.provider,
        because=spec.because or "the fabric's libraries are the host's",
        origin=origin,
    )


def host_libs_note(taken: HostLibs) -> str:
    """For the plan, in the words of `strategy_note`."""
    what = f"every network library in {taken.own}" if taken.own else ", ".join(taken.names)
    unless = (
        f"; nothing where the image's own libfabric has {taken.provider}" if taken.provider and not taken.own else ""
    )
    return f"host-inject: each node puts {what} and what it needs into the job's folder{unless}"


def host_libs_settings(taken: HostLibs | None) -> tuple[Setting, ...]:
    """The search path inside: network libraries first, what they need and the image lacks last."""
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
        because="what these need and the image lacks, behind all that the image has",
        origin=taken.origin,
    )
    return (front, behind)
