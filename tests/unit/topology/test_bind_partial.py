"""Bindings of parts of nodes, of nodes without devices, and of requests that cannot be met."""

from __future__ import annotations

import msgspec
import pytest

from looping import each
from unit.topology.nodes import (
    AURORA_PRESETS,
    GH200,
    GH200_NODE,
    aurora,
    gh200,
    lumi,
    perlmutter,
    polaris,
    workstation,
)
from windlass.base.notation.counts import format_bindings, parse_cpulist
from windlass.errors import ConfigError, UsageError
from windlass.model.plan import Binding
from windlass.model.site import PresetSpec
from windlass.model.topology import DeviceSpec, DomainSpec, NodeSpec, Topology
from windlass.sites.topology.bind import bind
from windlass.sites.topology.binding_request import BindingRequest
from windlass.sites.topology.check import problems_of
from windlass.sites.topology.described import topology_from_spec


def lists(binding: Binding) -> str:
    return format_bindings(rank.cpus for rank in binding.ranks)


def part(topology: Topology, *, allowed: str = "", devices: tuple[int, ...] | None = None) -> Topology:
    """The node with only some CPUs allowed or some devices there."""
    kept = topology.devices if devices is None else tuple(d for d in topology.devices if d.index in devices)
    return msgspec.structs.replace(topology, allowed=parse_cpulist(allowed), devices=kept)


def cpu_node(*sizes: int, sockets: int = 1) -> Topology:
    """Domains of the given numbers of cores, no devices."""
    domains, start = [], 0
    for number, size in enumerate(sizes):
        socket = number * sockets // len(sizes)
        domains.append(DomainSpec(cpus=f"{start}-{start + size - 1}", socket=socket))
        start += size
    return topology_from_spec(NodeSpec(arch="x86_64", cores=start, domains=tuple(domains)), DeviceSpec())


# Fewer ranks than devices, shares of devices


def test_fewer_ranks_than_devices_sit_next_to_the_first_devices() -> None:
    binding = bind(lumi(), BindingRequest(ranks_per_node=3, threads="first"))
    assert lists(binding) == "49-55:57-63:17-23"
    assert [rank.devices for rank in binding.ranks] == [(0,), (1,), (2,)]
    assert binding.visible == ()


def test_fewer_ranks_in_core_order_still_see_their_own_device_first() -> None:
    binding = bind(perlmutter(), BindingRequest(ranks_per_node=2, order="core"))
    assert [rank.devices for rank in binding.ranks] == [(3,), (2,)]
    assert binding.visible == (3, 2, 1, 0)


def test_the_only_rank_of_a_node_has_all_of_it() -> None:
    binding = bind(gh200(), BindingRequest(ranks_per_node=1))
    assert lists(binding) == "0-287"
    assert binding.ranks[0].devices == (0, 1, 2, 3)
    assert binding.ranks[0].nic is None


def test_the_only_rank_with_one_device_stays_near_it() -> None:
    assert lists(bind(gh200(), BindingRequest(ranks_per_node=1, devices="one"))) == "0-71"


def test_two_ranks_per_device_halve_its_cores() -> None:
    binding = bind(gh200(), BindingRequest(ranks_per_node=8, ranks_per_device=2, devices="one"))
    assert lists(binding).startswith("0-35:36-71:72-107")
    assert [rank.devices[0] for rank in binding.ranks] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_three_ranks_on_devices_shared_by_two() -> None:
    binding = bind(gh200(), BindingRequest(ranks_per_node=3, ranks_per_device=2))
    assert [rank.devices[0] for rank in binding.ranks] == [0, 0, 1]


def test_more_ranks_than_devices_is_refused_with_both_ways_out() -> None:
    with pytest.raises(UsageError, match="9 ranks per node, but the node has 8 devices") as caught:
        bind(lumi(), BindingRequest(ranks_per_node=9))
    assert "--ranks-per-device 2" in str(caught.value.hint)
    assert "--ranks-per-node 8" in str(caught.value.hint)


