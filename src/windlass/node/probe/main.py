"""Describe the node of this process: its hardware, the CPUs of the job, and the ports in use.

Never fails. Hidden, missing or invalid values are omitted or get a safe default. A binding with less information is
coarser. The module runs no command and loads no library, so it is quick enough for every start.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from windlass.node.probe.cpus import (
    AllowedBy,
    SysReader,
    human_order,
    pci_order,
    probe_allowed,
    probe_cores,
    properties,
)
from windlass.node.sys.messages import node_writer

Vendor = Literal["nvidia", "amd", "intel"]
Device = dict[str, Any]
"""The fields of `model.topology.Device`."""
_PCI = "bus/pci/devices"
_KFD = "class/kfd/kfd/topology/nodes"
_NVIDIA_VENDOR, _AMD_VENDOR, _INTEL_VENDOR = 0x10DE, 0x1002, 0x8086
_INTEL_MAX = frozenset({0x0B69, 0x0B6E, *range(0x0BD0, 0x0BDC), 0x0BE0, 0x0BE1, 0x0BE5})
_INTEL_MAX_ONE_TILE = frozenset({0x0BD9, 0x0BDA, 0x0BDB})
_AMD_TWO_DIES = frozenset({0x7408, 0x740C})
"""MI250X and MI250: two dies of a package are separate devices, next to each other in the driver's order."""
_AMD_INTEGRATED = frozenset({90002, 90012, 100303, 100305, 100306, 110003})
"""Graphics inside a desktop or laptop processor, which are not suitable for training."""


class SysReaders(NamedTuple):
    sys: SysReader
    proc: SysReader
    dev: SysReader


def probe_devices(trees: SysReaders, vendor: Vendor | None = None) -> tuple[Device, ...]:
    """Return the devices of one vendor: the requested one, or else the one with the most devices."""
    probes: dict[Vendor, Callable[[SysReaders], tuple[Device, ...]]] = {
        "nvidia": _nvidia_devices,
        "amd": _amd_devices,
        "intel": _intel_devices,
    }
    if vendor is not None:
        return probes[vendor](trees)
    return max((probe(trees) for probe in probes.values()), key=len)


def _display_devices(sys: SysReader, vendor: int) -> list[str]:
    """Return the PCI addresses of a vendor's display and 3D controllers, in order."""
    found = []
    for address in sys.names(_PCI):
        if sys.text(f"{_PCI}/{address}/class").startswith("0x03") and sys.number(f"{_PCI}/{address}/vendor") == vendor:
            found.append(address)
    return sorted(found, key=pci_order)


def _numa(sys: SysReader, address: str) -> int | None:
    """Return the device's NUMA domain. The kernel reports -1 if it is unknown."""
    numa = sys.number(f"{_PCI}/{address}/numa_node")
    return None if numa is None or numa < 0 else numa


def _usable(dev: SysReader, names: Sequence[str]) -> tuple[bool, ...]:
    """Return which device files this process may open.

    access(2) also asks the device control group and wakes no device. If none of the files exists, nothing is known (a
    login shell on a node whose /dev is filled on first use), and all devices count.
    """
    exist = [bool(name) and dev.exists(name) for name in names]
    if not any(exist):
        return (True,) * len(names)
    return tuple(there and os.access(dev.path(name), os.R_OK | os.W_OK) for name, there in zip(names, exist))


def _nvidia_devices(trees: SysReaders) -> tuple[Device, ...]:
    """Return the devices of NVIDIA's own driver. CUDA cannot use a card of a virtual machine or of nouveau."""
    sys, proc = trees.sys, trees.proc
    held = [
        address
        for address in _display_devices(sys, _NVIDIA_VENDOR)
        if sys.target(f"{_PCI}/{address}/driver") == "nvidia" or proc.exists(f"driver/nvidia/gpus/{address}")
    ]
    facts = [properties(proc.text(f"driver/nvidia/gpus/{address}/information"), ":") for address in held]
    files = [f"nvidia{fact.get('Device Minor', position)}" for position, fact in enumerate(facts)]
    usable = _usable(trees.dev, files)
    kept = [
        (address, fact) for address, fact, ok in zip(held, facts, usable) if ok and fact.get("GPU Excluded") != "Yes"
    ]
    return tuple(
        {
            "index": index,
            "vendor": "nvidia",
            "name": fact.get("Model", ""),
            "card": index,
            "numa": _numa(sys, address),
            "pci": address,
        }
        for index, (address, fact) in enumerate(kept)
    )


