"""What the vendors' tools say about devices, as one kind of value. Parsers only; `devices` runs the tools."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from windlass.doctor.node.finding import json_of

NVIDIA_FIELDS = (
    "index",
    "name",
    "memory.total",
    "memory.used",
    "driver_version",
    "ecc.errors.uncorrected.volatile.total",
    "clocks_throttle_reasons.active",
    "clocks.sm",
    "clocks.max.sm",
    "remapped_rows.pending",
    "remapped_rows.failure",
)
NVIDIA_FEW = NVIDIA_FIELDS[:5]
"""For drivers that do not know one of the others: nvidia-smi then refuses the whole question."""

# Bits of NVML's clock event reasons that say that something is wrong with the node, not that a job is busy or idle.
THROTTLE = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


class Seen(NamedTuple):
    """One device as a tool describes it; None: the tool does not say."""

    number: int
    name: str = ""
    memory_bytes: int | None = None
    used_bytes: int | None = None
    driver: str = ""
    uncorrected: int | None = None
    """Memory errors that could not be corrected, since the driver was loaded."""
    throttle: int | None = None
    clock_mhz: int | None = None
    max_clock_mhz: int | None = None
    needs_reset: bool = False
    """Rows of memory wait for a reset of the device to be replaced, or could not be."""


def parse_nvidia(text: str, fields: tuple[str, ...] = NVIDIA_FIELDS) -> list[Seen]:
    """`nvidia-smi --query-gpu=… --format=csv,noheader,nounits`."""
    found = []
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) != len(fields) or not words[0].isdigit():
            continue
        said = dict(zip(fields, words))
        memory, used = _number(said["memory.total"]), _number(said["memory.used"])
        found.append(
            Seen(
                number=int(words[0]),
                name=said["name"],
                memory_bytes=None if memory is None else memory << 20,
                used_bytes=None if used is None else used << 20,
                driver=said["driver_version"],
                uncorrected=_number(said.get(NVIDIA_FIELDS[5], "")),
                throttle=_number(said.get(NVIDIA_FIELDS[6], "")),
                clock_mhz=_number(said.get("clocks.sm", "")),
                max_clock_mhz=_number(said.get("clocks.max.sm", "")),
                needs_reset="Yes" in (said.get("remapped_rows.pending"), said.get("remapped_rows.failure")),
            )
        )
    return found


def parse_rocm(text: str) -> list[Seen]:
    """`rocm-smi --showproductname --showmeminfo vram --showdriverversion --json`. One entry per device, which on an
    MI250X is one of the two dies of a card. Names of keys differ between versions in their case."""
    said = json_of(text)
    found = []
    for card, entry in sorted((said or {}).items() if isinstance(said, dict) else ()):
        number = re.match(r"card(\d+)\Z", card)
        if not number or not isinstance(entry, dict):
            continue
        words = {str(key).lower().rstrip(":"): str(value) for key, value in entry.items()}
        found.append(
            Seen(
                number=int(number.group(1)),
                name=words.get("card series") or words.get("card model") or "",
                memory_bytes=_number(words.get("vram total memory (b)", "")),
                used_bytes=_number(words.get("vram total used memory (b)", "")),
                driver=_driver(said),
            )
        )
    return sorted(found)


def _driver(said: dict[str, Any]) -> str:
    system = said.get("system")
    return str(system.get("Driver version", "")) if isinstance(system, dict) else ""


def parse_amd(text: str) -> list[Seen]:
    """`amd-smi metric --mem-usage --ecc --json`: a list, which newer versions put under `gpu_data`."""
    said = json_of(text)
    if isinstance(said, dict):
        said = said.get("gpu_data")
    found = []
    for entry in said if isinstance(said, list) else ():
        if not isinstance(entry, dict) or not isinstance(entry.get("gpu"), int):
            continue
        memory, ecc = _table(entry.get("mem_usage") or entry.get("vram")), _table(entry.get("ecc"))
        found.append(
            Seen(
                number=entry["gpu"],
                memory_bytes=_amount(memory.get("total_vram")),
                used_bytes=_amount(memory.get("used_vram")),
                uncorrected=_number(
                    str(ecc.get("total_uncorrectable_count", ecc.get("total_uncorrectable_errors", "")))
                ),
            )
        )
    return sorted(found)


def _table(value: Any) -> dict[str, Any]:
    """A part of an answer; `N/A` stands for one that a device does not have."""
    return value if isinstance(value, dict) else {}


def parse_ras(text: str) -> int | None:
    """Uncorrected errors in amdgpu's `ras/umc_err_count` (`ue: 0`, `ce: 3`)."""
    match = re.search(r"^ue:\s*(\d+)", text, re.MULTILINE)
    return int(match.group(1)) if match else None


def parse_xpu(text: str) -> list[Seen]:
    """`xpu-smi discovery -j`: one entry per card, whatever the number of its tiles."""
    said = json_of(text)
    entries = said.get("device_list") if isinstance(said, dict) else None
    found: list[Seen] = []
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("device_type", "GPU") == "GPU":
            found.append(
                Seen(
                    number=int(entry.get("device_id", len(found))),
                    name=str(entry.get("device_name", "")),
                    memory_bytes=_number(str(entry.get("memory_physical_size_byte", ""))),
                    driver=str(entry.get("driver_version", "")),
                )
            )
    return sorted(found)


def parse_xpu_health(text: str) -> list[str]:
    """`xpu-smi health -l -j`: components that are not well, as `device 0 memory: Critical`."""
    said = json_of(text)
    entries = said.get("device_list", [said]) if isinstance(said, dict) else said
    bad = []
    for entry in entries if isinstance(entries, list) else ():
        for part, state in sorted(entry.items()) if isinstance(entry, dict) else ():
            status = state.get("status") if isinstance(state, dict) else None
            if status in {"Warning", "Critical"}:
                bad.append("device %s %s: %s" % (entry.get("device_id", "?"), part.replace("_", " "), status))
    return bad


def throttle_names(bits: int) -> list[str]:
    """What in these reasons says that the node is not well."""
    return [name for bit, name in THROTTLE.items() if bits & bit]


def _amount(value: Any) -> int | None:
    """A size as amd-smi writes it: a number with a unit, or `N/A`."""
    if isinstance(value, dict):
        number = _number(str(value.get("value", "")))
        return None if number is None else number << (30 if value.get("unit") in {"GB", "GiB"} else 20)
    number = _number(str(value).split()[0]) if value else None
    return None if number is None else number << 20


def _number(word: str) -> int | None:
    """A number, decimal or `0x…`; None for `[N/A]`, `[Not Supported]`, `Unknown Error`."""
    try:
        return int(word, 16) if word.lower().startswith("0x") else int(float(word))
    except (ValueError, OverflowError):
        return None
