"""Devices counted as tiles or as cards: the same node, seen with FLAT or COMPOSITE eyes. Pure.

Which network interface is nearest to a rank. Pure.
"""

from __future__ import annotations

import msgspec

from windlass.model.plan import RankBinding
from windlass.model.topology import Device, DeviceUnit, Nic, Topology


def in_unit(topology: Topology, unit: DeviceUnit | None) -> Topology:
    """The topology with its devices counted in `unit`. None, or a unit that it already has, changes nothing.

    A card cannot be taken apart again, so keep the topology in tiles and call this last.
    """
    if unit != "card" or topology.unit == "card":
        return topology
    cards: dict[int, list[Device]] = {}
    for device in topology.devices:
        cards.setdefault(device.card, []).append(device)
    joined = tuple(_card(card, cards[card]) for card in sorted(cards))
    return msgspec.structs.replace(topology, devices=joined)


def _card(card: int, tiles: list[Device]) -> Device:
    first = tiles[0]
    return Device(
        index=card,
        vendor=first.vendor,
        name=first.name,
        card=card,
        tiles=len(tiles),
        numa=_common([tile.numa for tile in tiles]),
        l3=_common([tile.l3 for tile in tiles]),
        pci=first.pci,
        memory_bytes=sum(tile.memory_bytes for tile in tiles),
    )


def _common(values: list[int | None]) -> int | None:
    """The value that all share, else None: two tiles next to two caches are next to the domain that holds both."""
    return values[0] if len(set(values)) == 1 else None


def fabric_nics(topology: Topology) -> tuple[Nic, ...]:
    """Interfaces that ranks should use: the fastest of those with an RDMA or CXI device, else the fastest of all."""
    direct = tuple(nic for nic in topology.nics if nic.device) or topology.nics
    fastest = max((nic.speed_mbits for nic in direct), default=0)
    return tuple(nic for nic in direct if nic.speed_mbits == fastest)


def nearest_nics(topology: Topology, ranks: tuple[RankBinding, ...]) -> tuple[str | None, ...]:
    """The interface of each rank: in its NUMA domain, else in its socket; neighbours take turns.

    None where there is no telling: a rank without a domain, or interfaces that do not say where they are.
    """
    nics = fabric_nics(topology)
    turns: dict[tuple[str, ...], int] = {}
    names: list[str | None] = []
    for rank in ranks:
        near = _near(topology, nics, rank.numa[0] if len(rank.numa) == 1 else None)
        if not near:
            names.append(None)
            continue
        turn = turns.get(near, 0)
        turns[near] = turn + 1
        core = topology.core_of(rank.cpus[0]) if rank.cpus else None
        if topology.nic_by_core and core is not None and set(rank.cpus) <= set(core.cpus):
            turn = core.id
        names.append(near[turn % len(near)])
    return tuple(names)


def _near(topology: Topology, nics: tuple[Nic, ...], numa: int | None) -> tuple[str, ...]:
    """Names of the interfaces nearest to a domain; nothing where that would be a guess."""
    if len(nics) == 1:
        return (nics[0].name,)
    socket_of = {core.numa: core.socket for core in topology.cores}
    placed = [(nic.name, nic.numa) for nic in nics if nic.numa is not None]
    if numa is None or not placed:
        return ()

    def distance(home: int) -> tuple[bool, int, int]:
        return (socket_of.get(home) != socket_of.get(numa), abs(home - numa), home)

    best = min(distance(home) for _, home in placed)
    return tuple(name for name, home in placed if distance(home) == best)
