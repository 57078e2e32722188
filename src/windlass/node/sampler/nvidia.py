"""NVIDIA devices: the management library (NVML) through ctypes, or the output of `nvidia-smi`."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from windlass.node.sampler.readings import MIB, DeviceReading, listed, number, share, whole
from windlass.node.sys.tools import MissingError, output_of

THROTTLE = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""NVML's clock event reasons that indicate an unhealthy node, not a busy (power cap, 0x4) or idle one."""
_ECC, _REASONS = "ecc.errors.uncorrected.volatile.total", "clocks_throttle_reasons.active"
_ROWS = ("remapped_rows.pending", "remapped_rows.failure")
SAMPLED = (
    *("index", "utilization.gpu", "memory.used", "memory.total", "power.draw", "temperature.gpu", "clocks.sm"),
    _REASONS,
)
"""Fields that the sampler reads repeatedly."""
OLD_DRIVERS = ("index", "name", "memory.total", "memory.used", "driver_version")
"""For drivers that lack one of the other fields. nvidia-smi then rejects the whole query."""
HEALTH = (*OLD_DRIVERS, _ECC, _REASONS, "clocks.sm", "clocks.max.sm", *_ROWS)
"""Fields that a check reads once."""


def present(root: str = "/") -> bool:
    return bool(listed(os.path.join(root, "proc/driver/nvidia/gpus"))) or os.path.exists(
        os.path.join(root, "dev/nvidiactl")
    )


class _Rates(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Nvml:
    """The library, loaded once. Raises `MissingError` if it is missing or finds no device."""

    def __init__(self, name: str = "libnvidia-ml.so.1") -> None:
        try:
            self._library = ctypes.CDLL(name)
        except OSError as error:
            raise MissingError("NVML: %s" % error) from None
        code = self._library.nvmlInit_v2()
        if code:
            raise MissingError("NVML: nvmlInit gives %d" % code)
        count = ctypes.c_uint()
        if self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)) or not count.value:
            raise MissingError("NVML sees no device: are they hidden from the agent by the scheduler?")
        self._handles = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if self._library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
                self._handles.append((index, handle))

    def devices(self) -> list[DeviceReading]:
        return [self._device(index, handle) for index, handle in self._handles]

    def _device(self, index: int, handle: ctypes.c_void_p) -> DeviceReading:
        rates = self._ask("nvmlDeviceGetUtilizationRates", handle, _Rates())
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle, _Memory())
        power = self._ask("nvmlDeviceGetPowerUsage", handle, ctypes.c_uint())
        temperature = self._ask("nvmlDeviceGetTemperature", handle, ctypes.c_uint(), 0)
        clock = self._ask("nvmlDeviceGetClockInfo", handle, ctypes.c_uint(), 1)
        reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle, ctypes.c_ulonglong())
        return DeviceReading(
            place=index,
            busy=rates.gpu / 100.0 if rates else None,
            memory_bytes=memory.used if memory else None,
            memory_total_bytes=memory.total if memory else None,
            power_w=power.value / 1000.0 if power else None,
            temperature_c=float(temperature.value) if temperature else None,
            clock_mhz=float(clock.value) if clock else None,
            throttled=bool(throttle_names(reasons.value)) if reasons else None,
            throttle_reasons=throttle_names(reasons.value) if reasons else (),
        )

    def _ask(self, name: str, handle: ctypes.c_void_p, answer: Any, *which: int) -> Any:
        """Return the answer, or None if this device or driver does not support the query."""
        function = getattr(self._library, name, None)
        if function is None or function(handle, *which, ctypes.byref(answer)):
            return None
        return answer


def smi_argv(fields: tuple[str, ...]) -> tuple[str, ...]:
    return ("nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits")


def parse_nvidia_smi(text: str, fields: tuple[str, ...] = SAMPLED) -> list[DeviceReading]:
    """Parse lines of `nvidia-smi --query-gpu` for these fields."""
    found = []
    for line in text.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) != len(fields) or not values[0].isdigit():
            continue
        said = dict(zip(fields, values))
        reasons = _bits(said.get(_REASONS, ""))
        found.append(
            DeviceReading(
                place=int(values[0]),
                busy=share(number(said.get("utilization.gpu"))),
                memory_bytes=whole(number(said.get("memory.used")), MIB),
                memory_total_bytes=whole(number(said.get("memory.total")), MIB),
                power_w=number(said.get("power.draw")),
                temperature_c=number(said.get("temperature.gpu")),
                clock_mhz=number(said.get("clocks.sm")),
                throttled=None if reasons is None else bool(throttle_names(reasons)),
                name=said.get("name", ""),
                driver=said.get("driver_version", ""),
                uncorrected=whole(number(said.get(_ECC))),
                throttle_reasons=throttle_names(reasons or 0),
                needs_reset=any(said.get(name) == "Yes" for name in _ROWS),
            )
        )
    return found


def throttle_names(bits: int) -> tuple[str, ...]:
    """Return the names of the reasons that indicate an unhealthy node."""
    return tuple(name for bit, name in THROTTLE.items() if bits & bit)


def _bits(text: str) -> int | None:
    try:
        return int(text, 16)
    except ValueError:
        return None


def smi_devices() -> list[DeviceReading]:
    return parse_nvidia_smi(output_of(*smi_argv(SAMPLED)))


def health(timeout_s: float) -> list[DeviceReading]:
    """Return the devices with their health figures. Raises `MissingError` if nvidia-smi does not answer."""
    try:
        return parse_nvidia_smi(output_of(*smi_argv(HEALTH), timeout_s=timeout_s), HEALTH)
    except MissingError:
        return parse_nvidia_smi(output_of(*smi_argv(OLD_DRIVERS), timeout_s=timeout_s), OLD_DRIVERS)
