"""AMD devices: the files of the kernel driver, else what `amd-smi` or `rocm-smi` print.

On an MI250X the first of two GCDs alone tells the power of the card; the other one's stays unknown.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

from windlass.observe.node.readings import (
    MIB,
    Device,
    MissingError,
    listed,
    number,
    output_of,
    read_number,
    read_text,
    share,
    whole,
)

_VENDOR = "0x1002"
AMD_SMI = ("amd-smi", "metric", "--json")
ROCM_SMI = ("rocm-smi", "--showuse", "--showmeminfo", "vram", "--showpower", "--showtemp", "--showclocks", "--json")


def present(root: str = "/") -> bool:
    return os.path.exists(os.path.join(root, "dev/kfd"))


def sysfs_devices(root: str = "/") -> list[Device]:
    """What the amdgpu driver shows everybody; a card without a busy figure is no accelerator of ours."""
    found: list[Device] = []
    drm = os.path.join(root, "sys/class/drm")
    cards = sorted(int(name[4:]) for name in listed(drm) if re.fullmatch(r"card\d+", name))
    for card in cards:
        folder = os.path.join(drm, "card%d" % card, "device")
        if read_text(os.path.join(folder, "vendor")) != _VENDOR:
            continue
        busy = read_number(os.path.join(folder, "gpu_busy_percent"))
        if busy is not None:
            found.append(_sysfs_device(len(found), folder, busy))
    return found


def _sysfs_device(index: int, folder: str, busy: float) -> Device:
    sensors = [os.path.join(folder, "hwmon", name) for name in listed(os.path.join(folder, "hwmon"))][:1]
    power = _first(sensors, "power1_average", "power1_input")
    heat = _first(sensors, "temp2_input", "temp1_input")
    return Device(
        place=index,
        busy=share(busy),
        memory_bytes=whole(read_number(os.path.join(folder, "mem_info_vram_used"))),
        memory_total_bytes=whole(read_number(os.path.join(folder, "mem_info_vram_total"))),
        power_w=power / 1e6 if power else None,
        temperature_c=heat / 1e3 if heat is not None else None,
        clock_mhz=parse_dpm(read_text(os.path.join(folder, "pp_dpm_sclk")) or ""),
    )


def _first(folders: list[str], *names: str) -> float | None:
    for folder in folders:
        for name in names:
            value = read_number(os.path.join(folder, name))
            if value is not None:
                return value
    return None


def parse_dpm(text: str) -> float | None:
    """The clock that is marked in `pp_dpm_sclk`: `1: 1700Mhz *`."""
    match = re.search(r"(\d+)Mhz \*", text)
    return float(match.group(1)) if match else None


def parse_amd_smi(text: str) -> list[Device]:
    """`amd-smi metric --json`: a list, or since ROCm 7 an object with `gpu_data`."""
    data = _json(text, "amd-smi")
    entries = data.get("gpu_data", []) if isinstance(data, dict) else data
    found = []
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict) or not isinstance(entry.get("gpu"), int):
            continue
        usage, memory, power, heat = (_part(entry, name) for name in ("usage", "mem_usage", "power", "temperature"))
        clock = _part(_part(entry, "clock"), "gfx_0")
        found.append(
            Device(
                place=entry["gpu"],
                busy=share(number(usage.get("gfx_activity"))),
                memory_bytes=whole(number(memory.get("used_vram")), MIB),
                memory_total_bytes=whole(number(memory.get("total_vram")), MIB),
                power_w=_known(power, "socket_power", "current_socket_power", "average_socket_power"),
                temperature_c=_known(heat, "hotspot", "edge"),
                clock_mhz=number(clock.get("clk")),
            )
        )
    return found


def parse_rocm_smi(text: str) -> list[Device]:
    """`rocm-smi --json`: one object per card, all values texts."""
    data = _json(text, "rocm-smi")
    found = []
    for name, said in data.items() if isinstance(data, dict) else ():
        match = re.fullmatch(r"card(\d+)", name)
        if not match or not isinstance(said, dict):
            continue
        found.append(
            Device(
                place=int(match.group(1)),
                busy=share(_known(said, "GPU use (%)")),
                memory_bytes=whole(_known(said, "VRAM Total Used Memory (B)")),
                memory_total_bytes=whole(_known(said, "VRAM Total Memory (B)")),
                power_w=_known(said, "Average Graphics Package Power (W)", "Current Socket Graphics Package Power (W)"),
                temperature_c=_known(said, "Temperature (Sensor junction) (C)", "Temperature (Sensor edge) (C)"),
                clock_mhz=_known(said, "sclk clock speed:", "sclk clock speed"),
            )
        )
    return sorted(found)


def _json(text: str, tool: str) -> Any:
    """The JSON in a tool's output, which may have warnings in front."""
    begins = [at for at in (text.find("{"), text.find("[")) if at >= 0]
    try:
        return json.loads(text[min(begins) :]) if begins else {}
    except ValueError:
        raise MissingError("%s: its output is no JSON" % tool) from None


def _part(entry: dict[str, Any], name: str) -> dict[str, Any]:
    part = entry.get(name)
    return part if isinstance(part, dict) else {}


def _known(said: dict[str, Any], *names: str) -> float | None:
    return next((value for name in names if (value := number(said.get(name))) is not None), None)


def amd_smi_devices() -> list[Device]:
    return parse_amd_smi(output_of(*AMD_SMI))


def rocm_smi_devices() -> list[Device]:
    return parse_rocm_smi(output_of(*ROCM_SMI))
