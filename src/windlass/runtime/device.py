"""Choose the device and the collective backend of a rank: probed once, decided by a pure rule."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any, Literal

from windlass.errors import MachineError, UsageError, unknown_name

DeviceKind = Literal["cuda", "xpu", "cpu"]
_KINDS: tuple[DeviceKind, ...] = ("cuda", "xpu", "cpu")


@dataclass(frozen=True, kw_only=True, slots=True)
class Devices:
    """The devices of this node that torch detects inside this rank."""

    cuda: int = 0
    xpu: int = 0
    nccl: bool = False
    xccl: bool = False
    ccl: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The device of this rank and the backend of its process group, with the reason."""

    kind: DeviceKind
    index: int | None
    backend: str
    because: str

    @property
    def name(self) -> str:
        """The name in torch: `cuda:3`, `cpu`."""
        return self.kind if self.index is None else f"{self.kind}:{self.index}"


def probe(torch: Any) -> Devices:
    """Detect the devices. Only torch is queried, so that visibility variables and driver errors count."""
    dist = torch.distributed
    have = dist.is_available()
    xpu = torch.xpu.device_count() if hasattr(torch, "xpu") and torch.xpu.is_available() else 0
    return Devices(
        cuda=torch.cuda.device_count() if torch.cuda.is_available() else 0,
        xpu=xpu,
        nccl=have and dist.is_nccl_available(),
        xccl=have and bool(getattr(dist, "is_xccl_available", lambda: False)()),
        ccl=importlib.util.find_spec("oneccl_bindings_for_pytorch") is not None,
    )


def choose(devices: Devices, *, local_rank: int, kind: str | None = None, ranks_planned: int | None = None) -> Choice:
    """Choose the device and the backend of one rank.

    `kind` forces a device. A device that does not exist is an error. `ranks_planned` is the number of ranks planned for
    this node, if it is larger than the number of devices. The ranks then share the devices in blocks.
    """
    if kind is not None and kind not in _KINDS:
        raise unknown_name("device", kind, _KINDS, where="windlass.init")
    counts: dict[DeviceKind, int] = {"cuda": devices.cuda, "xpu": devices.xpu, "cpu": 0}
    if kind in ("cuda", "xpu") and counts[kind] == 0:
        raise MachineError(
            f"windlass.init: no {kind} device is visible to this rank",
            hint="check the visibility variables, the driver, and that torch was built for this vendor",
        )
    found = kind or next((k for k in _KINDS if counts[k]), "cpu")
    if found == "cpu":
        because = "no device is visible" if kind is None else "asked"
        return Choice(kind="cpu", index=None, backend="gloo", because=because)
    chosen: DeviceKind = "cuda" if found == "cuda" else "xpu"
    count = counts[chosen]
    return Choice(
        kind=chosen,
        index=_index(chosen, count, local_rank, ranks_planned),
        backend=_backend(chosen, devices),
        because="one visible device" if count == 1 else f"local rank of {count} visible devices",
    )


def _index(kind: DeviceKind, count: int, local_rank: int, ranks_planned: int | None) -> int:
    """Apply the visibility rule: a launcher that shows one device per task has already chosen."""
    if count == 1:
        return 0
    if ranks_planned is not None and ranks_planned > count and ranks_planned % count == 0:
        return local_rank * count // ranks_planned
    if local_rank >= count:
        raise UsageError(
            f"local rank {local_rank} has no own device: {count} {kind} devices are visible",
            hint=f"start at most {count} ranks per node, or make one device visible to each rank",
        )
    return local_rank


def _backend(kind: DeviceKind, devices: Devices) -> str:
    if kind == "cuda":
        return "nccl" if devices.nccl else "gloo"
    if devices.xccl:
        return "xccl"
    return "ccl" if devices.ccl else "gloo"
