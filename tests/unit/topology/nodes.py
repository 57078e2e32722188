"""Nodes of known machines as their documentation describes them, for the tests of binding and drawing."""

from __future__ import annotations

from windlass.model.site import PresetSpec
from windlass.model.topology import DeviceSpec, DomainSpec, NodeSpec, Topology
from windlass.sites.topology.described import topology_from_spec


def span(first: int, last: int, *, sibling: int) -> str:
    """Cores first..last and their second threads, `sibling` further on."""
    return f"{first}-{last},{first + sibling}-{last + sibling}"


# Each interface hangs on one card, hence on one domain; which one is not published, so the numbers here are made up.
MI250X_NODE = NodeSpec(
    arch="x86_64",
    cores=64,
    threads_per_core=2,
    domains=(
        DomainSpec(cpus=span(0, 15, sibling=64), devices=(4, 5), nics=("hsn0",)),
        DomainSpec(cpus=span(16, 31, sibling=64), devices=(2, 3), nics=("hsn1",)),
        DomainSpec(cpus=span(32, 47, sibling=64), devices=(6, 7), nics=("hsn2",)),
        DomainSpec(cpus=span(48, 63, sibling=64), devices=(0, 1), nics=("hsn3",)),
    ),
    l3=tuple(span(8 * i, 8 * i + 7, sibling=64) for i in range(8)),
    reserved="0,8,16,24,32,40,48,56,64,72,80,88,96,104,112,120",
    tiles_per_card=2,
    memory_gb=512,
    nic_gbits=200,
)
MI250X = DeviceSpec(vendor="amd", name="MI250X", unit="tile", visibility="ROCR_VISIBLE_DEVICES", memory_gb=64)

AURORA_NODE = NodeSpec(
    arch="x86_64",
    cores=104,
    threads_per_core=2,
    domains=(
        DomainSpec(cpus="0-51,104-155", socket=0, devices=(0, 1, 2, 3, 4, 5), nics=("hsn0", "hsn1", "hsn2", "hsn3")),
        DomainSpec(
            cpus="52-103,156-207", socket=1, devices=(6, 7, 8, 9, 10, 11), nics=("hsn4", "hsn5", "hsn6", "hsn7")
        ),
    ),
    reserved="0,52,104,156",
    tiles_per_card=2,
    memory_gb=1024,
    nic_gbits=200,
    nic_by_core=True,
)
MAX_1550 = DeviceSpec(vendor="intel", name="Max 1550", unit="tile", visibility="ZE_AFFINITY_MASK", memory_gb=64)
AURORA_48 = ":".join(str(core) for core in [1, *range(2, 47, 2), 53, *range(54, 99, 2)])
AURORA_PRESETS = (
    PresetSpec(
        name="ai",
        ranks_per_node=12,
        cpus="4-7:8-11:12-15:16-19:20-23:24-27:56-59:60-63:64-67:68-71:72-75:76-79",
        comm_cpus="42-47,94-99",
        device_unit="tile",
        default=True,
        because="four cores per rank, away from the workers of oneCCL",
        source="pytorch",
    ),
    PresetSpec(
        name="nic-balanced",
        ranks_per_node=12,
        cpus="4:9:14:19:20:25:56:61:66:71:74:79",
        device_unit="tile",
        because="one core per rank, spread over the interfaces",
        source="oneccl",
    ),
    PresetSpec(
        name="ccs4",
        ranks_per_node=48,
        cpus=AURORA_48,
        device_unit="tile",
        because="four compute engines of each tile are devices of their own",
        source="pytorch",
    ),
    PresetSpec(
        name="composite",
        ranks_per_node=6,
        cpus="1-16:17-32:33-48:53-68:69-84:85-100",
        device_unit="card",
        default=True,
        because="one rank per card",
        source="running-jobs",
    ),
)

PERLMUTTER_NODE = NodeSpec(
    arch="x86_64",
    cores=64,
    threads_per_core=2,
    domains=tuple(
        DomainSpec(cpus=span(16 * i, 16 * i + 15, sibling=64), devices=(3 - i,), nics=(f"hsn{i}",)) for i in range(4)
    ),
    l3=tuple(span(8 * i, 8 * i + 7, sibling=64) for i in range(8)),
    memory_gb=256,
    nic_gbits=200,
)
POLARIS_NODE = NodeSpec(
    arch="x86_64",
    cores=32,
    threads_per_core=2,
    domains=tuple(
        DomainSpec(cpus=span(8 * i, 8 * i + 7, sibling=32), devices=(3 - i,), nics=nics)
        for i, nics in enumerate((("hsn0",), (), ("hsn1",), ()))
    ),
    nic_gbits=200,
)
A100 = DeviceSpec(vendor="nvidia", name="A100", visibility="CUDA_VISIBLE_DEVICES", memory_gb=40)

GH200_NODE = NodeSpec(
    arch="aarch64",
    cores=288,
    domains=tuple(
        DomainSpec(cpus=f"{72 * i}-{72 * i + 71}", socket=i, devices=(i,), nics=(f"hsn{i}",)) for i in range(4)
    ),
    nic_gbits=200,
)
GH200 = DeviceSpec(vendor="nvidia", name="GH200 120GB", visibility="CUDA_VISIBLE_DEVICES", memory_gb=96)

JUWELS_NODE = NodeSpec(
    arch="x86_64",
    cores=48,
    threads_per_core=2,
    domains=tuple(
        DomainSpec(cpus=span(6 * i, 6 * i + 5, sibling=48), socket=i // 4, devices=devices)
        for i, devices in enumerate(((), (1,), (), (0,), (), (3,), (), (2,)))
    ),
    nics=("ib0", "ib1", "ib2", "ib3"),
    nic_gbits=200,
)

WORKSTATION_NODE = NodeSpec(arch="x86_64", cores=2)


def lumi() -> Topology:
    return topology_from_spec(MI250X_NODE, MI250X)


def aurora() -> Topology:
    return topology_from_spec(AURORA_NODE, MAX_1550)


def perlmutter() -> Topology:
    return topology_from_spec(PERLMUTTER_NODE, A100)


def polaris() -> Topology:
    return topology_from_spec(POLARIS_NODE, A100)


def gh200() -> Topology:
    return topology_from_spec(GH200_NODE, GH200)


def juwels() -> Topology:
    return topology_from_spec(JUWELS_NODE, A100)


def workstation() -> Topology:
    return topology_from_spec(WORKSTATION_NODE, DeviceSpec())
