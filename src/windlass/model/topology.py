"""One node: cores, memory domains, devices, network interfaces, and which of them are close to each other.

The module also defines hardware as catalog files describe it.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from windlass.model.condition import ALWAYS, Table, When

Vendor = Literal["nvidia", "amd", "intel"]
DeviceUnit = Literal["tile", "card"]


class Core(msgspec.Struct, frozen=True, kw_only=True):
    """One physical core. `cpus` are its hardware threads, in order."""

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
    """The part of its card that this is. None if the card is one device."""
    tiles: int = 1
    """Number of parts in this device: 2 for a whole card of two tiles."""
    numa: int | None = None
    l3: int | None = None
    pci: str = ""
    memory_bytes: int = 0


class Nic(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One network interface that ranks may use. `name` is the interface, `device` the RDMA or CXI device."""

    name: str
    device: str = ""
    numa: int | None = None
    pci: str = ""
    speed_mbits: int = 0


class Topology(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node. `allowed` are the CPUs this job may use (by cgroup or mask). `reserved` belong to the system."""

    arch: str
    cores: tuple[Core, ...]
    devices: tuple[Device, ...] = ()
    nics: tuple[Nic, ...] = ()
    allowed: tuple[int, ...] = ()
    reserved: tuple[int, ...] = ()
    memory_bytes: int = 0
    probed: bool = False
    nic_by_core: bool = False
    """Within a NUMA domain, core c uses interface c modulo their number, not any free interface."""

    @property
    def unit(self) -> DeviceUnit:
        """The unit of one entry of `devices`."""
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
        """True if the job may use every CPU of the node."""
        return not self.allowed or set(self.allowed) >= set(self.cpus) - set(self.reserved)

    def usable_cores(self) -> tuple[Core, ...]:
        """Return the cores with an allowed thread and no reserved one, in ascending order.

        Each core is limited to its allowed threads. A job that requested one thread per core may use half of each
        core's threads. The core still counts.
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
    """Devices of a node of this hardware, and how a process selects them."""

    vendor: Literal["nvidia", "amd", "intel"] | None = None
    name: str = ""
    unit: Literal["tile", "card"] = "card"
    """The unit of one torch device by default."""
    visibility: str | None = None
    """The one variable that selects devices."""
    mode: Literal["all", "one"] = "all"
    by_launcher: bool = False
    """With `--devices one`, the launcher's own options choose the device (Frontier's closest)."""
    memory_gb: float | None = None
    memory_tbs: float | None = None
    """Memory bandwidth of one torch device, TB/s."""
    torch_type: Literal["cuda", "xpu", "cpu"] | None = None
    backend: str = ""
    """Collective backend for `torch.distributed`, if the site names one (`nccl`, `xccl`)."""
    source: str = ""


class DomainSpec(Table, frozen=True, kw_only=True):
    """A NUMA domain: its CPUs (all hardware threads), socket, devices (in the hardware's default unit), interfaces.

    If the domain has several last-level caches, its devices are listed in the order of those caches.
    """

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
    """True: the threads of a core have adjacent numbers (0 and 1, 2 and 3). False: all first threads come before the
    second threads."""
    domains: tuple[DomainSpec, ...] = ()
    l3: tuple[str, ...] = ()
    """CPU lists of the last-level caches, if they are smaller than a NUMA domain."""
    reserved: str = ""
    tiles_per_card: int = 1
    memory_gb: float | None = None
    nics: tuple[str, ...] = ()
    """Interfaces whose domain is not documented."""
    nic_gbits: float | None = None
    nic_by_core: bool = False
    """Within a domain, core c uses interface c modulo their number."""
    source: str = ""


class PeakSpec(Table, frozen=True, kw_only=True):
    """Dense peak of one torch device, for utilisation. Numbers in TFLOP/s and TB/s."""

    precision: str
    tflops: float
    source: str
    note: str = ""


class ReferenceSpec(Table, frozen=True, kw_only=True):
    """A published measurement of a healthy machine of this kind, for comparison."""

    what: str
    """`all_reduce busbw`, `import torch`, `resnet50 images/s`."""
    value: float
    unit: str
    nodes: int | None = None
    ranks_per_node: int | None = None
    note: str = ""
    source: str


class PluginSpec(Table, frozen=True, kw_only=True):
    """A module, a runtime's option or an image that makes the fabric's plugin available to the ranks."""

    by: str
    when: When = ALWAYS
    images: tuple[str, ...] = ()
    """Glob patterns of the images that contain it. Without any, every image counts."""
    source: str = ""


class FabricSpec(Table, frozen=True, kw_only=True):
    """What NCCL or RCCL need to use the fabric between nodes. Without the plugin they use TCP, without a message."""

    plugin: str = ""
    """The plugin's library. Empty if none is needed."""
    plugins: tuple[PluginSpec, ...] = ()
    remedy: str = ""
    source: str = ""
