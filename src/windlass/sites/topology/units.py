"""Devices counted as tiles or as cards: the same node, seen with FLAT or COMPOSITE eyes. Pure."""

from __future__ import annotations

import msgspec

from windlass.model.topology import Device, DeviceUnit, Topology


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