def test_twelve_ranks_on_six_cards_hint_at_tiles() -> None:
    with pytest.raises(UsageError) as caught:
        bind(aurora(), BindingRequest(ranks_per_node=12, device_unit="card"))
    assert "--device-unit tile" in str(caught.value.hint)


def test_more_ranks_than_shares_is_refused() -> None:
    with pytest.raises(UsageError, match="4 devices, 2 ranks each"):
        bind(gh200(), BindingRequest(ranks_per_node=9, ranks_per_device=2))


@each("asked", [BindingRequest(ranks_per_node=0), BindingRequest(ranks_per_node=2, ranks_per_device=0)])
def test_no_ranks_is_refused(asked: BindingRequest) -> None:
    with pytest.raises(UsageError):
        bind(gh200(), asked)


# Parts of nodes


def test_two_dies_and_their_cores_of_a_shared_node() -> None:
    node = part(lumi(), allowed="1-7,9-15", devices=(4, 5))
    binding = bind(node, BindingRequest(ranks_per_node=2))
    assert lists(binding) == "1-7:9-15"
    assert binding.visible == (4, 5)
    assert problems_of(binding, node) == ()


def test_cores_far_from_the_device_are_taken_when_there_are_no_others() -> None:
    node = part(lumi(), allowed="1-7,9-15", devices=(0, 1))
    binding = bind(node, BindingRequest(ranks_per_node=2))
    assert lists(binding) == "1-7:9-15"
    assert problems_of(binding, node) == ()


def test_one_socket_only() -> None:
    node = part(aurora(), allowed="53-103,157-207", devices=tuple(range(6, 12)))
    binding = bind(node, BindingRequest(ranks_per_node=6, threads="first"))
    assert lists(binding) == "53-60:61-68:69-76:77-84:85-92:93-100"
    assert binding.visible == (6, 7, 8, 9, 10, 11)


def test_a_domain_with_too_few_cores_makes_everybody_share_the_socket() -> None:
    node = part(polaris(), allowed="0-16", devices=(0, 1, 2, 3))
    binding = bind(node, BindingRequest(ranks_per_node=4, order="core", threads="first"))
    assert lists(binding) == "0-3:4-7:8-11:12-15"
    assert "socket" in binding.because
    assert problems_of(binding, node) == ()


def test_default_preset_gives_way_on_part_of_a_node() -> None:
    node = part(aurora(), allowed="1-51,105-155")
    binding = bind(node, BindingRequest(ranks_per_node=12, presets=AURORA_PRESETS))
    assert binding.preset is None
    assert "preset ai needs the whole node" in binding.because
    assert problems_of(binding, node) == ()


def test_named_preset_is_refused_on_part_of_a_node() -> None:
    node = part(aurora(), allowed="1-51,105-155")
    with pytest.raises(UsageError, match="needs the whole node"):
        bind(node, BindingRequest(ranks_per_node=12, presets=AURORA_PRESETS, cpu_bind="ai"))


def test_ranks_that_outnumber_the_cores_are_left_unbound_and_told_so() -> None:
    binding = bind(workstation(), BindingRequest(ranks_per_node=4))
    assert lists(binding) == ":::"
    assert binding.because == "not bound: 4 ranks, 2 usable cores"
    starved = bind(part(gh200(), allowed="0,72"), BindingRequest(ranks_per_node=4))
    assert all(rank.cpus == () for rank in starved.ranks)
    assert [rank.numa for rank in starved.ranks] == [(0,), (1,), (2,), (3,)]


def test_devices_that_do_not_say_their_domain_share_in_order() -> None:
    node = gh200()
    blind = tuple(msgspec.structs.replace(device, numa=None) for device in node.devices)
    binding = bind(msgspec.structs.replace(node, devices=blind), BindingRequest(ranks_per_node=4))
    assert lists(binding) == "0-71:72-143:144-215:216-287"
    assert "are unknown" in binding.because


# Nodes without devices


