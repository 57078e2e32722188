"""Every site of the catalog describes a node that can be bound, and presets that keep the invariants."""

from __future__ import annotations

from looping import each
from windlass.base.notation.counts import format_bindings
from windlass.sites.catalog import load_site, site_names
from windlass.sites.topology.bind import bind
from windlass.sites.topology.binding_request import binding_request_from_site, effective_unit
from windlass.sites.topology.check import problems_of
from windlass.sites.topology.described import topology_from_spec
from windlass.sites.topology.split import in_unit

PRESETS = [(name, preset.name) for name in site_names() for preset in load_site(name).file.binding.presets]


@each("name", site_names())
def test_the_documented_node_binds_one_rank_per_device(name: str) -> None:
    file = load_site(name).file
    node = topology_from_spec(file.node, file.devices, where=name)
    asked = binding_request_from_site(
        file.binding, file.devices, ranks_per_node=max(1, len(node.devices)), with_agent=True
    )
    binding = bind(node, asked)
    assert problems_of(binding, in_unit(node, effective_unit(asked, node))) == ()
    if node.cores and file.binding.launcher_binds:
        assert all(rank.cpus for rank in binding.ranks)


@each(("name", "preset"), PRESETS)
def test_presets_keep_the_invariants_beside_an_agent(name: str, preset: str) -> None:
    file = load_site(name).file
    spec = next(spec for spec in file.binding.presets if spec.name == preset)
    node = topology_from_spec(file.node, file.devices, where=name)
    asked = binding_request_from_site(
        file.binding, file.devices, ranks_per_node=spec.ranks_per_node, cpu_bind=preset, with_agent=True
    )
    assert bind(node, asked).preset == preset


@each(
    ("name", "mode", "cpus", "devices"),
    [
        ("lumi", None, "49-55:57-63:17-23:25-31:1-7:9-15:33-39:41-47", "01234567"),
        ("frontier", None, "49-55:57-63:17-23:25-31:1-7:9-15:33-39:41-47", "01234567"),
        ("frontier", "one", "1-7:9-15:17-23:25-31:33-39:41-47:49-55:57-63", "45236701"),
        ("perlmutter", None, "0-15,64-79:16-31,80-95:32-47,96-111:48-63,112-127", "3210"),
        ("polaris", None, "0-7,32-39:8-15,40-47:16-23,48-55:24-31,56-63", "3210"),
        ("clariden", None, "0-71:72-143:144-215:216-287", "0123"),
        ("isambard-ai", None, "0-71:72-143:144-215:216-287", "0123"),
        ("hpe-gh200", None, "0-71:72-143:144-215:216-287", "0123"),
        ("jupiter", None, "0-71:72-143:144-215:216-287", "0123"),
    ],
)
def test_documented_maps_come_out_of_the_catalog(name: str, mode: str | None, cpus: str, devices: str) -> None:
    file = load_site(name).file
    node = topology_from_spec(file.node, file.devices, where=name)
    asked = binding_request_from_site(
        file.binding, file.devices, ranks_per_node=len(devices), mode="one" if mode == "one" else None
    )
    binding = bind(node, asked)
    assert format_bindings(rank.cpus for rank in binding.ranks) == cpus
    assert "".join(str(rank.devices[0]) for rank in binding.ranks) == devices
