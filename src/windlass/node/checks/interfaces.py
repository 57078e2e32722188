"""Network interfaces of a node: those the site names are there and up, and those that variables name exist."""

from __future__ import annotations

import os
from collections.abc import Sequence

from windlass.node.checks.finding import Finding, fail, not_applicable, ok, warn
from windlass.node.sys.text import listed
from windlass.node.sys.tools import text_of

NET = "/sys/class/net"
RDMA = ("/sys/class/cxi", "/sys/class/infiniband")


def states(net: str = NET) -> dict[str, str]:
    """Interfaces of this node and whether they are up; `unknown` counts as up where there is a carrier (loopback and
    virtual ones never say)."""
    found = {}
    for name in sorted(_names(net)):
        state = text_of("%s/%s/operstate" % (net, name))
        carrier = text_of("%s/%s/carrier" % (net, name))
        found[name] = "up" if state == "up" or (state == "unknown" and carrier == "1") else state or "unknown"
    return found


def has_rdma() -> bool:
    return any(_names(folder) for folder in RDMA)


def check_nics(expected: Sequence[str], found: dict[str, str]) -> Finding:
    """Interfaces that the site says a node has."""
    if not expected:
        up = [name for name, state in found.items() if state == "up" and name != "lo"]
        return ok("network-interfaces", "up: %s; no site file says which there should be" % (listed(up) or "none"))
    missing = [name for name in expected if name not in found and not _is_rdma(name)]
    down = ["%s is %s" % (name, found[name]) for name in expected if name in found and found[name] != "up"]
    if missing or down:
        seen = "; ".join((["missing: %s" % listed(missing)] if missing else []) + down)
        return fail("network-interfaces", seen, "use another node, and tell the site's support about this one")
    return ok("network-interfaces", "%s up" % listed(expected))


def check_named(variables: Sequence[tuple[str, str]], found: dict[str, str], alone: bool = False) -> Finding:
    """Interfaces that variables of the ranks name (NCCL_SOCKET_IFNAME and the like) exist here and are up. `alone`:
    there is no other node to reach."""
    if not variables:
        return not_applicable("interface-variables", "no variable names an interface")
    bad: list[str] = []
    poor: list[str] = []
    for name, value in variables:
        chosen = matching(name, value, found)
        up = [item for item in chosen if found[item] == "up"]
        if not chosen:
            bad.append("%s=%s matches none of %s" % (name, value, listed(sorted(found))))
        elif not up:
            bad.append("%s=%s: %s is not up" % (name, value, listed(chosen)))
        elif not alone and all(item == "lo" or item.startswith(("docker", "virbr", "veth", "podman")) for item in up):
            poor.append("%s=%s: %s does not lead to other nodes" % (name, value, listed(up)))
    if bad or poor:
        remedy = "name an interface that is there (`ip -br link`), or leave the variable unset"
        return (fail if bad else warn)("interface-variables", "; ".join(bad + poor), remedy)
    return ok("interface-variables", ", ".join("%s=%s" % (name, value) for name, value in variables))


def matching(variable: str, value: str, found: dict[str, str]) -> list[str]:
    """Interfaces that a value means: Gloo takes exact names, NCCL and RCCL prefixes, `=name` and `^name`."""
    names = [word for word in value.lstrip("^=").split(",") if word]
    exact = variable.startswith(("GLOO", "TP")) or value.lstrip("^").startswith("=")
    hit = [item for item in found if any(item == name or (not exact and item.startswith(name)) for name in names)]
    if value.startswith("^"):
        return [item for item in found if item not in hit and item != "lo"]
    return hit


def _is_rdma(name: str) -> bool:
    return any(name in _names(folder) for folder in RDMA)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
