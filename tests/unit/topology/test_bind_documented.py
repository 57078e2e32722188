"""Maps that sites document must come out of the computation exactly as they are printed there."""

from __future__ import annotations

from looping import each
from unit.topology.nodes import AURORA_48, AURORA_PRESETS, aurora, gh200, juwels, lumi, perlmutter, polaris
from windlass.base.notation.counts import cpu_mask, format_bindings, format_cpulist
from windlass.model.plan import Binding
from windlass.sites.topology.bind import bind
from windlass.sites.topology.binding_request import BindingRequest, effective_unit
from windlass.sites.topology.check import problems_of
from windlass.sites.topology.split import in_unit


def lists(binding: Binding) -> str:
    return format_bindings(rank.cpus for rank in binding.ranks)


def devices(binding: Binding) -> list[int]:
    return [device for rank in binding.ranks for device in rank.devices]


def nics(binding: Binding) -> list[str | None]:
    return [rank.nic for rank in binding.ranks]


def test_lumi_rank_sits_next_to_the_gcd_of_its_number() -> None:
    binding = bind(lumi(), BindingRequest(ranks_per_node=8, threads="first"))
    assert lists(binding) == "49-55:57-63:17-23:25-31:1-7:9-15:33-39:41-47"
    assert ",".join(cpu_mask(rank.cpus, digits=16) for rank in binding.ranks) == (
        "0x00fe000000000000,0xfe00000000000000,0x0000000000fe0000,0x00000000fe000000,"
        "0x00000000000000fe,0x000000000000fe00,0x000000fe00000000,0x0000fe0000000000"
    )
    assert devices(binding) == list(range(8))
    assert binding.visible == ()
    assert [rank.numa for rank in binding.ranks] == [(3,), (3,), (1,), (1,), (0,), (0,), (2,), (2,)]
    assert problems_of(binding, lumi()) == ()


def test_frontier_keeps_all_devices_visible_by_default_and_uses_the_same_masks() -> None:
    binding = bind(lumi(), BindingRequest(ranks_per_node=8, threads="first", device_by_launcher=True))
    assert lists(binding) == "49-55:57-63:17-23:25-31:1-7:9-15:33-39:41-47"


def test_frontier_with_one_device_per_rank_follows_the_cores_as_its_srun_line_does() -> None:
    asked = BindingRequest(ranks_per_node=8, threads="first", devices="one", device_by_launcher=True)
    binding = bind(lumi(), asked)
    assert lists(binding) == "1-7:9-15:17-23:25-31:33-39:41-47:49-55:57-63"
    assert devices(binding) == [4, 5, 2, 3, 6, 7, 0, 1]
    assert binding.visible == ()


def test_lumi_with_one_device_per_rank_keeps_rank_and_device_numbers_equal() -> None:
    binding = bind(lumi(), BindingRequest(ranks_per_node=8, threads="first", devices="one"))
    assert devices(binding) == list(range(8))
    assert lists(binding).startswith("49-55:57-63")


def test_lumi_with_both_threads_of_every_core() -> None:
    binding = bind(lumi(), BindingRequest(ranks_per_node=8, threads="all"))
    assert format_cpulist(binding.ranks[4].cpus) == "1-7,65-71"


def test_lumi_nic_hangs_on_the_domain_of_the_card() -> None:
    binding = bind(lumi(), BindingRequest(ranks_per_node=8))
    assert nics(binding) == ["hsn3", "hsn3", "hsn1", "hsn1", "hsn0", "hsn0", "hsn2", "hsn2"]


def test_one_rank_per_mi250x_card_gets_both_caches_of_the_card() -> None:
    binding = bind(lumi(), BindingRequest(ranks_per_node=4, device_unit="card", threads="first"))
    assert lists(binding) == "49-55,57-63:17-23,25-31:1-7,9-15:33-39,41-47"


def test_perlmutter_ranks_follow_the_cores_and_see_the_devices_reversed() -> None:
    binding = bind(perlmutter(), BindingRequest(ranks_per_node=4, order="core"))
    assert lists(binding) == "0-15,64-79:16-31,80-95:32-47,96-111:48-63,112-127"
    assert devices(binding) == [3, 2, 1, 0]
    assert binding.visible == (3, 2, 1, 0)
    assert nics(binding) == ["hsn0", "hsn1", "hsn2", "hsn3"]
    assert all(len(rank.cpus) == 32 for rank in binding.ranks)


def test_perlmutter_in_device_order_reverses_the_cores_instead() -> None:
    binding = bind(perlmutter(), BindingRequest(ranks_per_node=4, order="device"))
    assert lists(binding) == "48-63,112-127:32-47,96-111:16-31,80-95:0-15,64-79"
    assert binding.visible == ()


