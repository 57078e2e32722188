"""Test the rendezvous: node 0 listens on rank 0's port, and every other node connects to it.

The check shows that the port is free, that the name resolves, that the network path is open, and how much the clocks
differ. The messages contain only a token of this check and the time of day. Neither is a secret.

This module also checks the network interfaces of a node. The interfaces that the site lists must exist and be up. The
interfaces that variables name must exist.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import time
from collections.abc import Callable, Sequence

from windlass.node.checks.finding import Finding, fail, not_applicable, ok, warn
from windlass.node.sampler.readings import listed as names_in
from windlass.node.sys.text import listed
from windlass.node.sys.tools import text_of

Clock = Callable[[], float]
SKEW_WARN_S = 1.0
SKEW_FAIL_S = 60.0
_ROUNDS = 3
_RETRY_S = 0.1
_CALL_S = 2.0


def hold(port: int, word: str, callers: int, seconds: float, clock: Clock = time.time) -> list[Finding]:
    """Listen on the port (node 0) until every other node has connected or the time is over."""
    try:
        server = _listen(port)
    except OSError as error:
        if error.errno in {errno.EADDRINUSE, errno.EACCES}:
            seen = "port %d is taken on the first node (%s)" % (port, error.strerror)
            return [fail("port", seen, "leave --master-port out, or choose another; a leftover rank may hold it")]
        return [warn("port", "cannot listen on port %d: %s" % (port, error.strerror), "check the network of this node")]
    with contextlib.closing(server):
        came = _serve(server, word, callers, seconds, clock)
    found = [ok("port", "%d is free on the first node" % port)]
    if callers and came < callers:
        found.append(ok("rendezvous", "the first node; %d of %d other nodes connected" % (came, callers)))
    elif callers:
        found.append(ok("rendezvous", "every node reaches the first one"))
    return found


def _listen(port: int) -> socket.socket:
    server = socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET, socket.SOCK_STREAM)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if server.family == socket.AF_INET6:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        server.bind(("", port))
        server.listen(4096)
        server.setblocking(False)
    except OSError:
        server.close()
        raise
    return server


def _serve(server: socket.socket, word: str, callers: int, seconds: float, clock: Clock) -> int:
    """Answer each line that contains the token with the time. Return the number of callers with all answers."""
    deadline = time.monotonic() + seconds
    done = 0
    with selectors.DefaultSelector() as waiting:
        waiting.register(server, selectors.EVENT_READ)
        while done < callers and time.monotonic() < deadline:
            for key, _ in waiting.select(0.2):
                if key.fileobj is server:
                    with contextlib.suppress(OSError):
                        caller, _ = server.accept()
                        caller.setblocking(False)
                        waiting.register(caller, selectors.EVENT_READ, [caller, 0])
                    continue
                rounds = key.data[1] = _answer(key.data[0], word, key.data[1], clock)
                if rounds < 0 or rounds >= _ROUNDS:
                    done += rounds >= _ROUNDS
                    waiting.unregister(key.data[0])
                    key.data[0].close()
        for key in list(waiting.get_map().values()):
            if key.data is not None:
                key.data[0].close()
    return done


def _answer(caller: socket.socket, word: str, rounds: int, clock: Clock) -> int:
    """Do one more round with this caller. Return -1 if it disconnected or is a stranger."""
    try:
        said = caller.recv(256)
        if said.strip() != word.encode():
            return -1
        caller.send(("%s %.6f\n" % (word, clock())).encode())
    except BlockingIOError:
        return rounds
    except OSError:
        return -1
    return rounds + 1


def call(address: str, port: int, word: str, seconds: float, clock: Clock = time.time) -> list[Finding]:
    """Resolve, connect and compare clocks (every other node)."""
    try:
        known = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except OSError as error:
        seen = "%s does not resolve: %s" % (address, error.strerror or error)
        return [fail("rendezvous", seen, "check `rendezvous.suffix` of the site, or name hosts that the nodes know")]
    where = str(known[0][4][0])
    deadline = time.monotonic() + seconds
    last = "nobody listens"
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((address, port), timeout=_CALL_S) as there:
                skew = _compare(there, word, clock)
        except OSError as error:
            last = error.strerror or str(error) or "timed out"
            time.sleep(_RETRY_S)
            continue
        if skew is None:
            seen = "another program answers on port %d of %s" % (port, address)
            return [fail("rendezvous", seen, "leave --master-port out, or choose another")]
        return [ok("rendezvous", "reaches the first node at its rendezvous address"), judge_skew(skew)]
    if where.startswith("127.") or where == "::1":
        seen = "%s is %s here: this node waits for itself" % (address, where)
        return [
            fail("rendezvous", seen, "correct /etc/hosts, or use the fabric's name (`rendezvous.suffix` of the site)")
        ]
    remedy = "check for a firewall or another network in between. The fabric's name is `rendezvous.suffix` of the site"
    return [fail("rendezvous", "%s port %d (%s) is not reached: %s" % (address, port, where, last), remedy)]


def _compare(there: socket.socket, word: str, clock: Clock) -> float | None:
    """Return how many seconds this node's clock is ahead, from the quickest of a few rounds.

    None if a stranger answers.
    """
    best: tuple[float, float] | None = None
    for _ in range(_ROUNDS):
        sent, before = clock(), time.monotonic()
        there.sendall((word + "\n").encode())
        said = there.recv(256).decode("ascii", "replace").split()
        took = time.monotonic() - before
        if len(said) != 2 or said[0] != word:
            return None
        ahead = sent + took / 2 - float(said[1])
        if best is None or took < best[0]:
            best = (took, ahead)
    return best[1] if best else None


def judge_skew(skew_s: float) -> Finding:
    """Judge by how many seconds this node's clock is ahead of the first node's."""
    if abs(skew_s) < SKEW_WARN_S:
        return ok("clock", "within %g s of the first node" % SKEW_WARN_S, skew_s=round(skew_s, 4))
    seen = "%.1f s %s the first node" % (abs(skew_s), "ahead of" if skew_s > 0 else "behind")
    remedy = "the clock is not synchronised (chrony, ntpd): report it; munge and tokens fail at minutes"
    return (fail if abs(skew_s) > SKEW_FAIL_S else warn)("clock", seen, remedy, skew_s=round(skew_s, 4))


def check_meeting(node: int, nodes: int, address: str, port: int, word: str, seconds: float) -> list[Finding]:
    """Run this node's part of the check."""
    if node == 0:
        return hold(port, word, nodes - 1, seconds)
    if not address:
        return [not_applicable("rendezvous", "no address is known yet")]
    return call(address, port, word, seconds)


