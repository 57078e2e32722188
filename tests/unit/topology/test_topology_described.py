"""Nodes from descriptions: what they say, what they may not say, and how they complete a probe."""

from __future__ import annotations

import msgspec
import pytest

from looping import each
from unit.topology.nodes import AURORA_NODE, MAX_1550, MI250X, MI250X_NODE, aurora, gh200, lumi, perlmutter, workstation
from windlass.base.notation.counts import format_bindings
from windlass.errors import ConfigError
from windlass.model.site import BindingSpec
from windlass.model.topology import DeviceSpec, DomainSpec, NodeSpec
from windlass.sites.topology.bind import bind
from windlass.sites.topology.binding_request import BindingRequest, binding_request_from_site
from windlass.sites.topology.described import complete_probe, topology_from_spec
from windlass.sites.topology.split import in_unit


def test_second_threads_are_paired_with_their_core() -> None:
    assert aurora().cores[1].cpus == (1, 105)
    assert aurora().cores[103].cpus == (103, 207)
    assert aurora().cores[103].socket == 1


def test_die_hangs_on_the_cache_of_its_place_in_the_domain() -> None:
    places = {device.index: (device.numa, device.l3) for device in lumi().devices}
    assert places == {4: (0, 0), 5: (0, 1), 2: (1, 2), 3: (1, 3), 6: (2, 4), 7: (2, 5), 0: (3, 6), 1: (3, 7)}


def test_one_device_beside_two_caches_belongs_to_the_domain() -> None:
    assert [device.l3 for device in perlmutter().devices] == [None] * 4


def test_tiles_and_cards_are_the_same_node() -> None:
    cards = in_unit(aurora(), "card")
    assert [(card.index, card.tiles, card.numa) for card in cards.devices] == [(i, 2, i // 3) for i in range(6)]
    assert cards.devices[0].memory_bytes == 2 * aurora().devices[0].memory_bytes
    assert (aurora().unit, cards.unit, gh200().unit) == ("tile", "card", "card")
    assert in_unit(gh200(), "tile") == gh200() == in_unit(gh200(), "card")


def test_description_in_cards_gives_tiles_when_asked() -> None:
    by_card = msgspec.structs.replace(
        AURORA_NODE,
        domains=tuple(
            msgspec.structs.replace(domain, devices=tuple(range(3 * i, 3 * i + 3)))
            for i, domain in enumerate(AURORA_NODE.domains)
        ),
    )
    composite = msgspec.structs.replace(MAX_1550, unit="card", memory_gb=128)
    assert len(topology_from_spec(by_card, composite).devices) == 6
    assert topology_from_spec(by_card, composite, unit="tile") == aurora()


def test_only_a_number_of_cores_is_one_domain() -> None:
    node = topology_from_spec(NodeSpec(cores=4, threads_per_core=2), DeviceSpec())
    assert [core.cpus for core in node.cores] == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_nothing_described_is_an_empty_node_that_binds_nobody() -> None:
    node = topology_from_spec(NodeSpec(), DeviceSpec())
    assert node.cores == ()
    assert bind(node, BindingRequest(ranks_per_node=4)).ranks[3].cpus == ()


@each(
    ("node", "message"),
    [
        (NodeSpec(cores=4, threads_per_core=2, domains=(DomainSpec(cpus="0-6"),)), "do not make cores of 2 threads"),
        (NodeSpec(cores=8, domains=(DomainSpec(cpus="0-3"),)), "hold 4 cores, but cores = 8"),
        (NodeSpec(domains=(DomainSpec(cpus="0-3"), DomainSpec(cpus="3-6"))), "CPU 3 is in domain 0 too"),
        (NodeSpec(cores=4, reserved="9"), "reserved: the node has no CPU 9"),
        (NodeSpec(domains=(DomainSpec(cpus="0-3", devices=(0, 2)),)), "not numbered from 0 without a gap"),
        (NodeSpec(domains=(DomainSpec(cpus="0-3", devices=(0, 0)),)), "device 0 is listed twice"),
    ],
)
def test_contradictions_name_their_place(node: NodeSpec, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        topology_from_spec(node, DeviceSpec(vendor="nvidia"), where="my.toml: node")
    assert "my.toml" in caught.value.message


def test_interfaces_without_a_domain_are_kept_without_one() -> None:
    node = NodeSpec(cores=4, nics=("hsn10", "hsn2"), nic_gbits=200)
    nics = topology_from_spec(node, DeviceSpec()).nics
    assert [(nic.name, nic.numa, nic.speed_mbits) for nic in nics] == [("hsn2", None, 200000), ("hsn10", None, 200000)]
    binding = bind(topology_from_spec(node, DeviceSpec()), BindingRequest(ranks_per_node=2))
    assert [rank.nic for rank in binding.ranks] == [None, None]


def test_site_habits_and_flags_become_one_wish() -> None:
    binding = BindingSpec(order="core", threads="first", agent_cpus="48-51", comm_cpus="42-47")
    asked = binding_request_from_site(binding, MI250X, ranks_per_node=8, mode="one")
    assert (asked.order, asked.threads, asked.devices, asked.agent_cpus) == ("core", "first", "one", ())
    assert asked.comm_cpus == (42, 43, 44, 45, 46, 47)
    assert binding_request_from_site(binding, MI250X, ranks_per_node=8, with_agent=True).agent_cpus == (48, 49, 50, 51)


def test_description_tells_a_probe_which_cores_the_system_keeps() -> None:
    seen = msgspec.structs.replace(
        lumi(),
        reserved=(),
        probed=True,
        devices=tuple(msgspec.structs.replace(device, numa=None, l3=None) for device in lumi().devices),
    )
    node = complete_probe(seen, topology_from_spec(MI250X_NODE, MI250X))
    assert node.probed
    binding = bind(node, BindingRequest(ranks_per_node=8, threads="first"))
    assert format_bindings(rank.cpus for rank in binding.ranks).startswith("49-55:57-63:17-23")


def test_description_of_other_hardware_is_not_believed() -> None:
    assert complete_probe(gh200(), lumi()) == gh200()
    assert complete_probe(workstation(), lumi()).devices == ()