def test_two_ranks_on_a_workstation() -> None:
    assert lists(bind(workstation(), BindingRequest(ranks_per_node=2))) == "0:1"


@each(
    ("sizes", "sockets", "ranks", "expected"),
    [
        ((8, 8), 2, 2, "0-7:8-15"),
        ((8, 8), 2, 3, "0-3:4-7:8-11"),
        ((8, 8), 2, 1, "0-15"),
        ((4, 4, 4, 4), 1, 2, "0-7:8-15"),
        ((4, 4, 4, 4), 2, 3, "0-3:4-7:8-11"),
        ((4, 4, 4, 4), 1, 5, "0-2:3-5:6-8:9-11:12-14"),
        ((6, 1), 1, 2, "0-2:3-5"),
        ((1, 1, 1, 1), 2, 3, "0:1:2"),
    ],
)
def test_ranks_of_a_node_without_devices_get_equal_runs_within_domains(
    sizes: tuple[int, ...], sockets: int, ranks: int, expected: str
) -> None:
    assert lists(bind(cpu_node(*sizes, sockets=sockets), BindingRequest(ranks_per_node=ranks))) == expected


def test_no_more_cores_than_asked_for() -> None:
    assert lists(bind(gh200(), BindingRequest(ranks_per_node=4, cores_per_rank_max=8))) == "0-7:72-79:144-151:216-223"


# Cores set aside


def test_cores_set_aside_for_agent_and_communication_are_nobodys() -> None:
    asked = BindingRequest(ranks_per_node=12, threads="first", agent_cpus=(48, 49, 50, 51), comm_cpus=(42, 43, 94, 95))
    binding = bind(aurora(), asked)
    assert binding.agent_cpus == (48, 49, 50, 51)
    assert problems_of(binding, aurora()) == ()
    assert lists(binding).startswith("1-7:8-14:")


def test_second_thread_of_a_core_set_aside_is_not_given_away() -> None:
    node = part(aurora(), allowed="100-207")
    binding = bind(node, BindingRequest(ranks_per_node=1, devices="one", agent_cpus=(1, 2)))
    assert not {105, 106} & set(binding.ranks[0].cpus)


# What --cpu-bind may say


def test_none_leaves_ranks_unbound_but_with_a_device() -> None:
    binding = bind(lumi(), BindingRequest(ranks_per_node=8, cpu_bind="none", presets=AURORA_PRESETS))
    assert all(rank.cpus == () for rank in binding.ranks)
    assert [rank.devices for rank in binding.ranks] == [(i,) for i in range(8)]
    assert binding.origin.scope == "flag"


def test_a_site_may_leave_binding_to_its_launcher() -> None:
    binding = bind(lumi(), BindingRequest(ranks_per_node=8, launcher_binds=False))
    assert all(rank.cpus == () for rank in binding.ranks)
    assert "launcher" in binding.because


@each(
    "text",
    [
        "0-3:4-7:8-11:12-15",
        "list:0-3:4-7:8-11:12-15",
        "verbose,list:0-3:4-7:8-11:12-15",
        "mask_cpu:0xf,0xf0,0xf00,0xf000",
    ],
)
def test_lists_are_taken_in_every_spelling_that_sites_print(text: str) -> None:
    binding = bind(gh200(), BindingRequest(ranks_per_node=4, cpu_bind=text))
    assert lists(binding) == "0-3:4-7:8-11:12-15"
    assert binding.origin.scope == "flag"


def test_a_map_of_single_cpus() -> None:
    asked = BindingRequest(ranks_per_node=8, cpu_bind="map_cpu:49,57,17,25,1,9,33,41")
    assert lists(bind(lumi(), asked)) == "49:57:17:25:1:9:33:41"


@each(
    ("text", "message"),
    [
        ("0-3", "lists 1 ranks"),
        ("0-3:4-7:8-11:", "without CPUs"),
        ("0-3:4-7:8-11:999", "no CPU 999"),
        ("mask_cpu:0xzz", "not a list of numbers"),
    ],
)
def test_lists_that_cannot_work_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        bind(gh200(), BindingRequest(ranks_per_node=4, cpu_bind=text))


