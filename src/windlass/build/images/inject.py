"""The decision of a node about an image, made here: which host libraries are added, in which order and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from windlass.errors import MachineError
from windlass.model.site import HostLibrariesSpec
from windlass.node.libs.decide import BEHIND, FRONT, PROVIDERS, ImageFacts
from windlass.node.libs.place import decide_here

Strategy = Literal["baked", "host-inject", "refused"]


class InjectedLibrary(msgspec.Struct, frozen=True, kw_only=True):
    """One library of the host's closure. `where` is front, behind or image."""

    name: str
    source: str
    where: str
    because: str


class ChangedVariable(msgspec.Struct, frozen=True, kw_only=True):
    """A variable inside the container that the node changes. `how` is set, unset, front or without."""

    name: str
    how: str
    value: str = ""
    because: str


class Injection(msgspec.Struct, frozen=True, kw_only=True):
    """The decision for one image on one host."""

    image: str
    strategy: Strategy
    because: str
    libraries: tuple[InjectedLibrary, ...] = ()
    refused: tuple[str, ...] = ()
    remedy: str = ""
    links: dict[str, str] = {}
    """Names in front of the image's libraries that link to one of the image's files."""
    hidden: tuple[str, ...] = ()
    """Plugins of the image that compete with the selected one and are no longer loaded."""
    variables: tuple[ChangedVariable, ...] = ()
    warnings: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Network libraries that the host does not have at all."""
    site_means: tuple[str, ...] = ()
    """The site's own mechanisms to add libraries. The libraries that they add are not known here."""


def plan_injection(
    image: str,
    facts: ImageFacts,
    spec: HostLibrariesSpec,
    *,
    own: str = "",
    host_root: str = "/",
    site_means: tuple[str, ...] = (),
) -> Injection:
    """Decide for this machine, or for an unpacked copy of a node (`host_root`). Only reads files.

    `site_means` are the site's own mechanisms to add libraries. With them windlass adds nothing, unless `own` is given.
    """
    if site_means and not own:
        because = f"the site brings the host's network libraries in by {', '.join(site_means)}; windlass adds nothing"
        return Injection(image=image, strategy="host-inject", because=because, site_means=site_means)
    if not spec.names and not own:
        return Injection(image=image, strategy="baked", because="this site's network needs nothing of the host")
    decision = decide_here(_settings(spec, own, host_root), facts)
    if decision.refused:
        return Injection(
            image=image,
            strategy="refused",
            because="the host's network libraries do not fit this image",
            refused=decision.refused,
            missing=decision.missing,
            remedy=decision.remedy,
        )
    because = f"the image's own libfabric has {spec.provider}"
    if decision.placed:
        because = f"you named {own}" if own else f"the image's libfabric lacks {spec.provider}"
    return Injection(
        image=image,
        strategy="host-inject" if decision.placed else "baked",
        because=because,
        libraries=tuple(
            InjectedLibrary(name=e.name, source=e.source, where=e.where, because=e.because) for e in decision.placed
        ),
        links={link.name: link.target for link in decision.links},
        hidden=decision.hidden,
        variables=tuple(
            ChangedVariable(name=v.name, how=v.how, value=v.value, because=v.because) for v in decision.variables
        ),
        warnings=decision.warnings,
    )


def is_elsewhere(injection: Injection) -> bool:
    """Return whether missing libraries are the only reason for the refusal: this machine is not a node of the site."""
    return bool(injection.missing) and len(injection.missing) == len(injection.refused)


def require_host_libraries(injection: Injection, site: str) -> None:
    """Raise `MachineError` if this machine has none of the site's libraries, so it is not a node of the site."""
    if is_elsewhere(injection):
        hint = "run this on a node of it, or give its files: --host-root DIR, --host-libs DIR"
        raise MachineError(f"this machine has no {', '.join(injection.missing)}: it is no node of {site}", hint=hint)


def _settings(spec: HostLibrariesSpec, own: str, host_root: str) -> Mapping[str, object]:
    return {"root": host_root, "names": spec.names, "folders": spec.folders, "provider": spec.provider, "own": own}


def injection_text(injection: Injection) -> str:
    """Return the decision for people: the strategy, then the libraries in the loader's order."""
    lines = [f"{injection.image}: {injection.strategy}: {injection.because}"]
    titles = {
        FRONT: "in front of the image's libraries",
        BEHIND: "behind the image's libraries",
        PROVIDERS: "providers of libfabric, in a folder that FI_PROVIDER_PATH names",
        "image": "stay the image's own",
    }
    for where, title in titles.items():
        entries = [library for library in injection.libraries if library.where == where]
        if entries:
            lines += ["", f"{title}:"]
            lines += [f"  {e.source if where != 'image' else e.name}   {e.because}" for e in entries]
    if injection.links or injection.hidden:
        lines += ["", "plugins of NCCL and RCCL:"]
        lines += [f"  {name} leads to {target}" for name, target in injection.links.items()]
        lines += [f"  {path} is hidden" for path in injection.hidden]
    if injection.variables:
        lines += ["", "variables inside:"]
        lines += [f"  {_change(variable)}   {variable.because}" for variable in injection.variables]
    lines += [f"  warning: {text}" for text in injection.warnings]
    lines += [f"  refused: {text}" for text in injection.refused]
    if injection.remedy:
        lines.append(f"  remedy: {injection.remedy}")
    return "\n".join(lines)


def _change(variable: ChangedVariable) -> str:
    value = variable.value.replace("{folder}", "the job's folder")
    texts = {
        "set": f"{variable.name}={value}",
        "unset": f"no {variable.name}",
        "front": f"{value} in front of {variable.name}",
        "without": f"{variable.name} without {value}",
    }
    return texts[variable.how]
