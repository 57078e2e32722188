"""The probe against synthetic nodes, odd ones, and the machine that the tests run on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from data.sysfs.builder import MachineTree
from data.sysfs.machines import (
    MACHINES,
    aurora_node,
    gh200_node,
    laptop,
    mi250x_node,
    perlmutter_node,
    polaris_node,
)
from looping import each
from windlass.base.notation.counts import format_bindings, format_cpulist
from windlass.model.plan import Binding
from windlass.model.topology import Topology
from windlass.node.probe.cpus import AllowedBy
from windlass.sites.topology.bind import bind
from windlass.sites.topology.binding_request import BindingRequest
from windlass.sites.topology.check import problems_of
from windlass.sites.topology.described import probe_topology


def probed(tree: MachineTree, allowed_by: AllowedBy = "mask") -> Topology:
    return probe_topology(
        sys_root=tree.sys, proc_root=tree.proc, dev_root=tree.dev, allowed_by=allowed_by, arch="x86_64"
    )


def lists(binding: Binding) -> str:
    return format_bindings(rank.cpus for rank in binding.ranks)


def test_mi250x_node_gives_the_documented_masks_without_a_site(tmp_path: Path) -> None:
    tree = mi250x_node(tmp_path / "node")
    reserved = {first + thread for first in range(0, 64, 8) for thread in (0, 64)}
    tree.process(sorted(set(range(128)) - reserved), memory_kb=512 << 20)
    node = probed(tree)
    binding = bind(node, BindingRequest(ranks_per_node=8, threads="first"))
    assert lists(binding) == "49-55:57-63:17-23:25-31:1-7:9-15:33-39:41-47"
    assert [device.card for device in node.devices] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [device.tile for device in node.devices] == [0, 1] * 4
    assert [rank.nic for rank in binding.ranks] == ["hsn3", "hsn3", "hsn0", "hsn0", "hsn1", "hsn1", "hsn2", "hsn2"]
    assert node.devices[0].name == "gfx90a"
    assert node.memory_bytes == 512 << 30


def test_aurora_node_has_twelve_tiles_and_its_memory_domains_are_no_place_for_ranks(tmp_path: Path) -> None:
    node = probed(aurora_node(tmp_path / "node"))
    assert (len(node.cores), len(node.cpus), node.numas, node.sockets) == (104, 208, (0, 1), (0, 1))
    assert [device.card for device in node.devices] == [tile // 2 for tile in range(12)]
    assert [device.numa for device in node.devices] == [0] * 6 + [1] * 6
    binding = bind(node, BindingRequest(ranks_per_node=12, threads="first"))
    assert lists(binding) == "1-8:9-16:17-24:25-32:33-40:41-48:53-60:61-68:69-76:77-84:85-92:93-100"
    cards = bind(node, BindingRequest(ranks_per_node=6, threads="first", device_unit="card"))
    assert lists(cards) == "1-16:17-32:33-48:53-68:69-84:85-100"


def test_perlmutter_node_is_seen_reversed(tmp_path: Path) -> None:
    node = probed(perlmutter_node(tmp_path / "node"))
    binding = bind(node, BindingRequest(ranks_per_node=4, order="core"))
    assert lists(binding) == "0-15,64-79:16-31,80-95:32-47,96-111:48-63,112-127"
    assert binding.visible == (3, 2, 1, 0)
    assert [rank.nic for rank in binding.ranks] == ["hsn0", "hsn1", "hsn2", "hsn3"]
    assert node.devices[0].name == "NVIDIA A100-SXM4-40GB"
    assert {nic.device for nic in node.nics} == {"cxi0", "cxi1", "cxi2", "cxi3"}


def test_polaris_node_shares_two_interfaces_among_four_ranks(tmp_path: Path) -> None:
    node = probed(polaris_node(tmp_path / "node"))
    binding = bind(node, BindingRequest(ranks_per_node=4, order="core"))
    assert lists(binding) == "0-7,32-39:8-15,40-47:16-23,48-55:24-31,56-63"
    assert [rank.devices for rank in binding.ranks] == [(3,), (2,), (1,), (0,)]
    assert [rank.nic for rank in binding.ranks] == ["hsn0", "hsn0", "hsn1", "hsn1"]


def test_gh200_node_has_72_cores_per_superchip(tmp_path: Path) -> None:
    node = probed(gh200_node(tmp_path / "node"))
    assert node.numas == (0, 1, 2, 3)
    assert lists(bind(node, BindingRequest(ranks_per_node=4))) == "0-71:72-143:144-215:216-287"


def test_laptop_has_neither_devices_nor_container_interfaces(tmp_path: Path) -> None:
    node = probed(laptop(tmp_path / "node"))
    assert node.devices == ()
    assert [nic.name for nic in node.nics] == ["wlp0s20f3"]
    assert [core.cpus for core in node.cores] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert lists(bind(node, BindingRequest(ranks_per_node=2))) == "0-3:4-7"


@each("name", MACHINES)
def test_probed_nodes_bind_within_the_invariants(name: str, tmp_path: Path) -> None:
    node = probed(MACHINES[name](tmp_path / "node"))
    for order in ("device", "core"):
        asked = BindingRequest(ranks_per_node=max(1, len(node.devices)), order="core" if order == "core" else "device")
        assert problems_of(bind(node, asked), node) == ()


def test_this_machine_agrees_with_the_scheduler_of_its_kernel() -> None:
    node = probe_topology()
    assert set(node.allowed) == os.sched_getaffinity(0)
    assert len(node.cpus) == os.cpu_count()
    assert node.memory_bytes > 0
    assert node.probed


def test_this_machine_agrees_with_lscpu() -> None:
    if shutil.which("lscpu") is None:
        pytest.skip("lscpu is not installed")
    text = subprocess.run(
        ["lscpu", "--parse=CPU,CORE,SOCKET,NODE"], capture_output=True, text=True, check=True, timeout=20
    ).stdout
    rows = [line.split(",") for line in text.splitlines() if not line.startswith("#")]
    node = probe_topology()
    assert len(node.cores) == len({(row[1], row[2]) for row in rows})
    assert len(node.sockets) == len({row[2] for row in rows})
    assert {core.numa for core in node.cores} == {int(row[3] or 0) for row in rows}


def test_probe_imports_no_heavy_library() -> None:
    code = "import sys, windlass.sites.topology.described; print([m for m in ('numpy', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_node_without_sys_has_one_core_per_allowed_cpu(tmp_path: Path) -> None:
    tree = MachineTree(tmp_path / "node")
    tree.process([0, 1, 5])
    node = probed(tree)
    assert [core.cpus for core in node.cores] == [(0,), (1,), (5,)]
    assert lists(bind(node, BindingRequest(ranks_per_node=3))) == "0:1:5"


def test_nothing_to_read_at_all_leaves_ranks_unbound(tmp_path: Path) -> None:
    node = probe_topology(sys_root=tmp_path / "a", proc_root=tmp_path / "b", dev_root=tmp_path / "c")
    assert node.cores == ()
    binding = bind(node, BindingRequest(ranks_per_node=4))
    assert all(rank.cpus == () for rank in binding.ranks)
    assert "unknown" in binding.because


def test_cpu_folders_stand_in_for_a_missing_online_file(tmp_path: Path) -> None:
    tree = laptop(tmp_path / "node")
    (tree.sys / "devices/system/cpu/online").unlink()
    assert len(probed(tree).cores) == 4


def test_offline_threads_are_left_out_of_their_core(tmp_path: Path) -> None:
    tree = laptop(tmp_path / "node")
    tree.online([0, 2, 4, 6])
    assert [core.cpus for core in probed(tree).cores] == [(0,), (2,), (4,), (6,)]


def test_missing_last_level_cache_makes_the_domain_the_cache(tmp_path: Path) -> None:
    tree = MachineTree(tmp_path / "node")
    for numa in range(2):
        tree.cpus([(2 * numa,), (2 * numa + 1,)], socket=0, numa=numa)
    tree.online(range(4))
    assert [core.l3 for core in probed(tree).cores] == [0, 0, 1, 1]


def test_missing_numa_folder_is_one_domain(tmp_path: Path) -> None:
    tree = MachineTree(tmp_path / "node")
    tree.cpus([(0,), (1,)], socket=0)
    tree.online(range(2))
    assert probed(tree).numas == (0,)


def test_socket_that_firmware_does_not_name_follows_the_domain(tmp_path: Path) -> None:
    tree = MachineTree(tmp_path / "node")
    tree.cpus([(0,), (1,)], socket=-1, numa=0)
    tree.cpus([(2,), (3,)], socket=-1, numa=1)
    tree.online(range(4))
    assert [core.socket for core in probed(tree).cores] == [0, 0, 1, 1]


@each("rubbish", ["", "nonsense", "3-1", "0-99999999", "\x00\xff", "-"])
def test_odd_file_contents_never_raise(rubbish: str, tmp_path: Path) -> None:
    tree = mi250x_node(tmp_path / "node")
    for path in sorted(tree.root.rglob("*")):
        if path.is_file() and not path.is_symlink():
            path.write_text(rubbish, encoding="latin-1")
    assert probed(tree).probed


def test_device_of_a_node_with_one_domain_is_in_it_even_if_the_firmware_does_not_say(tmp_path: Path) -> None:
    tree = laptop(tmp_path / "node")
    tree.nvidia("0000:01:00.0", minor=0, numa=-1, model="NVIDIA H200")
    node = probed(tree)
    assert node.devices[0].numa == 0
    assert node.nics[0].numa == 0
    assert lists(bind(node, BindingRequest(ranks_per_node=1))) == "0-7"


def test_device_without_a_domain_says_so_where_there_are_several(tmp_path: Path) -> None:
    tree = MachineTree(tmp_path / "node")
    for numa in range(2):
        tree.cpus([(2 * numa,), (2 * numa + 1,)], socket=numa, numa=numa)
    tree.online(range(4))
    for minor in range(2):
        tree.nvidia(f"0000:0{minor + 1}:00.0", minor=minor, numa=-1, model="NVIDIA H200")
    node = probed(tree)
    assert [device.numa for device in node.devices] == [None, None]
    binding = bind(node, BindingRequest(ranks_per_node=2))
    assert lists(binding) == "0-1:2-3"
    assert "are unknown" in binding.because


def test_device_that_the_driver_excludes_is_not_counted(tmp_path: Path) -> None:
    tree = laptop(tmp_path / "node")
    tree.nvidia("0000:01:00.0", minor=0, numa=0, model="NVIDIA H200", excluded=True)
    tree.nvidia("0000:02:00.0", minor=1, numa=0, model="NVIDIA H200")
    assert [device.pci for device in probed(tree).devices] == ["0000:02:00.0"]


def test_card_of_another_driver_is_no_device(tmp_path: Path) -> None:
    tree = laptop(tmp_path / "node")
    tree.pci("0000:01:00.0", vendor=0x10DE, device=0x2204, driver="vfio-pci")
    tree.pci("0000:02:00.0", vendor=0x10DE, device=0x2204, driver="nouveau")
    assert probed(tree).devices == ()


def test_device_whose_file_a_container_left_out_is_not_counted(tmp_path: Path) -> None:
    tree = perlmutter_node(tmp_path / "node")
    (tree.dev / "nvidia0").unlink()
    (tree.dev / "nvidia2").unlink()
    node = probed(tree)
    assert [(device.index, device.numa) for device in node.devices] == [(0, 2), (1, 0)]
    assert lists(bind(node, BindingRequest(ranks_per_node=2, order="core"))) == "0-31,64-95:32-63,96-127"


def test_dies_that_the_control_group_hides_keep_the_packages_of_the_others(tmp_path: Path) -> None:
    tree = mi250x_node(tmp_path / "node")
    for node in (4, 5, 6):
        # The driver refuses to show the properties of a device that the job may not use.
        (tree.sys / f"class/kfd/kfd/topology/nodes/{node}/properties").unlink()
    node = probed(tree)
    assert [(device.index, device.card, device.tile) for device in node.devices] == [
        (0, 0, 1),
        (1, 1, 0),
        (2, 1, 1),
        (3, 2, 0),
        (4, 2, 1),
    ]
    assert [device.numa for device in node.devices] == [1, 0, 0, 2, 2]


def test_partitions_in_one_slot_are_tiles_of_one_card(tmp_path: Path) -> None:
    tree = MachineTree(tmp_path / "node")
    tree.cpus([(0,), (1,)], socket=0, numa=0)
    tree.online(range(2))
    tree.amd(1, "0000:01:00.0", device=0x74A0, gfx=90402, minor=128, numa=0)
    tree.amd(2, "0000:01:00.1", device=0x74A0, gfx=90402, minor=129, numa=0)
    tree.amd(3, "0001:01:00.0", device=0x74A0, gfx=90402, minor=130, numa=0)
    node = probed(tree)
    assert [(device.card, device.tile) for device in node.devices] == [(0, 0), (0, 1), (1, None)]


def test_graphics_inside_a_processor_is_no_device(tmp_path: Path) -> None:
    tree = laptop(tmp_path / "node")
    tree.amd(1, "0000:03:00.0", device=0x15BF, gfx=110003, minor=128, numa=-1)
    assert probed(tree).devices == ()


def test_max_card_whose_tiles_the_driver_hides_has_the_tiles_of_its_model(tmp_path: Path) -> None:
    tree = MachineTree(tmp_path / "node")
    tree.intel_max("0000:18:00.0", card=0, numa=0, tiles=0)
    tree.intel_max("0000:42:00.0", card=1, numa=0, tiles=0, device=0x0BDA)
    assert [(device.card, device.tile) for device in probed(tree).devices] == [(0, 0), (0, 1), (1, None)]


def test_infiniband_ports_are_found_with_and_without_an_interface(tmp_path: Path) -> None:
    tree = laptop(tmp_path / "node")
    tree.net("ib0", "0000:61:00.0", numa=0, rdma="infiniband/mlx5_0")
    tree.write("sys/class/infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)")
    real = tree.pci("0000:62:00.0", vendor=0x15B3, device=0x101B, kind=0x020700, numa=0)
    tree.link("sys/class/infiniband/mlx5_1/device", real)
    found = {nic.name: nic for nic in probed(tree).nics}
    assert found["ib0"].device == "mlx5_0"
    assert found["ib0"].speed_mbits == 200_000
    assert found["mlx5_1"].device == "mlx5_1"


@each(
    ("cgroup", "file"),
    [
        ("0::/pbs_jobs.service/jobid/7.host", "fs/cgroup/pbs_jobs.service/jobid/7.host/cpuset.cpus.effective"),
        ("0::/pbs_jobs.service/jobid/7.host", "fs/cgroup/pbs_jobs.service/cpuset.cpus.effective"),
        ("0::/../../elsewhere", "fs/cgroup/cpuset.cpus.effective"),
        ("9:cpuset:/slurm/uid_1/job_1\n0::/", "fs/cgroup/cpuset/slurm/uid_1/job_1/cpuset.cpus"),
        ("9:cpuset,cpu:/pbspro/1.host\n0::/", "fs/cgroup/cpuset/pbspro/1.host/cpuset.effective_cpus"),
    ],
)
def test_the_job_may_use_more_than_the_shell_that_asks(cgroup: str, file: str, tmp_path: Path) -> None:
    tree = laptop(tmp_path / "node")
    tree.process([0, 1], cgroup=cgroup)
    tree.write(f"sys/{file}", "0-5")
    assert format_cpulist(probed(tree, "mask").allowed) == "0-1"
    assert format_cpulist(probed(tree, "cgroup").allowed) == "0-5"


def test_the_jobs_group_counts_and_not_that_of_its_step(tmp_path: Path) -> None:
    tree = laptop(tmp_path / "node")
    tree.process([0], cgroup="0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0")
    tree.write("sys/fs/cgroup/system.slice/slurmstepd.scope/job_12/cpuset.cpus.effective", "0-5")
    tree.write("sys/fs/cgroup/system.slice/slurmstepd.scope/job_12/step_0/user/cpuset.cpus.effective", "0-1")
    assert format_cpulist(probed(tree, "cgroup").allowed) == "0-5"


def test_mask_outside_of_what_sys_shows_is_believed(tmp_path: Path) -> None:
    """Some containers show CPUs 0-3 and run on 12-15."""
    tree = laptop(tmp_path / "node")
    tree.process([12, 13])
    node = probed(tree)
    assert node.cpus == node.allowed == (12, 13)


def test_mask_of_cpus_that_do_not_exist_is_cut(tmp_path: Path) -> None:
    """A virtual machine that could grow lists CPUs that it does not have."""
    tree = laptop(tmp_path / "node")
    tree.process(range(128))
    assert probed(tree).allowed == tuple(range(8))


def test_memory_is_the_limit_of_the_control_group(tmp_path: Path) -> None:
    tree = laptop(tmp_path / "node")
    tree.process(range(8), cgroup="0::/job", memory_kb=1024)
    tree.write("sys/fs/cgroup/job/memory.max", 4096)
    assert probed(tree).memory_bytes == 4096
    tree.write("sys/fs/cgroup/job/memory.max", "max")
    assert probed(tree).memory_bytes == 1024 * 1024


def test_one_thread_per_core_allowed_still_gives_every_core(tmp_path: Path) -> None:
    tree = mi250x_node(tmp_path / "node")
    tree.process(range(64))
    node = probed(tree)
    assert len(node.usable_cores()) == 64
    assert lists(bind(node, BindingRequest(ranks_per_node=8, threads="all"))).startswith("48-55:56-63:16-23")


_READERS: dict[str, Callable[[Path], MachineTree]] = {"aurora": aurora_node, "gh200": gh200_node}


@each("name", _READERS)
def test_probe_reads_a_few_files_per_core_and_not_every_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time is the number of files: a large node must not cost more than about three reads per core."""
    tree = _READERS[name](tmp_path / "node")
    opened: list[str] = []
    real_open = os.open
    monkeypatch.setattr(
        os, "open", lambda path, *rest, **more: opened.append(str(path)) or real_open(path, *rest, **more)
    )
    node = probed(tree)
    assert len(opened) < 3 * len(node.cores) + 200
