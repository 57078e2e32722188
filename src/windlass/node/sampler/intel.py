"""Intel devices: read `xpu-smi dump`, or else the power and the clock from the kernel driver."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable

from windlass.node.sampler.readings import MIB, DeviceReading, json_of, listed, number, read_number, share, whole
from windlass.node.sys.tools import MissingError, output_of, text_of

_VENDOR = "0x8086"
XPU_SMI = ("xpu-smi", "dump", "-d", "-1", "-m", "0,1,2,3,18", "-n", "1")
XPU_SMI_DISCOVERY = ("xpu-smi", "discovery", "-j")
XPU_SMI_HEALTH = ("xpu-smi", "health", "-l", "-j")
_COLUMNS = {
    "GPU Utilization (%)": "busy",
    "GPU Power (W)": "power",
    "GPU Frequency (MHz)": "clock",
    "GPU Core Temperature (Celsius Degree)": "temperature",
    "GPU Core Temperature (C)": "temperature",
    "GPU Memory Used (MiB)": "memory",
}


def _cards(root: str) -> list[str]:
    """Return the directories of discrete cards: those whose driver has an energy counter."""
    drm = os.path.join(root, "sys/class/drm")
    found = []
    for name in sorted((n for n in listed(drm) if re.fullmatch(r"card\d+", n)), key=lambda n: int(n[4:])):
        device = os.path.join(drm, name, "device")
        if text_of(os.path.join(device, "vendor")) == _VENDOR and _energy_file(device):
            found.append(os.path.join(drm, name))
    return found


def _energy_file(device: str) -> str | None:
    folder = os.path.join(device, "hwmon")
    paths = (os.path.join(folder, name, "energy1_input") for name in listed(folder))
    return next((path for path in paths if os.path.exists(path)), None)


def present(root: str = "/") -> bool:
    return bool(_cards(root))


def parse_xpu_smi(text: str) -> list[DeviceReading]:
    """Parse the CSV of `xpu-smi dump`. Columns are found by name. The last row of each device (and tile) counts."""
    head: list[str] = []
    rows: dict[tuple[int, int], list[str]] = {}
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if fields[0] == "Timestamp":
            head = fields
        elif len(head) > 2 and len(fields) == len(head) and fields[1].isdigit():
            tile = fields[head.index("TileId")] if "TileId" in head else "0"
            rows[int(fields[1]), int(tile) if tile.isdigit() else 0] = fields
    found = []
    for index, key in enumerate(sorted(rows)):
        said = {_COLUMNS[name]: number(value) for name, value in zip(head, rows[key]) if name in _COLUMNS}
        found.append(
            DeviceReading(
                place=index,
                busy=share(said.get("busy")),
                memory_bytes=whole(said.get("memory"), MIB),
                power_w=said.get("power"),
                temperature_c=said.get("temperature"),
                clock_mhz=said.get("clock"),
            )
        )
    return found


def xpu_smi_devices() -> list[DeviceReading]:
    return parse_xpu_smi(output_of(*XPU_SMI))


def parse_discovery(text: str) -> list[DeviceReading]:
    """Parse `xpu-smi discovery -j`: one entry per card, independent of the number of its tiles."""
    said = json_of(text, "xpu-smi")
    entries = said.get("device_list") if isinstance(said, dict) else None
    found: list[DeviceReading] = []
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("device_type", "GPU") == "GPU":
            found.append(
                DeviceReading(
                    place=int(number(entry.get("device_id", len(found))) or 0),
                    memory_total_bytes=whole(number(entry.get("memory_physical_size_byte"))),
                    name=str(entry.get("device_name", "")),
                    driver=str(entry.get("driver_version", "")),
                )
            )
    return sorted(found, key=lambda device: device.place)


def parse_health(text: str) -> list[str]:
    """Return unhealthy components in `xpu-smi health -l -j`, such as `device 0 memory: Critical`."""
    said = json_of(text, "xpu-smi")
    entries = said.get("device_list", [said]) if isinstance(said, dict) else said
    bad = []
    for entry in entries if isinstance(entries, list) else ():
        for part, state in sorted(entry.items()) if isinstance(entry, dict) else ():
            status = state.get("status") if isinstance(state, dict) else None
            if status in {"Warning", "Critical"}:
                bad.append("device %s %s: %s" % (entry.get("device_id", "?"), part.replace("_", " "), status))
    return bad


def health(timeout_s: float) -> tuple[list[DeviceReading], list[str]]:
    """Return the cards and their problems, if the site allows users to query health."""
    cards = parse_discovery(output_of(*XPU_SMI_DISCOVERY, timeout_s=timeout_s))
    try:
        return cards, parse_health(output_of(*XPU_SMI_HEALTH, timeout_s=timeout_s))
    except MissingError:
        return cards, []


class Sysfs:
    """Power from the energy counter, between two samples."""

    def __init__(self, root: str = "/", clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._clock = clock
        self._before: dict[str, tuple[float, float]] = {}

    def devices(self) -> list[DeviceReading]:
        found = []
        for index, card in enumerate(_cards(self._root)):
            energy, now = read_number(_energy_file(os.path.join(card, "device")) or ""), self._clock()
            before = self._before.get(card)
            power = None
            if energy is not None:
                if before is not None and now > before[0] and energy >= before[1]:
                    power = (energy - before[1]) / 1e6 / (now - before[0])
                self._before[card] = (now, energy)
            clock = read_number(os.path.join(card, "gt/gt0/rps_act_freq_mhz"))
            found.append(DeviceReading(place=index, power_w=power, clock_mhz=clock))
        return found
