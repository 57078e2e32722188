"""The site file of a measured cluster: what was seen is in it, what was not is absent, and it passes the check."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from windlass.model.request import NodeOffer, PartitionOffer
from windlass.model.site import QueueSpec
from windlass.model.topology import DeviceSpec, DomainSpec, NodeSpec
from windlass.sites.adopted import Measurements, queues_of, site_file_text
from windlass.sites.catalog import load_site
from windlass.sites.check import check_file

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LOGIN = Measurements(
    name="bluebox",
    date="2026-08-19",
    extends="generic-slurm",
    scheduler="slurm",
    queues=(QueueSpec(name="gpu", nodes_max=8, time_max="12:00:00", default=True), QueueSpec(name="cpu")),
    offers=(
        PartitionOffer(name="gpu", default=True, kinds=(NodeOffer(nodes=8, cpus=64, gpus=(("a100", 4),)),)),
        PartitionOffer(name="cpu", kinds=(NodeOffer(nodes=20, cpus=128),)),
    ),
    node_missing="run it again inside an allocation",
)
NODE = NodeSpec(
    arch="x86_64",
    cores=8,
    threads_per_core=2,
    domains=(
        DomainSpec(cpus="0-3,8-11", devices=(0,), nics=("ib0",)),
        DomainSpec(cpus="4-7,12-15", socket=1, devices=(1,)),
    ),
)
INSIDE = msgspec.structs.replace(
    LOGIN,
    node=NODE,
    devices=DeviceSpec(vendor="nvidia", name='A "big" one \\', memory_gb=80.5),
    node_host="node1",
    node_partition="gpu",
    network="infiniband",
    launcher="srun",
    cluster_name="blue",
    modules=("gcc/13", "cuda/12"),
)


def test_all_that_was_measured_is_in_the_site_with_its_date(tmp_path: Path) -> None:
    path = tmp_path / "bluebox.toml"
    path.write_text(site_file_text(INSIDE))
    assert check_file(path) == ()
    site = load_site("bluebox", user_files=(path,))
    assert msgspec.structs.replace(site.file.node, source="") == NODE
    assert site.file.devices.name == 'A "big" one \\' and site.file.devices.memory_gb == 80.5
    assert [queue.name for queue in site.file.queues] == ["gpu", "cpu"]
    assert site.file.network == "infiniband"
    assert site.file.scheduler.default_partition == "gpu"
    assert site.file.detect.cluster_names == ("blue",)
    assert site.file.modules[-1].load == ("gcc/13", "cuda/12") and not site.file.modules[-1].default
    assert site.origin_of("node.domains").text() == f"user {path}: measured, 2026-08-19, checked 2026-08-19"


def test_what_was_not_seen_is_absent(tmp_path: Path) -> None:
    path = tmp_path / "bluebox.toml"
    path.write_text(site_file_text(LOGIN))
    assert check_file(path) == ()
    data = tomllib.loads(path.read_text())
    assert set(data) == {"kind", "name", "extends", "status", "source", "sources", "scheduler", "queues"}
    assert "# No node: run it again inside an allocation" in path.read_text()
    assert "time_max" not in data["queues"][1] and "nodes_max" not in data["queues"][1]


def test_partitions_without_devices_are_nobodys_choice() -> None:
    gpu, cpu = queues_of(LOGIN)
    assert (gpu.by_name, cpu.by_name, cpu.devices) == (False, True, True)
    gpu, cpu = queues_of(INSIDE)
    assert (gpu.devices, cpu.devices) == (True, False), "the node in the file is not theirs"
    assert gpu.note == "8 nodes of 64 CPUs, 4 devices each"


def test_a_cluster_without_devices_has_plain_queues() -> None:
    bare = tuple(tuple(msgspec.structs.replace(kind, gpus=()) for kind in offer.kinds) for offer in LOGIN.offers)
    offers = tuple(msgspec.structs.replace(o, kinds=kinds) for o, kinds in zip(LOGIN.offers, bare, strict=True))
    assert all(q.devices and not q.by_name for q in queues_of(msgspec.structs.replace(LOGIN, offers=offers)))
