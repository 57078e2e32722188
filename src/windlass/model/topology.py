"""One node as it is: cores, memory domains, devices, network interfaces, and who is near whom."""

from __future__ import annotations

from typing import Literal

import msgspec

Vendor = Literal["nvidia", "amd", "intel"]


class Core(msgspec.Struct, frozen=True, kw_only=True):
    """One physical core. `cpus` are its hardware threads, the first one first."""

    cpus: tuple[int, ...]
    socket: int = 0
    numa: int = 0
    l3: int = 0

    @property
    def id(self) -> int:
        return self.cpus[0]


class Device(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One accelerator as a framework counts it in the given unit. `card` is the physical package it belongs to."""

    index: int
    vendor: Vendor
    name: str = ""
    card: int = 0
    tile: int | None = None
    numa: int | None = None
    l3: int | None = None
    pci: str = ""
    memory_bytes: int = 0


class Nic(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One network interface worth telling ranks about. `name` is the interface, `device` the RDMA or CXI device."""

    name: str
    device: str = ""
    numa: int | None = None
    pci: str = ""
    speed_mbits: int = 0


class Topology(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node. `allowed` are the CPUs this job may use (the cgroup's or the mask's); `reserved` belong to the system."""

    arch: str
    cores: tuple[Core, ...]
    devices: tuple[Device, ...] = ()
    nics: tuple[Nic, ...] = ()
    allowed: tuple[int, ...] = ()
    reserved: tuple[int, ...] = ()
    memory_bytes: int = 0
    probed: bool = False

    @property
    def cpus(self) -> tuple[int, ...]:
        """Every hardware thread of the node."""
        return tuple(sorted(cpu for core in self.cores for cpu in core.cpus))

    @property
    def sockets(self) -> tuple[int, ...]:
        return tuple(sorted({core.socket for core in self.cores}))

    @property
    def numas(self) -> tuple[int, ...]:
        return tuple(sorted({core.numa for core in self.cores}))

    @property
    def whole(self) -> bool:
        """True where the job may use every CPU of the node."""
        return not self.allowed or set(self.allowed) >= set(self.cpus) - set(self.reserved)

    def usable_cores(self) -> tuple[Core, ...]:
        """Cores whose threads are all allowed and none reserved, in ascending order."""
        allowed = set(self.allowed) if self.allowed else set(self.cpus)
        blocked = set(self.reserved)
        return tuple(
            core
            for core in sorted(self.cores, key=lambda c: c.id)
            if set(core.cpus) <= allowed and not set(core.cpus) & blocked
        )

    def core_of(self, cpu: int) -> Core | None:
        for core in self.cores:
            if cpu in core.cpus:
                return core
        return None
