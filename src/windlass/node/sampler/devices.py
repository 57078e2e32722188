"""The accelerators of a node, by whatever source answers: the vendor's library or tool, or the driver's files."""

from __future__ import annotations

from collections.abc import Callable

from windlass.node.sampler import amd, intel, nvidia
from windlass.node.sampler.readings import DeviceReading
from windlass.node.sys.tools import MissingError

Source = Callable[[], "list[DeviceReading]"]


def sources(root: str = "/") -> list[tuple[str, list[Callable[[], Source]]]]:
    """For each vendor whose devices are here: its sources, the best first. Calling one sets it up, or says why not."""
    found: list[tuple[str, list[Callable[[], Source]]]] = []
    if nvidia.present(root):
        found.append(("NVIDIA", [lambda: nvidia.Nvml().devices, lambda: nvidia.smi_devices]))
    if amd.present(root):
        by_files: Callable[[], Source] = lambda: lambda: amd.sysfs_devices(root)  # noqa: E731
        found.append(("AMD", [by_files, lambda: amd.amd_smi_devices, lambda: amd.rocm_smi_devices]))
    if intel.present(root):
        found.append(("Intel", [lambda: intel.xpu_smi_devices, lambda: intel.Sysfs(root).devices]))
    return found


class DeviceReader:
    """Reads all devices of the node; a source that fails is left for the next one, with a note."""

    def __init__(self, root: str = "/") -> None:
        self.notes: list[str] = []
        self._vendors = [(vendor, ways) for vendor, ways in sources(root)]
        self._reading: dict[str, Source] = {}

    def read(self) -> list[DeviceReading]:
        found: list[DeviceReading] = []
        for vendor, ways in self._vendors:
            found += self._read_vendor(vendor, ways)
        return [device._replace(place=index) for index, device in enumerate(found)] if len(self._vendors) > 1 else found

    def _read_vendor(self, vendor: str, ways: list[Callable[[], Source]]) -> list[DeviceReading]:
        while ways or vendor in self._reading:
            try:
                if vendor not in self._reading:
                    self._reading[vendor] = ways.pop(0)()
                devices = self._reading[vendor]()
                if devices:
                    return devices
                raise MissingError("no device is shown")
            except Exception as error:  # a broken tool costs its figures, never the agent
                self._reading.pop(vendor, None)
                said = str(error) if isinstance(error, MissingError) else "%s: %s" % (type(error).__name__, error)
                if not ways:
                    self.notes.append("%s devices are not sampled: %s" % (vendor, said[:300]))
        return []