def _amd_devices(trees: SysReaders) -> tuple[Device, ...]:
    """Return the nodes of the KFD that are devices.

    Devices that the job's control group forbids cannot even be read. They count for the numbering of packages, but get
    no number.
    """
    sys = trees.sys
    found: list[tuple[int, dict[str, str]]] = []
    position = 0
    for node in sys.names(_KFD):
        facts = properties(sys.text(f"{_KFD}/{node}/properties"))
        hidden = not facts
        if hidden or (_whole(facts, "simd_count") and _whole(facts, "vendor_id") == _AMD_VENDOR):
            if not hidden and _whole(facts, "gfx_target_version") not in _AMD_INTEGRATED:
                found.append((position, facts))
            position += 1
    usable = _usable(trees.dev, [f"dri/renderD{facts.get('drm_render_minor', '')}" for _, facts in found])
    kept = [item for item, ok in zip(found, usable) if ok]
    packages = [_package(position, facts) for position, facts in kept]
    numbers = {package: number for number, package in enumerate(dict.fromkeys(packages))}
    return tuple(
        _amd_device(sys, index, facts, numbers[package], _die(position, facts, packages, index))
        for index, ((position, facts), package) in enumerate(zip(kept, packages))
    )


def _package(position: int, facts: dict[str, str]) -> tuple[int, ...]:
    """Return the key that dies of one package share: pair index, or else PCI slot (partitions of an MI300)."""
    if _whole(facts, "device_id") in _AMD_TWO_DIES:
        return (position // 2,)
    location = _whole(facts, "location_id")
    return (_whole(facts, "domain"), location >> 3) if location else (-1, position)


def _die(position: int, facts: dict[str, str], packages: list[tuple[int, ...]], index: int) -> int | None:
    """Return the number of a die or partition in its package. None if the package is one device."""
    if _whole(facts, "device_id") in _AMD_TWO_DIES:
        return position % 2
    own = packages[index]
    return packages[:index].count(own) if packages.count(own) > 1 else None


def _amd_device(sys: SysReader, index: int, facts: dict[str, str], card: int, tile: int | None) -> Device:
    location = _whole(facts, "location_id")
    address = f"{_whole(facts, 'domain'):04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"
    return {
        "index": index,
        "vendor": "amd",
        "name": sys.text(f"{_PCI}/{address}/product_name") or _gfx_name(_whole(facts, "gfx_target_version")),
        "card": card,
        "tile": tile,
        "numa": _numa(sys, address),
        "pci": address if location else "",
        "memory_bytes": sys.number(f"{_PCI}/{address}/mem_info_vram_total") or 0,
    }


def _gfx_name(version: int) -> str:
    """Convert the driver's packed decimal to the compiler's name: 90010 is gfx90a."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else ""


def _whole(facts: dict[str, str], name: str) -> int:
    value = facts.get(name, "")
    return int(value) if value.isdecimal() else 0


def _intel_devices(trees: SysReaders) -> tuple[Device, ...]:
    """Return the tiles of Max series cards in PCI order (as with ZE_ENABLE_PCI_ID_DEVICE_ORDER=1)."""
    sys = trees.sys
    cards = [
        (address, kind)
        for address in _display_devices(sys, _INTEL_VENDOR)
        if (kind := sys.number(f"{_PCI}/{address}/device")) in _INTEL_MAX
    ]
    usable = _usable(trees.dev, [_render_file(sys, address) for address, _ in cards])
    devices: list[Device] = []
    kept = [card for card, ok in zip(cards, usable) if ok]
    for card, (address, kind) in enumerate(kept):
        tiles = _intel_tiles(sys, address) or (1 if kind in _INTEL_MAX_ONE_TILE else 2)
        name = "Intel Data Center GPU Max " + ("1100" if kind in _INTEL_MAX_ONE_TILE else "1550")
        for tile in range(tiles):
            devices.append(
                {
                    "index": len(devices),
                    "vendor": "intel",
                    "name": name,
                    "card": card,
                    "tile": tile if tiles > 1 else None,
                    "numa": _numa(sys, address),
                    "pci": address,
                }
            )
    return tuple(devices)


def _render_file(sys: SysReader, address: str) -> str:
    names = [name for name in sys.names(f"{_PCI}/{address}/drm") if name.startswith("renderD")]
    return f"dri/{names[0]}" if names else ""


def _intel_tiles(sys: SysReader, address: str) -> int:
    """Return the number of tiles in /sys: `gt/gt0`, `gt/gt1` under the i915 card, `tile0`, `tile1` under xe."""
    for name in sys.names(f"{_PCI}/{address}/drm"):
        if name.startswith("card"):
            found = [gt for gt in sys.names(f"{_PCI}/{address}/drm/{name}/gt") if gt.removeprefix("gt").isdecimal()]
            if found:
                return len(found)
    return sum(1 for name in sys.names(f"{_PCI}/{address}") if name.removeprefix("tile").isdecimal() and name[0] == "t")


_NET = "class/net"
_RDMA = ("class/cxi", "class/infiniband")
Nic = dict[str, Any]
"""The fields of `model.topology.Nic`."""
_RATE = re.compile(r"^(\d+(?:\.\d+)?)\s*Gb/sec")


def probe_nics(sys: SysReader) -> tuple[Nic, ...]:
    """Return physical interfaces with their RDMA device, and RDMA devices that have no interface.

    Bridges, tunnels and virtual pairs have no device and are omitted. Virtual functions that belong to guests and
    Ethernet ports without a link are also omitted.
    """
    direct = _rdma_devices(sys)
    nics: list[Nic] = []
    for name in sys.names(_NET):
        folder = f"{_NET}/{name}"
        if name == "lo" or not sys.exists(f"{folder}/device") or sys.exists(f"{folder}/device/physfn"):
            continue
        address = sys.pci_address(f"{folder}/device")
        device = direct.pop(address, "") if address else ""
        if not device and sys.text(f"{folder}/operstate") in {"down", "lowerlayerdown", "notpresent"}:
            continue
        nics.append(_nic(sys, name, device, address))
    nics.extend(_nic(sys, device, device, address) for address, device in direct.items())
    return tuple(sorted(nics, key=lambda nic: human_order(nic["name"])))


def _rdma_devices(sys: SysReader) -> dict[str, str]:
    """Return RDMA and CXI devices by PCI address."""
    found: dict[str, str] = {}
    for folder in _RDMA:
        for name in sys.names(folder):
            address = sys.pci_address(f"{folder}/{name}/device")
            if address and not sys.exists(f"{folder}/{name}/device/physfn"):
                found.setdefault(address, name)
    return found


def _nic(sys: SysReader, name: str, device: str, address: str) -> Nic:
    numa = sys.number(f"bus/pci/devices/{address}/numa_node") if address else None
    if numa is None and device:
        numa = next(
            (n for folder in _RDMA if (n := sys.number(f"{folder}/{device}/device/numa_node")) is not None), None
        )
    return {
        "name": name,
        "device": device,
        "numa": None if numa is None or numa < 0 else numa,
        "pci": address,
        "speed_mbits": _speed(sys, name, device),
    }


def _speed(sys: SysReader, name: str, device: str) -> int:
    """Return megabits per second, or 0 if neither source reports it."""
    rate = _RATE.match(sys.text(f"class/infiniband/{device}/ports/1/rate")) if device else None
    if rate:
        return int(float(rate.group(1)) * 1000)
    return max(0, sys.number(f"{_NET}/{name}/speed") or 0)


ROOTS = ("/sys", "/proc", "/dev")


def main(settings: dict[str, Any]) -> int:
    """Probe a node of the allocation from the outside: the CPUs are those of the job."""
    node_writer(settings).send(hardware=read_node(allowed_by="cgroup"), taken_ports=taken_ports(), done=True)
    return 0


def read_node(
    roots: tuple[str, str, str] = ROOTS, *, allowed_by: AllowedBy, vendor: Vendor | None = None
) -> dict[str, Any]:
    """Return the fields of `model.topology.Topology`, from /sys, /proc and /dev. See `sites.topology.described`."""
    sys, proc, dev = map(SysReader, roots)
    return {
        "arch": os.uname().machine,
        "cores": probe_cores(sys, proc),
        "devices": probe_devices(SysReaders(sys, proc, dev), vendor),
        "nics": probe_nics(sys),
        "memory_bytes": _memory_bytes(sys, proc),
        "allowed": probe_allowed(sys, proc, allowed_by),
    }


def taken_ports() -> tuple[int, ...]:
    """Return the ports on which a process of this machine listens."""
    listening = "0A"
    ports: set[int] = set()
    proc = SysReader(ROOTS[1])
    for name in ("tcp", "tcp6"):
        for line in proc.text("net/" + name).splitlines()[1:]:
            fields = line.split()
            if len(fields) > 3 and fields[3] == listening:
                ports.add(int(fields[1].rsplit(":", 1)[1], 16))
    return tuple(sorted(ports))


def _memory_bytes(sys: SysReader, proc: SysReader) -> int:
    """Return the node's memory, or the control group's limit if that is lower."""
    words = properties(proc.text("meminfo"), ":").get("MemTotal", "").split()
    total = int(words[0]) * 1024 if words and words[0].isdecimal() else 0
    limits = [limit for limit in _memory_limits(sys, proc) if limit > 0]
    return min([total, *limits]) if total else min(limits, default=0)


def _memory_limits(sys: SysReader, proc: SysReader) -> list[int]:
    found: list[int] = []
    for line in proc.text("self/cgroup").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers == "":
            found.append(sys.number(f"fs/cgroup{path.rstrip('/')}/memory.max") or 0)
        elif "memory" in controllers.split(","):
            found.append(sys.number(f"fs/cgroup/memory{path.rstrip('/')}/memory.limit_in_bytes") or 0)
    return found
