"""The file system of an environment's folder at this site, its cost and the remedy. Pure."""

from __future__ import annotations

from windlass.build.envs.step import shown_path, with_account
from windlass.model.finding import Finding
from windlass.model.site import Site
from windlass.plan.cache import is_below

_REMEDY = "windlass run --cache ENV reads it once for all nodes; or windlass env pack and windlass stage"
_SLOWEST = ("NFS", "DVS")


def stem(path: str) -> str:
    """Return the part of a catalog's path before its first variable: `/ccs/home` of `/ccs/home/${USER}`."""
    return path.split("$", 1)[0].split("{", 1)[0].rstrip("/")


def is_home(path: str, site: Site, home: str = "") -> bool:
    """Return whether the path is in a home folder: the user's, or a home folder of the site."""
    if path.startswith(("~", "${HOME}", "$HOME")):
        return True
    return is_below(path, home) or is_below(path, stem(site.file.storage.home))


def place_findings(path: str, site: Site, *, seen: str = "", home: str = "", account: str = "") -> tuple[Finding, ...]:
    """Return the findings about this place.

    `seen` is the file system that this machine reports, if it could be examined. Otherwise the catalog decides.
    `account` is the project, if it is known.
    """
    storage = site.file.storage
    known = sorted(storage.file_systems, key=len, reverse=True)
    kind = seen or next((storage.file_systems[p] for p in known if is_below(path, p)), "")
    at_home = is_home(path, site, home)
    shown, remedy = shown_path(path), _remedy(site, account)
    found: list[Finding] = []
    system = next((p for p in storage.system if is_below(path, p)), "")
    if system:
        return (Finding("place", "ok", f"{system}: the machine's own software, which every node has"),)
    if kind in _SLOWEST:
        text = f"{shown} is on {kind}: the slowest place to start many ranks from"
        found.append(Finding("place", "warning", text + _cost(site, kind), remedy))
    elif kind:
        text = f"{shown} is on {kind}: fast enough for a few nodes, too slow for hundreds"
        found.append(Finding("place", "note", text + _cost(site, kind), _REMEDY))
    if at_home and kind not in _SLOWEST and site.file.scheduler.kind != "none":
        text = f"{shown} is in a home folder: small quotas, and rarely designed for many readers"
        found.append(Finding("place", "warning", text, remedy))
    quota = next((p for p in sorted(storage_quotas(site), key=len, reverse=True) if is_below(path, p)), "")
    if quota:
        text = f"{quota} holds {storage_quotas(site)[quota]}; an environment with torch has more than 20,000 files"
        found.append(Finding("quota", "note", text))
    return tuple(found)


def storage_quotas(site: Site) -> dict[str, str]:
    return site.file.python.quotas


def _remedy(site: Site, account: str) -> str:
    better = shown_path(with_account(site.file.python.place, account))
    return f"put it below {better}, or {_REMEDY}" if better else _REMEDY


def _cost(site: Site, kind: str) -> str:
    """Return the cost that was measured at this site."""
    measured = [r for r in site.file.references if r.unit == "s" and r.nodes and r.what.endswith(f"from {kind}")]
    if not measured:
        return ""
    worst = max(measured, key=lambda r: r.nodes or 0)
    return f" ({worst.what}: {worst.value:g} s on {worst.nodes} nodes)"