def test_polaris_devices_are_reversed_and_each_rank_takes_the_nearer_interface() -> None:
    binding = bind(polaris(), BindingRequest(ranks_per_node=4, order="core"))
    assert lists(binding) == "0-7,32-39:8-15,40-47:16-23,48-55:24-31,56-63"
    assert devices(binding) == [3, 2, 1, 0]
    assert binding.visible == (3, 2, 1, 0)
    assert nics(binding) == ["hsn0", "hsn0", "hsn1", "hsn1"]


def test_polaris_with_one_device_per_rank_gives_rank_i_device_3_minus_i() -> None:
    binding = bind(polaris(), BindingRequest(ranks_per_node=4, order="core", devices="one"))
    assert devices(binding) == [3 - rank for rank in range(4)]
    assert binding.visible == ()


def test_gh200_rank_has_the_72_cores_of_its_superchip() -> None:
    binding = bind(gh200(), BindingRequest(ranks_per_node=4))
    assert lists(binding) == "0-71:72-143:144-215:216-287"
    assert devices(binding) == [0, 1, 2, 3]
    assert nics(binding) == ["hsn0", "hsn1", "hsn2", "hsn3"]


def test_aurora_without_preset_gives_eight_cores_per_tile() -> None:
    binding = bind(aurora(), BindingRequest(ranks_per_node=12, threads="first"))
    assert lists(binding) == "1-8:9-16:17-24:25-32:33-40:41-48:53-60:61-68:69-76:77-84:85-92:93-100"


def test_aurora_cards_get_exactly_what_their_two_tiles_would() -> None:
    binding = bind(aurora(), BindingRequest(ranks_per_node=6, threads="first", device_unit="card"))
    assert lists(binding) == "1-16:17-32:33-48:53-68:69-84:85-100"
    assert devices(binding) == [0, 1, 2, 3, 4, 5]


def test_aurora_takes_its_default_preset_for_twelve_ranks() -> None:
    binding = bind(aurora(), BindingRequest(ranks_per_node=12, presets=AURORA_PRESETS))
    assert binding.preset == "ai"
    assert lists(binding) == "4-7:8-11:12-15:16-19:20-23:24-27:56-59:60-63:64-67:68-71:72-75:76-79"
    assert format_cpulist(binding.comm_cpus) == "42-47,94-99"
    assert devices(binding) == list(range(12))


def test_aurora_one_core_list_is_balanced_over_the_interfaces() -> None:
    binding = bind(aurora(), BindingRequest(ranks_per_node=12, presets=AURORA_PRESETS, cpu_bind="nic-balanced"))
    assert lists(binding) == "4:9:14:19:20:25:56:61:66:71:74:79"
    assert nics(binding) == [
        "hsn0",
        "hsn1",
        "hsn2",
        "hsn3",
        "hsn0",
        "hsn1",
        "hsn4",
        "hsn5",
        "hsn6",
        "hsn7",
        "hsn6",
        "hsn7",
    ]


def test_aurora_48_ranks_share_each_tile_by_four() -> None:
    binding = bind(aurora(), BindingRequest(ranks_per_node=48, presets=AURORA_PRESETS, cpu_bind="ccs4"))
    assert lists(binding) == AURORA_48
    assert devices(binding) == [rank // 4 for rank in range(48)]


def test_aurora_composite_preset_counts_cards() -> None:
    asked = BindingRequest(ranks_per_node=6, presets=AURORA_PRESETS, cpu_bind="composite")
    assert effective_unit(asked, aurora()) == "card"
    binding = bind(aurora(), asked)
    assert devices(binding) == [0, 1, 2, 3, 4, 5]
    assert problems_of(binding, in_unit(aurora(), "card")) == ()


def test_a_preset_for_cards_is_not_taken_for_six_ranks_on_tiles() -> None:
    binding = bind(aurora(), BindingRequest(ranks_per_node=6, presets=AURORA_PRESETS))
    assert binding.preset is None
    assert lists(bind(aurora(), BindingRequest(ranks_per_node=6, presets=AURORA_PRESETS, device_unit="card"))) == (
        "1-16:17-32:33-48:53-68:69-84:85-100"
    )


@each("name", [preset.name for preset in AURORA_PRESETS])
def test_documented_presets_keep_the_invariants(name: str) -> None:
    preset = next(preset for preset in AURORA_PRESETS if preset.name == name)
    asked = BindingRequest(ranks_per_node=preset.ranks_per_node, presets=AURORA_PRESETS, cpu_bind=name)
    topology = in_unit(aurora(), effective_unit(asked, aurora()))
    assert problems_of(bind(aurora(), asked), topology) == ()


def test_domains_without_device_lend_their_cores_to_the_socket() -> None:
    binding = bind(juwels(), BindingRequest(ranks_per_node=4, threads="first"))
    assert lists(binding) == "12-23:0-11:36-47:24-35"
    assert problems_of(binding, juwels()) == ()
