"""The device of a step: selection, defaults and clock. Only this module distinguishes vendors."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any, Literal

import torch

from windlass.bench.train.options import Precision
from windlass.errors import MachineError

Vendor = Literal["nvidia", "amd", "intel", "cpu"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One accelerator (or the CPU), with suitable defaults."""

    kind: Literal["cuda", "xpu", "cpu"]
    index: int
    vendor: Vendor
    name: str
    memory_bytes: int
    precision: Precision
    compile: bool
    collective: str
    fp8: tuple[torch.dtype, torch.dtype] | None  # (forward, gradients)

    @property
    def torch(self) -> torch.device:
        return torch.device(self.kind) if self.kind == "cpu" else torch.device(self.kind, self.index)


def find_device(kind: str | None, local_rank: int = 0) -> Device:
    """Return the device of this rank. Raises an error if the kind, or a device for this local rank, is missing."""
    if kind is None:
        kind = "cuda" if torch.cuda.is_available() else "xpu" if torch.xpu.is_available() else "cpu"
    if kind == "cpu":
        return _cpu()
    if kind not in {"cuda", "xpu"}:
        raise MachineError(f"no device kind {kind!r}", hint="known: cuda (NVIDIA and AMD), xpu (Intel), cpu")
    module: Any = torch.cuda if kind == "cuda" else torch.xpu
    if not module.is_available():
        raise MachineError(f"this torch {torch.__version__} sees no {kind} device", hint="try --device cpu")
    count = module.device_count()
    # A launcher that shows each rank one device gives it index 0, for every local rank.
    index = local_rank if count > 1 else 0
    if index >= count:
        raise MachineError(f"local rank {local_rank} has no device: {count} visible", hint="start fewer ranks per node")
    module.set_device(index)
    return _intel(index) if kind == "xpu" else _cuda(index)


def _cpu() -> Device:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Device(
        kind="cpu",
        index=0,
        vendor="cpu",
        name="cpu",
        memory_bytes=memory,
        precision="fp32",
        compile=False,
        collective="gloo",
        # torch also multiplies fp8 on the CPU. It is slow, but gives the same numbers, as the tests need.
        fp8=(torch.float8_e4m3fn, torch.float8_e5m2),
    )


def _intel(index: int) -> Device:
    properties = torch.xpu.get_device_properties(index)
    return Device(
        kind="xpu",
        index=index,
        vendor="intel",
        name=properties.name,
        memory_bytes=properties.total_memory,
        precision="bf16",
        compile=True,
        collective="xccl",
        fp8=None,
    )


def _cuda(index: int) -> Device:
    properties = torch.cuda.get_device_properties(index)
    amd = torch.version.hip is not None
    return Device(
        kind="cuda",
        index=index,
        vendor="amd" if amd else "nvidia",
        name=properties.name,
        memory_bytes=properties.total_memory,
        precision="bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32",
        compile=True,
        collective="nccl",
        fp8=_fp8_types(properties, amd=amd),
    )


def _fp8_types(properties: Any, *, amd: bool) -> tuple[torch.dtype, torch.dtype] | None:
    if amd:
        arch = str(getattr(properties, "gcnArchName", ""))
        if arch.startswith("gfx942"):
            return torch.float8_e4m3fnuz, torch.float8_e5m2fnuz
        return (torch.float8_e4m3fn, torch.float8_e5m2) if arch.startswith("gfx95") else None
    return (torch.float8_e4m3fn, torch.float8_e5m2) if (properties.major, properties.minor) >= (8, 9) else None


def allow_tf32(on: bool) -> None:
    """Allow or forbid that fp32 matrix products and convolutions round their inputs to TF32."""
    torch.set_float32_matmul_precision("high" if on else "highest")
    torch.backends.cudnn.allow_tf32 = on


def synchronize(device: Device) -> None:
    """Return when the device has completed all its work."""
    if device.kind == "cuda":
        torch.cuda.synchronize()
    elif device.kind == "xpu":
        torch.xpu.synchronize()


def peak_memory_bytes(device: Device) -> int:
    """Return the peak memory of tensors since the start, or 0 if the device does not count it."""
    if device.kind == "cuda":
        return int(torch.cuda.max_memory_allocated())
    if device.kind == "xpu":
        return int(torch.xpu.max_memory_allocated())
    return 0


class StepClock:
    """Times between marks on the device's clock, so that timing does not make the host wait for the device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._marks: list[Any] = []

    def mark(self) -> None:
        if self._device.kind == "cpu":
            self._marks.append(time.perf_counter())
            return
        module: Any = torch.cuda if self._device.kind == "cuda" else torch.xpu
        event = module.Event(enable_timing=True)
        event.record()
        self._marks.append(event)

    @property
    def count(self) -> int:
        """The number of marks."""
        return len(self._marks)

    def wait_for(self, back: int) -> None:
        """Wait for the mark `back` marks ago. This keeps the host from running far ahead of the device."""
        if self._device.kind != "cpu" and len(self._marks) > back:
            self._marks[-1 - back].synchronize()

    def intervals_s(self) -> tuple[float, ...]:
        """Return the seconds between each mark and the next. Waits for the device."""
        synchronize(self._device)
        pairs = list(zip(self._marks, self._marks[1:], strict=False))
        if self._device.kind == "cpu":
            return tuple(after - before for before, after in pairs)
        return tuple(before.elapsed_time(after) / 1e3 for before, after in pairs)
