"""AMD devices: read the files of the kernel driver, or else the output of `amd-smi` or `rocm-smi`.

On an MI250X only the first of two GCDs reports the power of the card. The power of the other one stays unknown.
"""

from __future__ import annotations

import os
import re
from typing import Any

from windlass.node.sampler.readings import (
    MIB,
    DeviceReading,
    json_of,
    listed,
    number,
    part_of,
    read_number,
    share,
    whole,
)
from windlass.node.sys.tools import output_of, text_of

_VENDOR = "0x1002"
AMD_SMI = ("amd-smi", "metric", "--json")
ROCM_SMI = ("rocm-smi", "--showuse", "--showmeminfo", "vram", "--showpower", "--showtemp", "--showclocks", "--json")
AMD_SMI_HEALTH = ("amd-smi", "metric", "--mem-usage", "--ecc", "--json")
ROCM_SMI_HEALTH = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--showdriverversion", "--json")


def present(root: str = "/") -> bool:
    return os.path.exists(os.path.join(root, "dev/kfd"))


def sysfs_devices(root: str = "/") -> list[DeviceReading]:
    """Return the devices of the amdgpu driver, which all users can read. A card without a busy figure is skipped."""
    found: list[DeviceReading] = []
    drm = os.path.join(root, "sys/class/drm")
    cards = sorted(int(name[4:]) for name in listed(drm) if re.fullmatch(r"card\d+", name))
    for card in cards:
        folder = os.path.join(drm, "card%d" % card, "device")
        if text_of(os.path.join(folder, "vendor")) != _VENDOR:
            continue
        busy = read_number(os.path.join(folder, "gpu_busy_percent"))
        if busy is not None:
            found.append(_sysfs_device(len(found), folder, busy))
    return found


def _sysfs_device(index: int, folder: str, busy: float) -> DeviceReading:
    sensors = [os.path.join(folder, "hwmon", name) for name in listed(os.path.join(folder, "hwmon"))][:1]
    power = _first(sensors, "power1_average", "power1_input")
    heat = _first(sensors, "temp2_input", "temp1_input")
    return DeviceReading(
        place=index,
        busy=share(busy),
        memory_bytes=whole(read_number(os.path.join(folder, "mem_info_vram_used"))),
        memory_total_bytes=whole(read_number(os.path.join(folder, "mem_info_vram_total"))),
        power_w=power / 1e6 if power else None,
        temperature_c=heat / 1e3 if heat is not None else None,
        clock_mhz=parse_dpm(text_of(os.path.join(folder, "pp_dpm_sclk"))),
    )


def _first(folders: list[str], *names: str) -> float | None:
    for folder in folders:
        for name in names:
            value = read_number(os.path.join(folder, name))
            if value is not None:
                return value
    return None


def parse_dpm(text: str) -> float | None:
    """Return the clock that is marked in `pp_dpm_sclk`: `1: 1700Mhz *`."""
    match = re.search(r"(\d+)Mhz \*", text)
    return float(match.group(1)) if match else None


def parse_amd_smi(text: str) -> list[DeviceReading]:
    """Parse `amd-smi metric --json`: a list, or since ROCm 7 an object with `gpu_data`."""
    data = json_of(text, "amd-smi")
    entries = data.get("gpu_data", []) if isinstance(data, dict) else data
    found = []
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict) or not isinstance(entry.get("gpu"), int):
            continue
        usage, power, heat, ecc = (part_of(entry, name) for name in ("usage", "power", "temperature", "ecc"))
        memory = part_of(entry, "mem_usage") or part_of(entry, "vram")
        clock = part_of(part_of(entry, "clock"), "gfx_0")
        found.append(
            DeviceReading(
                place=entry["gpu"],
                busy=share(number(usage.get("gfx_activity"))),
                memory_bytes=_size(memory.get("used_vram")),
                memory_total_bytes=_size(memory.get("total_vram")),
                power_w=_known(power, "socket_power", "current_socket_power", "average_socket_power"),
                temperature_c=_known(heat, "hotspot", "edge"),
                clock_mhz=number(clock.get("clk")),
                uncorrected=whole(_known(ecc, "total_uncorrectable_count", "total_uncorrectable_errors")),
            )
        )
    return sorted(found, key=lambda device: device.place)


def parse_rocm_smi(text: str) -> list[DeviceReading]:
    """Parse `rocm-smi --json`: one object per device.

    On an MI250X a device is one of the two dies of a card. All values are strings, and the case of keys differs between
    versions.
    """
    data = json_of(text, "rocm-smi")
    driver = part_of(data, "system").get("Driver version", "")
    found = []
    for name, entry in data.items() if isinstance(data, dict) else ():
        match = re.fullmatch(r"card(\d+)", name)
        if not match or not isinstance(entry, dict):
            continue
        said = {str(key).lower().rstrip(":"): value for key, value in entry.items()}
        found.append(
            DeviceReading(
                place=int(match.group(1)),
                busy=share(_known(said, "gpu use (%)")),
                memory_bytes=whole(_known(said, "vram total used memory (b)")),
                memory_total_bytes=whole(_known(said, "vram total memory (b)")),
                power_w=_known(said, "average graphics package power (w)", "current socket graphics package power (w)"),
                temperature_c=_known(said, "temperature (sensor junction) (c)", "temperature (sensor edge) (c)"),
                clock_mhz=_known(said, "sclk clock speed"),
                name=str(said.get("card series") or said.get("card model") or ""),
                driver=str(driver),
            )
        )
    return sorted(found, key=lambda device: device.place)


def parse_ras(text: str) -> int | None:
    """Return the uncorrected errors in amdgpu's `ras/umc_err_count` (`ue: 0`, `ce: 3`)."""
    match = re.search(r"^ue:\s*(\d+)", text, re.MULTILINE)
    return int(match.group(1)) if match else None


def _size(value: Any) -> int | None:
    """Parse a size of amd-smi, in MB unless it has another unit. MB in its output means MiB."""
    gib = isinstance(value, dict) and value.get("unit") in {"GB", "GiB"}
    return whole(number(value), MIB << 10 if gib else MIB)


def _known(said: dict[str, Any], *names: str) -> float | None:
    return next((value for name in names if (value := number(said.get(name))) is not None), None)


def amd_smi_devices() -> list[DeviceReading]:
    return parse_amd_smi(output_of(*AMD_SMI))


def rocm_smi_devices() -> list[DeviceReading]:
    return parse_rocm_smi(output_of(*ROCM_SMI))


def rocm_smi_health(timeout_s: float, root: str = "/") -> list[DeviceReading]:
    """Return the health of the devices. RAS counters come from the driver's files: rocm-smi has no JSON for them."""
    ras = os.path.join(root, "sys/class/drm/card%d/device/ras/umc_err_count")
    return [
        device._replace(uncorrected=parse_ras(text_of(ras % device.place)))
        for device in parse_rocm_smi(output_of(*ROCM_SMI_HEALTH, timeout_s=timeout_s))
    ]


def amd_smi_health(timeout_s: float) -> list[DeviceReading]:
    return parse_amd_smi(output_of(*AMD_SMI_HEALTH, timeout_s=timeout_s))
