"""A node that was looked at, as a description: the same node comes back, or there is none."""

from __future__ import annotations

import msgspec

from looping import each
from windlass.model.topology import Core, Device, Nic, Topology
from windlass.sites.catalog import load_site, site_names
from windlass.sites.topology.described import spec_of_topology, topology_from_spec
from windlass.sites.topology.split import in_unit

WITH_NODE = [name for name in site_names() if load_site(name).file.node.domains]


@each("name", WITH_NODE)
def test_nodes_of_all_known_machines_come_back(name: str) -> None:
    file = load_site(name).file
    node = msgspec.structs.replace(topology_from_spec(file.node, file.devices, unit="tile"), reserved=())
    spec, reason = spec_of_topology(node)
    assert spec is not None, reason
    again = topology_from_spec(*spec)
    cards = in_unit(node, "card")
    assert again.cores == cards.cores
    assert [(d.index, d.numa, d.l3, d.vendor, d.name) for d in again.devices] == [
        (d.index, d.numa, d.l3, d.vendor, d.name) for d in cards.devices
    ]
    assert {nic.name: nic.numa for nic in again.nics} == {nic.name: nic.numa for nic in cards.nics}


def small(*cores: tuple[int, ...]) -> Topology:
    return Topology(arch="x86_64", cores=tuple(Core(cpus=cpus) for cpus in cores))


def test_threads_with_neighbouring_numbers_are_said() -> None:
    spec, _ = spec_of_topology(small((0, 1), (2, 3)))
    assert spec is not None and spec[0].adjacent_threads
    assert topology_from_spec(*spec).cores == small((0, 1), (2, 3)).cores
    far, _ = spec_of_topology(small((0, 2), (1, 3)))
    assert far is not None and not far[0].adjacent_threads


@each(
    ("node", "said"),
    [
        (Topology(arch="x86_64", cores=()), "cores could not be read"),
        (small((0, 1), (2,)), "or its devices differ"),
        (small((0, 3), (1, 2)), "cannot describe"),
        (
            msgspec.structs.replace(small((0,), (1,)), devices=(Device(index=0, vendor="amd"),)),
            "NUMA domains of its devices are unknown",
        ),
    ],
    ids=["no cores", "uneven", "numbering", "device"],
)
def test_what_a_description_cannot_say_is_not_guessed(node: Topology, said: str) -> None:
    spec, reason = spec_of_topology(node)
    assert spec is None and said in reason


def test_the_fabric_is_listed_and_not_the_service_network() -> None:
    nics = (
        Nic(name="eth0", numa=0, speed_mbits=1000),
        Nic(name="hsn0", device="cxi0", numa=0, speed_mbits=200000),
    )
    spec, _ = spec_of_topology(msgspec.structs.replace(small((0,), (1,)), nics=nics))
    assert spec is not None
    assert spec[0].domains[0].nics == ("hsn0",) and spec[0].nic_gbits == 200
