"""NVIDIA devices: the management library (NVML) by ctypes, or what `nvidia-smi` prints."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from windlass.observe.node.readings import MIB, Device, MissingError, listed, number, output_of, share, whole

_HARDWARE_SLOWDOWN = 0x8 | 0x20 | 0x40 | 0x80
"""Slowdown, thermal (software and hardware), power brake; a power cap (0x4) is what a busy device shows."""
_QUERY = "index,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu,clocks.sm"
_REASONS = "clocks_throttle_reasons.active"
SMI = ("nvidia-smi", f"--query-gpu={_QUERY},{_REASONS}", "--format=csv,noheader,nounits")


def present(root: str = "/") -> bool:
    return bool(listed(os.path.join(root, "proc/driver/nvidia/gpus"))) or os.path.exists(
        os.path.join(root, "dev/nvidiactl")
    )


class _Rates(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Nvml:
    """The library, loaded once. `MissingError` where it is not there or sees no device."""

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

    def devices(self) -> list[Device]:
        return [self._device(index, handle) for index, handle in self._handles]

    def _device(self, index: int, handle: ctypes.c_void_p) -> Device:
        rates = self._ask("nvmlDeviceGetUtilizationRates", handle, _Rates())
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle, _Memory())
        power = self._ask("nvmlDeviceGetPowerUsage", handle, ctypes.c_uint())
        temperature = self._ask("nvmlDeviceGetTemperature", handle, ctypes.c_uint(), 0)
        clock = self._ask("nvmlDeviceGetClockInfo", handle, ctypes.c_uint(), 1)
        reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle, ctypes.c_ulonglong())
        return Device(
            place=index,
            busy=rates.gpu / 100.0 if rates else None,
            memory_bytes=memory.used if memory else None,
            memory_total_bytes=memory.total if memory else None,
            power_w=power.value / 1000.0 if power else None,
            temperature_c=float(temperature.value) if temperature else None,
            clock_mhz=float(clock.value) if clock else None,
            throttled=bool(reasons.value & _HARDWARE_SLOWDOWN) if reasons else None,
        )

    def _ask(self, name: str, handle: ctypes.c_void_p, answer: Any, *which: int) -> Any:
        """The answer, or None where this device or this driver does not know it."""
        function = getattr(self._library, name, None)
        if function is None or function(handle, *which, ctypes.byref(answer)):
            return None
        return answer


def parse_nvidia_smi(text: str) -> list[Device]:
    """Lines of `nvidia-smi --query-gpu` without header and units."""
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) < 7 or not fields[0].isdigit():
            continue
        found.append(
            Device(
                place=int(fields[0]),
                busy=share(number(fields[1])),
                memory_bytes=whole(number(fields[2]), MIB),
                memory_total_bytes=whole(number(fields[3]), MIB),
                power_w=number(fields[4]),
                temperature_c=number(fields[5]),
                clock_mhz=number(fields[6]),
                throttled=_throttled(fields[7]) if len(fields) > 7 else None,
            )
        )
    return found


def _throttled(text: str) -> bool | None:
    try:
        return bool(int(text, 16) & _HARDWARE_SLOWDOWN)
    except ValueError:
        return None


def smi_devices() -> list[Device]:
    return parse_nvidia_smi(output_of(*SMI))
