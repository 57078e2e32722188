"""The invariants of a binding. They are the same for presets, computed maps and a user's list. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from windlass.base.notation.counts import format_cpulist
from windlass.model.finding import Finding
from windlass.model.plan import Binding, RankBinding
from windlass.model.topology import Topology
from windlass.sites.topology.split import device_homes, in_unit

BrokenInvariant = Literal["numbering", "missing", "not-allowed", "reserved", "overlap", "set-aside", "far", "device"]


def problems_of(binding: Binding, topology: Topology) -> tuple[Finding, ...]:
    """The problems of a binding on this node, one finding per broken invariant.

    `missing`, `not-allowed` and `device` may only mean that the job has a part of a node.
    """
    topology = in_unit(topology, binding.device_unit)
    return (
        *_numbering(binding),
        *_devices(binding, topology),
        *(_cpus(binding, topology) if topology.cores else ()),
        *_overlaps(binding),
        *(_distances(binding, topology) if topology.cores else ()),
    )


def _numbering(binding: Binding) -> Iterable[Finding]:
    numbers = [rank.local_rank for rank in binding.ranks]
    if numbers != list(range(len(numbers))):
        yield Finding("numbering", "error", f"local ranks are numbered {numbers}, not from 0 up")


def _devices(binding: Binding, topology: Topology) -> Iterable[Finding]:
    known = {device.index for device in topology.devices}
    for rank in binding.ranks:
        if missing := set(rank.devices) - known:
            text = f"rank {rank.local_rank} uses device {format_cpulist(missing)}, which the node does not have"
            yield Finding("device", "error", text)
        if binding.visible and set(rank.devices) - set(binding.visible):
            yield Finding("device", "error", f"rank {rank.local_rank} cannot see its own device")
    doubled = [str(device) for device, count in Counter(binding.visible).items() if count > 1]
    if doubled:
        yield Finding("device", "error", f"device {', '.join(doubled)} is made visible twice")


def _cpus(binding: Binding, topology: Topology) -> Iterable[Finding]:
    """Check that every CPU of a rank exists, is allowed, and that its core is not used by others."""
    allowed = set(topology.allowed or topology.cpus)
    forbidden: tuple[tuple[BrokenInvariant, str, set[int]], ...] = (
        ("reserved", "the system reserves", whole_cores(topology, topology.reserved)),
        ("set-aside", "are set aside for the agent", whole_cores(topology, binding.agent_cpus)),
        ("set-aside", "are set aside for communication threads", whole_cores(topology, binding.comm_cpus)),
    )
    for rank in binding.ranks:
        who = f"rank {rank.local_rank}"
        mine = set(rank.cpus)
        if missing := mine - set(topology.cpus):
            yield Finding("missing", "error", f"{who}: the node has no CPU {format_cpulist(missing)}")
        if outside := (mine & set(topology.cpus)) - allowed:
            text = f"{who}: CPUs {format_cpulist(outside)} are outside what this job may use"
            yield Finding("not-allowed", "error", text)
        for kind, reason, cpus in forbidden:
            if taken := mine & cpus:
                listed = format_cpulist(taken)
                text = f"{who}: {reason} CPU {listed}" if kind == "reserved" else f"{who}: CPUs {listed} {reason}"
                yield Finding(kind, "error", text)


def whole_cores(topology: Topology, cpus: Iterable[int]) -> set[int]:
    """The CPUs and their siblings, because a rank on the other thread of a busy core also disturbs it."""
    wanted = set(cpus)
    return {cpu for core in topology.cores if wanted.intersection(core.cpus) for cpu in core.cpus}


def _overlaps(binding: Binding) -> Iterable[Finding]:
    owner: dict[int, int] = {}
    shared: dict[tuple[int, int], set[int]] = {}
    for rank in binding.ranks:
        for cpu in rank.cpus:
            other = owner.setdefault(cpu, rank.local_rank)
            if other != rank.local_rank:
                shared.setdefault((other, rank.local_rank), set()).add(cpu)
    for (first, second), cpus in shared.items():
        text = f"ranks {first} and {second} share CPUs {format_cpulist(cpus)}"
        yield Finding("overlap", "error", text)


def _distances(binding: Binding, topology: Topology) -> Iterable[Finding]:
    """Check that ranks are close to their device.

    A rank must be in the socket of its device. It must also be in the device's NUMA domain, or in a domain of that
    socket that has no device. A level with fewer usable cores than ranks of its devices is not checked, because on part
    of a node the nearest core may be far away. The only rank of a node, which has all devices, may be anywhere.
    """
    if len(binding.ranks) == 1 and len(binding.ranks[0].devices) > 1:
        return
    socket_of = {core.numa: core.socket for core in topology.cores}
    told = {device.index for device in topology.devices if device.numa in socket_of}
    numa_of = {index: home for index, home in device_homes(topology, topology.devices).items() if index in told}
    housed = set(numa_of.values())
    place = {cpu: core for core in topology.cores for cpu in core.cpus}
    numas_bind, sockets_bind = _levels_that_suffice(binding, topology)
    for rank in binding.ranks:
        if not rank.devices or not set(rank.devices) <= set(numa_of):
            continue
        homes = {numa_of[device] for device in rank.devices}
        cores = [place[cpu] for cpu in rank.cpus if cpu in place]
        sockets = {socket_of[home] for home in homes}
        wrong = {core.id for core in cores if core.socket not in sockets}
        if wrong and sockets_bind:
            yield Finding("far", "error", _far_text(rank, wrong, "socket", sockets))
            continue
        strange = {core.id for core in cores if core.numa not in homes and core.numa in housed}
        if strange and numas_bind:
            yield Finding("far", "error", _far_text(rank, strange, "NUMA domain", homes))


def _far_text(rank: RankBinding, cores: set[int], level: str, homes: set[int]) -> str:
    devices = format_cpulist(rank.devices)
    where = format_cpulist(homes)
    return f"rank {rank.local_rank}: cores {format_cpulist(cores)} are not in {level} {where} of its device {devices}"


def _levels_that_suffice(binding: Binding, topology: Topology) -> tuple[bool, bool]:
    """Whether each NUMA domain, and each socket, has a usable core for every rank whose device is in it."""
    taken = whole_cores(topology, (*binding.agent_cpus, *binding.comm_cpus))
    usable = [core for core in topology.usable_cores() if not taken.intersection(core.cpus)]
    socket_of = {core.numa: core.socket for core in topology.cores}
    homes = device_homes(topology, topology.devices)
    ranks_on = Counter(device for rank in binding.ranks for device in rank.devices if device in homes)
    share = max(ranks_on.values(), default=0)
    need_numa = Counter(homes[device] for device in ranks_on)
    need_socket = Counter(socket_of[homes[device]] for device in ranks_on)
    have_numa = Counter(core.numa for core in usable)
    have_socket = Counter(core.socket for core in usable)
    return (
        all(have_numa[numa] >= count * share for numa, count in need_numa.items()),
        all(have_socket[socket] >= count * share for socket, count in need_socket.items()),
    )