NET = "/sys/class/net"
RDMA = ("/sys/class/cxi", "/sys/class/infiniband")


def states(net: str = NET) -> dict[str, str]:
    """Return the interfaces of this node and whether they are up.

    `unknown` counts as up if there is a carrier, because loopback and virtual interfaces never report a state.
    """
    found = {}
    for name in names_in(net):
        state = text_of("%s/%s/operstate" % (net, name))
        carrier = text_of("%s/%s/carrier" % (net, name))
        found[name] = "up" if state == "up" or (state == "unknown" and carrier == "1") else state or "unknown"
    return found


def has_rdma() -> bool:
    return any(names_in(folder) for folder in RDMA)


def check_nics(expected: Sequence[str], found: dict[str, str]) -> Finding:
    """Check the interfaces that a node has according to the site."""
    if not expected:
        up = [name for name, state in found.items() if state == "up" and name != "lo"]
        return ok("network-interfaces", "up: %s; no site file lists the expected interfaces" % (listed(up) or "none"))
    missing = [name for name in expected if name not in found and not _is_rdma(name)]
    down = ["%s is %s" % (name, found[name]) for name in expected if name in found and found[name] != "up"]
    if missing or down:
        seen = "; ".join((["missing: %s" % listed(missing)] if missing else []) + down)
        return fail("network-interfaces", seen, "use another node, and tell the site's support about this one")
    return ok("network-interfaces", "%s up" % listed(expected))


def check_named(variables: Sequence[tuple[str, str]], found: dict[str, str], alone: bool = False) -> Finding:
    """Check that interfaces in variables of the ranks (such as NCCL_SOCKET_IFNAME) exist here and are up.

    `alone`: there is no other node to reach.
    """
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
            poor.append("%s=%s: %s does not reach other nodes" % (name, value, listed(up)))
    if bad or poor:
        remedy = "give an existing interface (`ip -br link`), or leave the variable unset"
        return (fail if bad else warn)("interface-variables", "; ".join(bad + poor), remedy)
    return ok("interface-variables", ", ".join("%s=%s" % (name, value) for name, value in variables))


def matching(variable: str, value: str, found: dict[str, str]) -> list[str]:
    """Return the interfaces that a value selects.

    Gloo takes exact names. NCCL and RCCL take prefixes, `=name` and `^name`.
    """
    names = [word for word in value.lstrip("^=").split(",") if word]
    exact = variable.startswith(("GLOO", "TP")) or value.lstrip("^").startswith("=")
    hit = [item for item in found if any(item == name or (not exact and item.startswith(name)) for name in names)]
    if value.startswith("^"):
        return [item for item in found if item not in hit and item != "lo"]
    return hit


def _is_rdma(name: str) -> bool:
    return any(name in names_in(folder) for folder in RDMA)
