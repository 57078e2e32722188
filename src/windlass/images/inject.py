"""What would be put into an image on a host, in which order and why: the decision of a node, made here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from windlass.errors import MachineError
from windlass.images.node.decide import BEHIND, FRONT, ImageFacts
from windlass.images.node.place import decide_here
from windlass.model.site import HostLibrariesSpec

Strategy = Literal["baked", "host-inject", "refused"]


class InjectedLibrary(msgspec.Struct, frozen=True, kw_only=True):
    """One library of the host's closure; `where` is front, behind or image."""

    name: str
    source: str
    where: str
    because: str


class Injection(msgspec.Struct, frozen=True, kw_only=True):
    """The decision for one image on one host."""

    image: str
    strategy: Strategy
    because: str
    libraries: tuple[InjectedLibrary, ...] = ()
    refused: tuple[str, ...] = ()
    remedy: str = ""


def plan_injection(
    image: str, facts: ImageFacts, spec: HostLibrariesSpec, *, own: str = "", host_root: str = "/"
) -> Injection:
    """The decision on this machine, or on an unpacked copy of a node (`host_root`). Reads files, changes nothing."""
    if not spec.names and not own:
        return Injection(image=image, strategy="baked", because="this site's network needs nothing of the host")
    decision = decide_here(_settings(spec, own, host_root), facts)
    if decision.refused:
        return Injection(
            image=image,
            strategy="refused",
            because="the host's network libraries do not fit this image",
            refused=decision.refused,
            remedy=decision.remedy,
        )
    if not decision.placed:
        because = f"the image's own libfabric has {spec.provider}"
        return Injection(image=image, strategy="baked", because=because)
    libraries = tuple(
        InjectedLibrary(name=e.name, source=e.source, where=e.where, because=e.because) for e in decision.placed
    )
    because = f"you named {own}" if own else f"the image's libfabric lacks {spec.provider}"
    return Injection(image=image, strategy="host-inject", because=because, libraries=libraries)


def require_host_libraries(injection: Injection, site: str) -> None:
    """`MachineError` where this machine has none of the site's libraries at all: then it is no node of it."""
    if injection.refused and all(text.startswith("the host has no ") for text in injection.refused):
        raise MachineError(
            f"this machine has no {', '.join(text.rpartition(' ')[2] for text in injection.refused)}: "
            f"it is no node of {site}",
            hint="run this on a node of it, or give its files: --host-root DIR, --host-libs DIR",
        )


def _settings(spec: HostLibrariesSpec, own: str, host_root: str) -> Mapping[str, object]:
    return {
        "root": host_root,
        "names": spec.names,
        "folders": spec.folders,
        "provider": spec.provider,
        "own": own,
    }


def injection_text(injection: Injection) -> str:
    """For people: the strategy, then the libraries in the order in which the loader meets them."""
    lines = [f"{injection.image}: {injection.strategy}: {injection.because}"]
    titles = {
        FRONT: "in front of the image's libraries",
        BEHIND: "behind the image's libraries",
        "image": "stay the image's own",
    }
    for where, title in titles.items():
        entries = [library for library in injection.libraries if library.where == where]
        if entries:
            lines += ["", f"{title}:"]
            lines += [f"  {e.source if where != 'image' else e.name}   {e.because}" for e in entries]
    lines += [f"  refused: {text}" for text in injection.refused]
    if injection.remedy:
        lines.append(f"  remedy: {injection.remedy}")
    return "\n".join(lines)
