"""Builds a small /sys, /proc and /dev of a machine that is not here, file by file as its kernel would show them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from windlass.base.notation.counts import format_cpulist


class MachineTree:
    """Three folders under `root`. Methods add hardware; nothing is there that was not added."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sys, self.proc, self.dev = root / "sys", root / "proc", root / "dev"
        for folder in (self.sys, self.proc, self.dev):
            folder.mkdir(parents=True)

    def write(self, path: str, text: object) -> None:
        """Writes a file, path relative to the root (`sys/…`, `proc/…`)."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def link(self, path: str, target: Path) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)

    def cpus(
        self,
        cores: Sequence[Sequence[int]],
        *,
        socket: int,
        cache: Sequence[Sequence[int]] = (),
        numa: int | None = None,
    ) -> None:
        """Cores (each the numbers of its threads) of a socket, and optionally their shared caches."""
        shared = {cpu: group for group in cache for cpu in group}
        for threads in cores:
            for cpu in threads:
                folder = f"sys/devices/system/cpu/cpu{cpu}"
                self.write(f"{folder}/topology/physical_package_id", socket)
                self.write(f"{folder}/topology/thread_siblings_list", format_cpulist(threads))
                self.write(f"{folder}/topology/core_cpus_list", format_cpulist(threads))
                for index, level in enumerate((1, 1, 2)):
                    self.write(f"{folder}/cache/index{index}/level", level)
                    self.write(f"{folder}/cache/index{index}/shared_cpu_list", format_cpulist(threads))
                if cpu in shared:
                    self.write(f"{folder}/cache/index3/level", 3)
                    self.write(f"{folder}/cache/index3/shared_cpu_list", format_cpulist(shared[cpu]))
        if numa is not None:
            self.numa(numa, [cpu for threads in cores for cpu in threads])

    def numa(self, number: int, cpus: Iterable[int]) -> None:
        self.write(f"sys/devices/system/node/node{number}/cpulist", format_cpulist(cpus))

    def online(self, cpus: Iterable[int]) -> None:
        self.write("sys/devices/system/cpu/online", format_cpulist(cpus))

    def process(self, allowed: Iterable[int], *, cgroup: str = "0::/", memory_kb: int = 1024) -> None:
        """What /proc says of the process that asks, and of the node's memory."""
        self.write(
            "proc/self/status", f"Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t{format_cpulist(allowed)}"
        )
        self.write("proc/self/cgroup", cgroup)
        self.write("proc/meminfo", f"MemTotal:       {memory_kb} kB\nMemFree:        1 kB")

    def pci(
        self, address: str, *, vendor: int, device: int, kind: int = 0x030200, numa: int = -1, driver: str = ""
    ) -> Path:
        """A PCI device; returns its real folder."""
        real = self.sys / "devices" / f"pci{address[:7]}" / address
        place = real.relative_to(self.root)
        self.write(f"{place}/class", f"0x{kind:06x}")
        self.write(f"{place}/vendor", f"0x{vendor:04x}")
        self.write(f"{place}/device", f"0x{device:04x}")
        self.write(f"{place}/numa_node", numa)
        if driver:
            folder = self.sys / "bus/pci/drivers" / driver
            folder.mkdir(parents=True, exist_ok=True)
            self.link(f"{place}/driver", folder)
        self.link(f"sys/bus/pci/devices/{address}", real)
        return real

    def nvidia(self, address: str, *, minor: int, numa: int, model: str, excluded: bool = False) -> None:
        self.pci(address, vendor=0x10DE, device=0x20B0, numa=numa, driver="nvidia")
        self.write(
            f"proc/driver/nvidia/gpus/{address}/information",
            (
                f"Model: \t\t {model}\nIRQ:   \t\t 41\nBus Type: \t PCIe\nBus Location: \t {address}\n"
                f"Device Minor: \t {minor}\nGPU Excluded:\t {'Yes' if excluded else 'No'}"
            ),
        )
        self.write(f"dev/nvidia{minor}", "")

    def amd(self, node: int, address: str, *, device: int, gfx: int, minor: int, numa: int) -> None:
        """A device of the KFD at a PCI address."""
        real = self.pci(address, vendor=0x1002, device=device, kind=0x038000, numa=numa, driver="amdgpu")
        self.write(f"{real.relative_to(self.root)}/mem_info_vram_total", 68702699520)
        domain, bus, rest = address.split(":")
        slot, function = rest.split(".")
        location = int(bus, 16) << 8 | int(slot, 16) << 3 | int(function)
        facts = {
            "cpu_cores_count": 0,
            "simd_count": 440,
            "gfx_target_version": gfx,
            "vendor_id": 4098,
            "device_id": device,
            "location_id": location,
            "domain": int(domain, 16),
            "drm_render_minor": minor,
        }
        text = "\n".join(f"{name} {value}" for name, value in facts.items())
        self.write(f"sys/class/kfd/kfd/topology/nodes/{node}/properties", text)
        self.write(f"dev/dri/renderD{minor}", "")

    def amd_cpu(self, node: int) -> None:
        """The KFD's entry of a NUMA domain."""
        self.write(
            f"sys/class/kfd/kfd/topology/nodes/{node}/properties", "cpu_cores_count 32\nsimd_count 0\nvendor_id 0"
        )

    def intel_max(self, address: str, *, card: int, numa: int, tiles: int = 2, device: int = 0x0BD5) -> None:
        real = self.pci(address, vendor=0x8086, device=device, kind=0x038000, numa=numa, driver="i915")
        place = real.relative_to(self.root)
        for tile in range(tiles):
            self.write(f"{place}/drm/card{card}/gt/gt{tile}/id", tile)
        self.write(f"{place}/drm/renderD{128 + card}/dev", f"226:{128 + card}")
        self.write(f"dev/dri/renderD{128 + card}", "")

    def net(
        self,
        name: str,
        address: str = "",
        *,
        numa: int = -1,
        speed: int | None = None,
        state: str = "up",
        rdma: str = "",
    ) -> None:
        """An interface; physical with an address, and with an RDMA device as in `cxi/cxi0` or `infiniband/mlx5_0`."""
        folder = f"sys/class/net/{name}"
        self.write(f"{folder}/operstate", state)
        if speed is not None:
            self.write(f"{folder}/speed", speed)
        if not address:
            return
        real = self.pci(address, vendor=0x17DB, device=0x0501, kind=0x020000, numa=numa)
        self.link(f"{folder}/device", real)
        if rdma:
            self.link(f"sys/class/{rdma}/device", real)
