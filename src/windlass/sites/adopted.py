"""Write the site file of a measured cluster: from values to TOML. Pure. The text contains only known values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import msgspec

from windlass.model.request import PartitionOffer
from windlass.model.site import QueueSpec
from windlass.model.topology import DeviceSpec, NodeSpec

_SOURCE = "measured"


class Measurements(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of a cluster on one day."""

    name: str
    date: str
    """For example 2026-08-19."""
    extends: str
    """The generic site, which contains windlass's defaults."""
    scheduler: str
    cluster_name: str | None = None
    queues: tuple[QueueSpec, ...] = ()
    offers: tuple[PartitionOffer, ...] = ()
    node: NodeSpec | None = None
    devices: DeviceSpec | None = None
    node_host: str = ""
    node_partition: str | None = None
    node_missing: str = ""
    """Why the node is missing."""
    network: str | None = None
    launcher: str | None = None
    modules: tuple[str, ...] = ()


def site_file_text(seen: Measurements) -> str:
    """The text of the file, which `windlass sites check` accepts."""
    return "\n".join(_lines(seen)) + "\n"


def _lines(seen: Measurements) -> Iterator[str]:
    yield _comment(
        f"Measured by `windlass sites adopt {seen.name}` on {seen.date}. Facts that were not found are absent."
    )
    head: dict[str, object] = {"kind": "site", "name": seen.name, "extends": seen.extends}
    head |= {"network": seen.network} if seen.network else {}
    yield from _pairs({**head, "status": _status(seen), "source": _SOURCE})
    yield from _block("[sources.measured]", {"where": f"measured, {seen.date}", "checked": seen.date})
    if seen.cluster_name:
        yield from _block("[detect]", {"cluster_names": [seen.cluster_name], "source": _SOURCE})
    default = next((queue.name for queue in seen.queues if queue.default and queue.kind != "qos"), None)
    scheduler: dict[str, object] = {"kind": seen.scheduler}
    scheduler |= {"default_partition": default} if default else {}
    yield from _block("[scheduler]", {**scheduler, "source": _SOURCE})
    if seen.launcher:
        yield from _block("[launcher]", {"kind": seen.launcher, "source": _SOURCE})
    yield from _node_lines(seen)
    for queue in queues_of(seen):
        yield from _block("[[queues]]", {**msgspec.to_builtins(queue), "source": _SOURCE})
    if seen.modules:
        yield ""
        yield "# Loaded when this was measured. With `default = true` every job loads them."
        because = "loaded in the shell of the measurement"
        table = {"load": list(seen.modules), "default": False, "because": because, "source": _SOURCE}
        yield from _block("[[modules]]", table, blank=False)


def _node_lines(seen: Measurements) -> Iterator[str]:
    if seen.node is None:
        yield ""
        yield _comment(f"No node: {seen.node_missing}")
        return
    plain = msgspec.to_builtins(seen.node)
    domains = plain.pop("domains", [])
    yield ""
    where = f", of {seen.node_partition}" if seen.node_partition else ""
    yield _comment(f"As seen on {seen.node_host}{where}.")
    yield from _block("[node]", {**plain, "source": _SOURCE}, blank=False)
    for domain in domains:
        yield from _block("[[node.domains]]", domain)
    if seen.devices is not None and seen.devices.vendor:
        yield from _block("[devices]", {**msgspec.to_builtins(seen.devices), "source": _SOURCE})


def _status(seen: Measurements) -> str:
    return f"measured, {seen.date}" + ("" if seen.node else "; a compute node has not been seen yet")


def queues_of(seen: Measurements) -> tuple[QueueSpec, ...]:
    """The queues, each with the scheduler's offer as a note.

    If only some queues have devices, the others are never chosen automatically. If the file has a node with devices,
    plans for queues without devices are refused.
    """
    offers = {offer.name: offer for offer in seen.offers}
    some = any(offer.gpus_per_node for offer in seen.offers)
    with_devices = seen.node is not None and any(domain.devices for domain in seen.node.domains)
    found = []
    for queue in seen.queues:
        offer = offers.get(queue.name)
        changes: dict[str, object] = {"note": _offer_note(offer)} if offer else {}
        if offer is not None and some and not offer.gpus_per_node:
            changes |= {"devices": False} if with_devices else {"by_name": True}
        found.append(msgspec.structs.replace(queue, **changes))
    return tuple(found)


def _offer_note(offer: PartitionOffer) -> str:
    devices = f", {offer.gpus_per_node} devices" if offer.gpus_per_node else ""
    mixed = "; others differ" if offer.mixed else ""
    return f"{offer.nodes} nodes of {offer.cpus_per_node} CPUs{devices} each{mixed}"


def _comment(text: str) -> str:
    """One line, whatever the names in it are: they may come from a stranger's bundle."""
    return "# " + " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _block(header: str, table: Mapping[str, object], *, blank: bool = True) -> Iterator[str]:
    if blank:
        yield ""
    yield header
    yield from _pairs(table)


def _pairs(table: Mapping[str, object]) -> Iterator[str]:
    for key, value in table.items():
        yield f"{key} = {_value(value)}"


def _value(value: object) -> str:
    """Strings, numbers, booleans and lists of them in TOML syntax: JSON syntax with DEL escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
