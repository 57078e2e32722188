"""Resolve the rendezvous before the ranks start: an address that resolves and a port that is free on node 0.

Otherwise a wrong address or a port in use would make all ranks hang until a time-out. Here it is an error that names
the cause.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import zlib
from collections.abc import Callable, Mapping

from windlass.backends.schedulers import get_scheduler
from windlass.base.notation.hostlist import expand_hostlist
from windlass.base.procs.command import run_command
from windlass.errors import MachineError, WindlassError
from windlass.model.plan import Plan

_RESOLVE_TIMEOUT_S = 5.0
_PORT_TRIES = 200
LOOPBACK = "127.0.0.1"


def plan_hosts(plan: Plan) -> tuple[str, ...]:
    """Return the hosts of a plan, in the order of its nodes. This machine if the plan names none."""
    return expand_hostlist(plan.hosts) if plan.hosts else (socket.gethostname().split(".", 1)[0],)


def master_address(plan: Plan, hosts: tuple[str, ...], environ: Mapping[str, str]) -> str:
    """Return the address of the first host by the site's rule. Raises `MachineError` if no name of it resolves."""
    if plan.nodes == 1 or not hosts:
        return LOOPBACK
    rule = plan.rendezvous
    if rule.address == "ip" and rule.interface and not _is_address(hosts[0]) and is_this_host(hosts[0], environ):
        own = interface_address(rule.interface)
        if own:
            return own
    found = _resolvable(plan, hosts[:1], environ)
    if found is not None:
        return found[0]
    raise MachineError(
        f"the first host's name {_by_rule(plan, hosts[0])!r} does not resolve here, so ranks could not find each other",
        hint="check `rendezvous.suffix` of the site (`windlass sites show`), or use a site file with the right suffix",
    )


def host_addresses(plan: Plan, hosts: tuple[str, ...], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names or addresses by which the hosts reach each other.

    The method is the same as for the first host's address. If nothing resolves, the names follow the site's rule.
    """
    found = _resolvable(plan, hosts, environ) if len(hosts) > 1 else None
    return found or named_hosts(plan, hosts)


def named_hosts(plan: Plan, hosts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the fabric names of the hosts, by the site's rule."""
    return tuple(_by_rule(plan, host) for host in hosts)


def _resolvable(plan: Plan, hosts: tuple[str, ...], environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the hosts under the first kind of name that resolves for the first host. None if none resolves."""
    named = named_hosts(plan, hosts)
    for candidates in (
        (named, hosts) if not plan.rendezvous.suffix else (named,)
    ):  # with a suffix, only the fabric name is valid
        if _is_address(candidates[0]) or resolves(candidates[0]):
            return candidates
    told = _ask_scheduler(plan, hosts, environ)
    return told if told is not None and resolves(told[0]) else None


def _by_rule(plan: Plan, host: str) -> str:
    rule = plan.rendezvous
    if _is_address(host):
        return host
    return (host.split(".", 1)[0] if rule.short_name or rule.suffix else host) + rule.suffix


def _is_address(host: str) -> bool:
    """Return whether the host is an IP address (from --hosts), which has no short name."""
    return host.replace(".", "").isdecimal()


def _ask_scheduler(plan: Plan, hosts: tuple[str, ...], environ: Mapping[str, str]) -> tuple[str, ...] | None:
    scheduler = get_scheduler(plan.scheduler)
    argv = scheduler.addresses_argv(hosts)
    if argv is None:
        return None
    with contextlib.suppress(WindlassError):
        known = scheduler.parse_addresses(run_command(argv, timeout_s=10, env=environ).stdout)
        if all(host in known for host in hosts):
            return tuple(known[host] for host in hosts)
    return None


def resolves(name: str) -> bool:
    """Return whether a name has an address. A resolver that does not answer within a few seconds counts as no."""
    answer: list[bool] = []

    def ask() -> None:
        with contextlib.suppress(OSError, UnicodeError):
            socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            answer.append(True)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_RESOLVE_TIMEOUT_S)
    return bool(answer)


def interface_address(name: str) -> str | None:
    """Return the IPv4 address of an interface of this machine."""
    import fcntl  # imported here: needed only if a site publishes addresses
    import struct

    siocgifaddr = 0x8915
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe.fileno(), siocgifaddr, struct.pack("256s", name.encode()[:15]))
        return socket.inet_ntoa(answer[20:24])
    return None


def is_this_host(host: str, environ: Mapping[str, str]) -> bool:
    """Return whether this process runs on that host. Slurm's name may differ from the host's own name."""
    mine = {environ.get("SLURMD_NODENAME", ""), socket.gethostname()}
    return host.split(".", 1)[0] in {name.split(".", 1)[0] for name in mine if name}


def master_port(plan: Plan, job_id: str | None, run_id: str, free: Callable[[int], bool]) -> int:
    """Return the port derived from the job id, or the next port that is free on node 0. `free` checks a port."""
    rule = plan.rendezvous
    if rule.fixed_port is not None:
        if not free(rule.fixed_port):
            raise MachineError(
                f"port {rule.fixed_port} is in use on the first node",
                hint="leave --master-port out, or choose another port",
            )
        return rule.fixed_port
    digits = "".join(char for char in (job_id or "").split(".", 1)[0] if char.isdecimal())
    number = int(digits[-9:] or 0) + zlib.crc32(run_id.encode()) % 97
    for attempt in range(_PORT_TRIES):
        port = rule.port_base + (number + attempt) % rule.port_span
        if free(port):
            return port
    raise MachineError(
        f"no free port between {rule.port_base} and {rule.port_base + rule.port_span} after {_PORT_TRIES} tries",
        hint="choose a port with --master-port",
    )


def is_free(port: int) -> bool:
    """Return whether a process could listen on this port of this machine now."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
        except OSError as error:
            if error.errno in {97, 99}:  # no IPv6 here
                continue
            return False
    return True
