"""Divide cores among the devices near them, or among ranks of a node without devices. Pure arithmetic.

Also counts devices as tiles or as cards, and finds the nearest network interface of a rank.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Literal

import msgspec

from windlass.model.plan import RankBinding
from windlass.model.topology import Core, Device, DeviceUnit, Nic, Topology


def in_unit(topology: Topology, unit: DeviceUnit | None) -> Topology:
    """The topology with its devices counted in `unit`. None, or the unit that it already has, changes nothing.

    A card cannot be split again, so keep the topology in tiles and call this last.
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
    """The value that all have in common, otherwise None.

    Two tiles next to two caches are next to the domain that contains both.
    """
    return values[0] if len(set(values)) == 1 else None


def fabric_nics(topology: Topology) -> tuple[Nic, ...]:
    """Interfaces for the ranks: the fastest with an RDMA or CXI device, otherwise the fastest of all."""
    direct = tuple(nic for nic in topology.nics if nic.device) or topology.nics
    fastest = max((nic.speed_mbits for nic in direct), default=0)
    return tuple(nic for nic in direct if nic.speed_mbits == fastest)


def nearest_nics(topology: Topology, ranks: tuple[RankBinding, ...]) -> tuple[str | None, ...]:
    """The interface of each rank: in its NUMA domain, or in its socket. Neighbouring ranks take turns.

    None if the location is unknown: for a rank without a domain, or for interfaces that do not report theirs.
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
    """Names of the interfaces nearest to a domain. Empty if that would be a guess."""
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


Cores = tuple[Core, ...]
Level = Literal["L3 cache", "NUMA domain", "socket", "node"]
_LEVELS: tuple[Level, ...] = ("L3 cache", "NUMA domain", "socket", "node")
_EVEN_ENOUGH = 0.75
"""Share of the even split that a rank keeps at least, when windlass avoids that ranks straddle a domain. Three ranks on
two domains of eight cores get four cores each, not five with one rank across domains. Two ranks on four domains get two
domains each.
"""


def share_among_devices(
    topology: Topology, devices: Sequence[Device], cores: Cores, *, ranks_per_device: int
) -> tuple[dict[int, Cores], Level] | None:
    """Cores of each device by its index, and the level at which they were split. None for more ranks than cores.

    All devices use the nearest level at which every rank gets a core: their own cache, their NUMA domain (with the
    domains of the socket that have no device), their socket, the node. Devices of a level get equal shares, and the
    remaining cores stay idle.
    """
    homes = device_homes(topology, devices)
    for level in _LEVELS if any(device.l3 is not None for device in devices) else _LEVELS[1:]:
        shares = _shares(topology, devices, homes, cores, level, ranks_per_device)
        if all(len(share) >= ranks_per_device for share in shares.values()):
            return shares, level
    return None


def device_homes(topology: Topology, devices: Sequence[Device]) -> dict[int, int]:
    """NUMA domain of each device.

    Devices that do not report theirs are spread over the domains in order. This is a guess.
    """
    numas = topology.numas or (0,)
    ordered = sorted(topology.devices, key=lambda device: device.index)
    place = {device.index: position for position, device in enumerate(ordered)}
    homes: dict[int, int] = {}
    for device in devices:
        if device.numa in numas and device.numa is not None:
            homes[device.index] = device.numa
        else:
            homes[device.index] = numas[place.get(device.index, 0) * len(numas) // max(1, len(ordered))]
    return homes


def first_core_of(topology: Topology, device: Device, home: int) -> int:
    """Number of the first core next to a device. It orders devices along the cores."""
    near = [core.id for core in topology.cores if core.numa == home and device.l3 in {None, core.l3}]
    return min(near, default=min((core.id for core in topology.cores if core.numa == home), default=0))


def _shares(
    topology: Topology, devices: Sequence[Device], homes: dict[int, int], cores: Cores, level: Level, least: int
) -> dict[int, Cores]:
    socket_of = {core.numa: core.socket for core in topology.cores}
    split_caches = {home for home in homes.values() if _caches_are_told(devices, homes, home)}

    def group_of(device: Device) -> Hashable:
        home = homes[device.index]
        if level == "node":
            return "node"
        if level == "socket":
            return socket_of.get(home, 0)
        return (home, device.l3) if level == "L3 cache" and home in split_caches else home

    groups: dict[Hashable, list[Device]] = {}
    for device in devices:
        groups.setdefault(group_of(device), []).append(device)
    extra = _domains_without_device(topology, homes) if level in {"L3 cache", "NUMA domain"} else {}
    shares: dict[int, Cores] = {}
    for key, members in groups.items():
        members.sort(key=lambda device: (first_core_of(topology, device, homes[device.index]), device.index))
        own = tuple(core for core in cores if _in_group(core, key, level))
        near = tuple(core for core in cores if extra.get(core.numa) == key)
        for device, mine, more in zip(members, _runs(own, members, least), _runs(near, members, 0), strict=True):
            shares[device.index] = tuple(sorted(mine + more, key=lambda core: core.id))
    return shares


def _in_group(core: Core, key: Hashable, level: Level) -> bool:
    if level == "node":
        return True
    if level == "socket":
        return core.socket == key
    return (core.numa, core.l3) == key if isinstance(key, tuple) else core.numa == key


def _caches_are_told(devices: Sequence[Device], homes: dict[int, int], home: int) -> bool:
    return all(device.l3 is not None for device in devices if homes[device.index] == home)


def _domains_without_device(topology: Topology, homes: dict[int, int]) -> dict[int, int]:
    """Assign each domain without a device to a domain of its socket that has one.

    The domain with the fewest assigned domains comes first.
    """
    socket_of = {core.numa: core.socket for core in topology.cores}
    told = device_homes(topology, topology.devices)
    lent: dict[int, int] = {}
    for numa in sorted(set(topology.numas) - set(told.values())):
        hosts = [home for home in set(homes.values()) if socket_of.get(home) == socket_of[numa]]
        if hosts:
            load = list(lent.values())
            lent[numa] = min(hosts, key=lambda home: (load.count(home), abs(home - numa), home))
    return lent


def _runs(cores: Cores, devices: Sequence[Device], least: int) -> list[Cores]:
    """Equal runs of cores per tile: a card of two tiles gets exactly the cores of its two tiles.

    If this leaves a device less than `least`, runs are equal per device.
    """
    per_tile = len(cores) // sum(device.tiles for device in devices)
    if per_tile * min(device.tiles for device in devices) < least:
        return even_runs(cores, len(devices))
    runs: list[Cores] = []
    start = 0
    for device in devices:
        runs.append(cores[start : start + per_tile * device.tiles])
        start += per_tile * device.tiles
    return runs


def even_runs(cores: Cores, parts: int) -> list[Cores]:
    """`parts` equal runs of cores. The remainder is left out."""
    size = len(cores) // parts
    return [cores[index * size : (index + 1) * size] for index in range(parts)]


def share_among_ranks(cores: Cores, ranks: int) -> list[Cores] | None:
    """Equal runs for ranks of a node without devices, within domains if that costs little. None if too few cores."""
    if ranks > len(cores):
        return None
    levels: tuple[Callable[[Core], int], ...] = (lambda c: c.numa, lambda c: c.socket, lambda c: 0)
    for key in levels:
        groups: dict[int, list[Core]] = {}
        for core in cores:
            groups.setdefault(key(core), []).append(core)
        runs = [tuple(groups[name]) for name in sorted(groups)]
        size = _largest_size([len(run) for run in runs], ranks)
        if size >= _EVEN_ENOUGH * (len(cores) // ranks):
            break
    counts = _spread([len(run) // size for run in runs], ranks)
    return [
        run[start * size : (start + 1) * size]
        for run, count in zip(runs, counts, strict=True)
        for start in range(count)
    ]


def _largest_size(sizes: Sequence[int], ranks: int) -> int:
    """The largest number of cores that each of `ranks` ranks can have without straddling one of the groups."""
    for size in range(sum(sizes) // ranks, 0, -1):
        if sum(group // size for group in sizes) >= ranks:
            return size
    return 1


def _spread(slots: Sequence[int], ranks: int) -> list[int]:
    """The number of ranks of each group, as even as the slots allow."""
    counts = [0] * len(slots)
    for _ in range(ranks):
        free = [index for index in range(len(slots)) if counts[index] < slots[index]]
        counts[min(free, key=lambda index: (counts[index], index))] += 1
    return counts
