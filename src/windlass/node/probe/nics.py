"""Network interfaces that ranks may talk through: Slingshot, InfiniBand, RoCE and plain Ethernet, from /sys."""

from __future__ import annotations

import re
from typing import Any

from windlass.node.probe.sysfs import SysReader, human_order

_NET = "class/net"
_RDMA = ("class/cxi", "class/infiniband")
Nic = dict[str, Any]
"""The fields of `model.topology.Nic`."""
_RATE = re.compile(r"^(\d+(?:\.\d+)?)\s*Gb/sec")


def probe_nics(sys: SysReader) -> tuple[Nic, ...]:
    """Physical interfaces with their RDMA device, and RDMA devices that have no interface.

    Bridges, tunnels and virtual pairs have no device behind them and are left out, and so are virtual functions that
    belong to guests and Ethernet ports without a link.
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
    """RDMA and CXI devices by PCI address."""
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
    """Megabits per second; 0 where neither side says."""
    rate = _RATE.match(sys.text(f"class/infiniband/{device}/ports/1/rate")) if device else None
    if rate:
        return int(float(rate.group(1)) * 1000)
    return max(0, sys.number(f"{_NET}/{name}/speed") or 0)
