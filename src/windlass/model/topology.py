"""One node as it is: cores, memory domains, devices, network interfaces, and who is near whom.

Also hardware as catalog files describe it.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from windlass.model.condition import ALWAYS, Table, When

Vendor = Literal["nvidia", "amd", "intel"]
DeviceUnit = Literal["tile", "card"]


class Core(msgspec.Struct, frozen=True, kw_only=True):
    """One physical core. `cpus` are its hardware threads, the first one first."""

    cpus: Annotated[tuple[int, ...], msgspec.Meta(min_length=1)]
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
    """Which part of its card this is; None where the card is one device."""
    tiles: int = 1
    """Parts that this one device stands for: 2 for a whole card of two tiles."""
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
    nic_by_core: bool = False
    """Within a NUMA domain, core c is served by interface c modulo their number, not by whichever is free."""

    @property
    def unit(self) -> DeviceUnit:
        """What one entry of `devices` is."""
        return "tile" if any(device.tile is not None for device in self.devices) else "card"

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
        """Cores with an allowed thread and no reserved one, narrowed to their allowed threads, in ascending order.

        A job that asked for one thread per core may use half of each core's threads: the core still counts.
        """
        allowed = set(self.allowed) if self.allowed else set(self.cpus)
        blocked = set(self.reserved)
        cores = []
        for core in sorted(self.cores, key=lambda c: c.id):
            threads = tuple(cpu for cpu in core.cpus if cpu in allowed)
            if threads and not blocked.intersection(core.cpus):
                cores.append(core if threads == core.cpus else msgspec.structs.replace(core, cpus=threads))
        return tuple(cores)

    def core_of(self, cpu: int) -> Core | None:
        for core in self.cores:
            if cpu in core.cpus:
                return core
        return None


class DeviceSpec(Table, frozen=True, kw_only=True):
    """Devices of a node of this hardware, and how a process is told which to use."""

    vendor: Literal["nvidia", "amd", "intel"] | None = None
    name: str = ""
    unit: Literal["tile", "card"] = "card"
    """What one torch device is by default."""
    visibility: str | None = None
    """The one variable that selects devices."""
    mode: Literal["all", "one"] = "all"
    by_launcher: bool = False
    """With `--devices one` the launcher's own flags choose the device (Frontier's closest)."""
    memory_gb: float | None = None
    memory_tbs: float | None = None
    """Memory bandwidth of one torch device, TB/s."""
    torch_type: Literal["cuda", "xpu", "cpu"] | None = None
    backend: str = ""
    """Collective backend for `torch.distributed`, where the site names one (`nccl`, `xccl`)."""
    source: str = ""


class DomainSpec(Table, frozen=True, kw_only=True):
    """A NUMA domain: its CPUs (all hardware threads), socket, devices (in the hardware's default unit), interfaces.

    Where the domain has several last-level caches, its devices are listed in the order of those caches."""

    cpus: str
    socket: int = 0
    devices: tuple[int, ...] = ()
    nics: tuple[str, ...] = ()


class NodeSpec(Table, frozen=True, kw_only=True):
    """One node of this hardware, as its documentation describes it."""

    arch: str = ""
    cpu: str = ""
    cores: int = 0
    threads_per_core: int = 1
    adjacent_threads: bool = False
    """Threads of a core have neighbouring numbers (0 and 1, 2 and 3); else first threads come before second ones."""
    domains: tuple[DomainSpec, ...] = ()
    l3: tuple[str, ...] = ()
    """CPU lists of the last-level caches, where they are smaller than a NUMA domain."""
    reserved: str = ""
    tiles_per_card: int = 1
    memory_gb: float | None = None
    nics: tuple[str, ...] = ()
    """Interfaces whose domain is not documented."""
    nic_gbits: float | None = None
    nic_by_core: bool = False
    """Within a domain, core c is served by interface c modulo their number."""
    source: str = ""


class PeakSpec(Table, frozen=True, kw_only=True):
    """Dense peak of one torch device, for utilisation. Numbers in TFLOP/s and TB/s."""

    precision: str
    tflops: float
    source: str
    note: str = ""


class ReferenceSpec(Table, frozen=True, kw_only=True):
    """A figure that somebody measured on a healthy machine of this kind, to compare one's own with."""

    what: str
    """`all_reduce busbw`, `import torch`, `resnet50 images/s`."""
    value: float
    unit: str
    nodes: int | None = None
    ranks_per_node: int | None = None
    note: str = ""
    source: str


class PluginSpec(Table, frozen=True, kw_only=True):
    """Something that brings the fabric's plugin into the ranks: a module, a runtime's option, an image."""

    by: str
    when: When = ALWAYS
    images: tuple[str, ...] = ()
    """Glob patterns of the images that hold it; without any, whichever image it is."""
    source: str = ""


class FabricSpec(Table, frozen=True, kw_only=True):
    """What NCCL or RCCL need to use the fabric between nodes. Without the plugin they use TCP, and do not say so."""

    plugin: str = ""
    """The plugin's library; empty where none is needed."""
    plugins: tuple[PluginSpec, ...] = ()
    remedy: str = ""
    source: str = ""