def test_a_list_on_reserved_or_foreign_cores_is_refused() -> None:
    with pytest.raises(UsageError, match="the system reserves CPU 8"):
        bind(lumi(), BindingRequest(ranks_per_node=2, cpu_bind="1-7:8-15"))
    with pytest.raises(UsageError, match="outside what this job may use"):
        bind(part(gh200(), allowed="0-71"), BindingRequest(ranks_per_node=1, cpu_bind="70-73"))


def test_an_odd_list_is_the_users_own_choice_but_the_check_says_so() -> None:
    binding = bind(gh200(), BindingRequest(ranks_per_node=2, cpu_bind="72-80:72-75"))
    assert len(problems_of(binding, gh200())) == 2


def test_an_unknown_binding_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="unknown binding 'compsite'") as caught:
        bind(aurora(), BindingRequest(ranks_per_node=6, presets=AURORA_PRESETS, cpu_bind="compsite"))
    assert "composite" in str(caught.value.hint)


def test_a_preset_for_another_number_of_ranks_is_refused() -> None:
    with pytest.raises(UsageError, match="is for 48 ranks per node, not 12"):
        bind(aurora(), BindingRequest(ranks_per_node=12, presets=AURORA_PRESETS, cpu_bind="ccs4"))


def test_a_preset_for_cards_contradicts_tiles() -> None:
    asked = BindingRequest(ranks_per_node=6, presets=AURORA_PRESETS, cpu_bind="composite", device_unit="tile")
    with pytest.raises(UsageError, match="not --device-unit tile"):
        bind(aurora(), asked)


# Presets that break the invariants


def preset(cpus: str, *, ranks: int = 2, comm: str = "", devices: tuple[int, ...] = ()) -> PresetSpec:
    return PresetSpec(
        name="odd", ranks_per_node=ranks, cpus=cpus, comm_cpus=comm, devices=devices, because="a test", source="none"
    )


@each(
    ("broken", "message"),
    [
        (preset("0-3:53-56", devices=(0, 6)), "the system reserves CPU 0"),
        (preset("104:53-56", devices=(0, 6)), "the system reserves CPU 104"),
        (preset("1-4:4-8", devices=(0, 1)), "ranks 0 and 1 share CPUs 4"),
        (preset("1-4:5-8", comm="108", devices=(0, 1)), "CPUs 4 are set aside for communication"),
        (preset("1-4:48-50", devices=(0, 1)), "CPUs 48-50 are set aside for the agent"),
        (preset("1-4:5-8"), "rank 1: cores 5-8 are not in socket 1 of its device 6"),
        (preset("1-4:5-8:9-12"), "3 CPU lists"),
        (preset("1-4:400", devices=(0, 1)), "the node has no CPU 400"),
        (preset("1-4:5-8", devices=(0, 12)), "device 12, which the node does not have"),
    ],
)
def test_a_broken_preset_is_an_error_of_the_catalog(broken: PresetSpec, message: str) -> None:
    asked = BindingRequest(ranks_per_node=2, presets=(broken,), cpu_bind="odd", agent_cpus=(48, 49, 50, 51))
    with pytest.raises(ConfigError, match=message):
        bind(aurora(), asked)


def test_a_preset_in_the_wrong_domain_of_the_right_socket_is_an_error() -> None:
    broken = preset("0-15:16-31:32-47:48-63", ranks=4)
    with pytest.raises(ConfigError, match="not in NUMA domain 3 of its device 0"):
        bind(perlmutter(), BindingRequest(ranks_per_node=4, presets=(broken,), cpu_bind="odd"))


def test_a_described_node_that_contradicts_itself_is_an_error() -> None:
    odd = msgspec.structs.replace(GH200_NODE, cores=287)
    with pytest.raises(ConfigError, match="hold 288 cores"):
        topology_from_spec(odd, GH200)
