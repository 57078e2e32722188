"""Whole nodes for the probe: what /sys of each machine shows, as far as its documentation tells."""

from __future__ import annotations

from pathlib import Path

from data.sysfs.builder import MachineTree


def _threads(first: int, last: int, sibling: int) -> list[tuple[int, ...]]:
    """Cores first..last, each with a second thread `sibling` further on (0: no second thread)."""
    return [(core, core + sibling) if sibling else (core,) for core in range(first, last + 1)]


def _flat(cores: list[tuple[int, ...]]) -> list[int]:
    return sorted(cpu for threads in cores for cpu in threads)


def mi250x_node(root: Path) -> MachineTree:
    """LUMI-G or Frontier: one socket, four domains, eight caches, eight dies whose order is not that of the cores."""
    tree = MachineTree(root)
    for numa in range(4):
        cores = _threads(16 * numa, 16 * numa + 15, 64)
        tree.cpus(cores, socket=0, cache=[_flat(cores[:8]), _flat(cores[8:])], numa=numa)
        tree.amd_cpu(numa)
    tree.online(range(128))
    tree.process(range(128), memory_kb=536870912)
    buses = ("c1", "c6", "c9", "ce", "d1", "d6", "d9", "de")
    for die, (bus, numa) in enumerate(zip(buses, (3, 3, 1, 1, 0, 0, 2, 2), strict=True)):
        tree.amd(4 + die, f"0000:{bus}:00.0", device=0x7408, gfx=90010, minor=128 + die, numa=numa)
    for nic, (bus, numa) in enumerate(zip(("c8", "d0", "d8", "c0"), (1, 0, 2, 3), strict=True)):
        tree.net(f"hsn{nic}", f"0000:{bus}:00.0", numa=numa, speed=200000, rdma=f"cxi/cxi{nic}")
    tree.net("lo", state="unknown")
    tree.net("nmn0", "0000:22:00.0", numa=3, speed=1000)
    return tree


def aurora_node(root: Path) -> MachineTree:
    """Two sockets, domains 2 and 3 are memory without CPUs, six cards of two tiles."""
    tree = MachineTree(root)
    for socket in range(2):
        cores = _threads(52 * socket, 52 * socket + 51, 104)
        tree.cpus(cores, socket=socket, cache=[_flat(cores)], numa=socket)
        tree.numa(2 + socket, [])
    tree.online(range(208))
    tree.process(sorted(set(range(208)) - {0, 52, 104, 156}))
    for card, bus in enumerate(("18", "42", "6c", "18", "42", "6c")):
        tree.intel_max(f"{card // 3:04x}:{bus}:00.0", card=card, numa=card // 3)
    for nic in range(8):
        tree.net(
            f"hsn{nic}", f"{nic // 4:04x}:{0x50 + nic:02x}:00.0", numa=nic // 4, speed=200000, rdma=f"cxi/cxi{nic}"
        )
    return tree


def perlmutter_node(root: Path) -> MachineTree:
    """One socket of 64 cores, devices in the opposite order of the domains."""
    tree = MachineTree(root)
    for numa in range(4):
        cores = _threads(16 * numa, 16 * numa + 15, 64)
        tree.cpus(cores, socket=0, cache=[_flat(cores[:8]), _flat(cores[8:])], numa=numa)
    tree.online(range(128))
    tree.process(range(128))
    for index, bus in enumerate(("03", "41", "82", "c1")):
        tree.nvidia(f"0000:{bus}:00.0", minor=index, numa=3 - index, model="NVIDIA A100-SXM4-40GB")
        tree.net(f"hsn{3 - index}", f"0000:{bus[0]}4:00.0", numa=3 - index, speed=200000, rdma=f"cxi/cxi{3 - index}")
    return tree


def polaris_node(root: Path) -> MachineTree:
    """One socket of 32 cores, reversed devices, two interfaces."""
    tree = MachineTree(root)
    for numa in range(4):
        cores = _threads(8 * numa, 8 * numa + 7, 32)
        tree.cpus(cores, socket=0, cache=[_flat(cores)], numa=numa)
    tree.online(range(64))
    tree.process(range(64))
    for index, bus in enumerate(("07", "46", "85", "c7")):
        tree.nvidia(f"0000:{bus}:00.0", minor=index, numa=3 - index, model="NVIDIA A100-SXM4-40GB")
    tree.net("hsn0", "0000:c5:00.0", numa=0, speed=200000, rdma="cxi/cxi0")
    tree.net("hsn1", "0000:44:00.0", numa=2, speed=200000, rdma="cxi/cxi1")
    tree.net("bond0", speed=25000)
    return tree


def gh200_node(root: Path) -> MachineTree:
    """Four superchips of 72 cores without second threads; the GPUs' memory is domains 4, 12, 20 and 28."""
    tree = MachineTree(root)
    for chip in range(4):
        cores = _threads(72 * chip, 72 * chip + 71, 0)
        tree.cpus(cores, socket=chip, cache=[_flat(cores)], numa=chip)
        tree.nvidia(f"{chip * 16 + 9:04x}:01:00.0", minor=chip, numa=chip, model="NVIDIA GH200 120GB")
        tree.net(f"hsn{chip}", f"{chip * 16:04x}:01:00.0", numa=chip, speed=200000, rdma=f"cxi/cxi{chip}")
    for memory in range(4, 36):
        tree.numa(memory, [])
    tree.online(range(288))
    tree.process(range(288))
    return tree


def laptop(root: Path) -> MachineTree:
    """Four cores with two threads each, numbered in pairs, graphics inside the processor, Wi-Fi, and container nets."""
    tree = MachineTree(root)
    cores = [(2 * core, 2 * core + 1) for core in range(4)]
    tree.cpus(cores, socket=0, cache=[_flat(cores)], numa=0)
    tree.online(range(8))
    tree.process(range(8), memory_kb=16384000)
    tree.pci("0000:00:02.0", vendor=0x8086, device=0x46A6, kind=0x030000, driver="i915")
    for name in ("lo", "docker0", "veth1a2b3c", "br-1234"):
        tree.net(name)
    tree.net("wlp0s20f3", "0000:00:14.3")
    tree.net("enp0s31f6", "0000:00:1f.6", speed=1000, state="down")
    return tree


MACHINES = {
    "mi250x": mi250x_node,
    "aurora": aurora_node,
    "perlmutter": perlmutter_node,
    "polaris": polaris_node,
    "gh200": gh200_node,
    "laptop": laptop,
}
