"""The part of a catalog file that describes a node: devices, NUMA domains, interfaces, fabric, and its best figures."""

from __future__ import annotations

from typing import Literal

from windlass.model.condition import ALWAYS, Table, When


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
