"""Copy a rank's part of the state to host memory, so that training continues while a thread writes the copy.

On CUDA, a separate stream copies to pinned memory. If device memory is free, the state is copied on the device first,
and training waits only for that copy. The host memory is allocated once, in the background, and used for every save.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

from windlass.node.sys.memory import memory_left

PIECE_BYTES = 64 << 20
"""Memory is pinned in pieces of this size. CUDA refuses a copy that spans two of them."""
_ALIGN_BYTES = 512
_DEVICE_SPARE = 0.1
"""This part of the device's memory stays free while the state is copied on the device."""
_HOST_SPARE = 1.1
_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every device of this process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Staged:
    """Copies on the host, in the order of the tensors. A copy is complete when `wait` for its number has returned."""

    tensors: list[Any]
    events: Mapping[int, Any]
    """The CUDA event of each incomplete copy, by its number. Complete copies have no event."""

    def wait(self, number: int) -> None:
        if number in self.events:
            self.events[number].synchronize()


class HostBlock:
    """Host memory in huge pages that were touched. It is pinned if `device` is a CUDA device.

    `torch.empty(pin_memory=True)` of gigabytes stops every other thread for seconds. Pages that were touched before and
    are registered piece by piece do not. A forked process does not inherit the memory, because the kernel would copy
    it.
    """

    def __init__(self, size: int, device: Any = None, *, threads: int = 1) -> None:
        import torch

        memory = mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for advice in ("MADV_HUGEPAGE", "MADV_DONTFORK"):
            if hasattr(mmap, advice):
                memory.madvise(getattr(mmap, advice))
        self._memory = memory
        self.bytes = torch.frombuffer(memory, dtype=torch.uint8)
        starts = range(0, self.bytes.numel(), PIECE_BYTES)
        with ThreadPoolExecutor(threads, thread_name_prefix="windlass-pin") as pool:
            pinned = list(pool.map(lambda start: self._pin(start, device), starts))
        pointers = [pointer for pointer in pinned if pointer]
        self.pinned = device is not None and len(pointers) == len(starts)
        if pointers:
            freed = weakref.finalize(self, _unpin, pointers, self.bytes)
            freed.atexit = False  # the memory ends with the process

    def tensor(self, start: int, like: Any) -> Any:
        """Return a tensor in this memory.

        Its storage is as large as itself, so that it can be written without a copy.
        """
        import torch

        size = like.numel() * like.element_size()
        if size == 0:
            return torch.empty_like(like, device="cpu")
        flat = torch.frombuffer(self._memory, dtype=torch.uint8, count=size, offset=start)
        return flat.view(like.dtype).view(like.shape)

    def _pin(self, start: int, device: Any) -> int:
        """Touch a piece and pin it. Returns its address, or 0 if it is not pinned."""
        import torch

        piece = self.bytes[start : start + PIECE_BYTES]
        ctypes.memset(piece.data_ptr(), 0, piece.numel())  # `zero_` would use all processors
        if device is None:
            return 0
        with torch.cuda.device(device):
            failed = int(torch.cuda.cudart().cudaHostRegister(piece.data_ptr(), piece.numel(), _PORTABLE))
        return 0 if failed else int(piece.data_ptr())


def _unpin(pointers: Sequence[int], memory: Any) -> None:
    """Undo `_pin`. The parameter `memory` keeps the memory mapped until then."""
    import torch

    for pointer in pointers:
        torch.cuda.cudart().cudaHostUnregister(pointer)
    del memory


class _Placed(NamedTuple):
    """A tensor of a device, its number, and the offset of its copy on the host."""

    number: int
    start: int
    tensor: Any


class Stager:
    """Stages the saves of one rank. `ranks` is the number of ranks of this node that stage at the same time."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._block: HostBlock | None = None
        self._making: threading.Thread | None = None
        self._streams: dict[Any, Any] = {}
        self._copied: dict[Any, int] = {}
        """Bytes of the last copy on each device. They are part of the device's peak of memory."""

    @property
    def is_pinned(self) -> bool:
        """Whether pinned memory exists. A copy through it is faster than a plain one."""
        return self._block is not None and self._block.pinned

    def prepare(self, tensors: Sequence[Any]) -> None:
        """Allocate and pin memory for such tensors in the background."""
        size = _bounds(tensors)[-1]
        if self._making is not None or not self._has_room(size):
            return
        self._making = threading.Thread(target=self._make, args=(size, tensors), name="windlass-pin", daemon=True)
        self._making.start()

    def stage(self, tensors: Sequence[Any]) -> Staged | None:
        """Copy the tensors. On return training may change them. Returns None if the node has no memory for a copy."""
        if self._making is not None:
            self._making.join()
        bounds = _bounds(tensors)
        if self._block is None or bounds[-1] > self._block.bytes.numel():
            self._block = None
            if not self._has_room(bounds[-1]):
                return None
            self._make(bounds[-1], tensors)
        assert self._block is not None
        copies: list[Any] = []
        on_device: dict[Any, list[_Placed]] = {}
        for number, (start, tensor) in enumerate(zip(bounds, tensors, strict=False)):
            if not is_plain(tensor):
                copies.append(tensor.detach().cpu().clone())
                continue
            copies.append(self._block.tensor(start, tensor))
            if tensor.device.type == "cuda":
                on_device.setdefault(tensor.device, []).append(_Placed(number, start, tensor.detach()))
            else:
                copies[-1].copy_(tensor.detach())
        events: dict[int, Any] = {}
        for device, placed in on_device.items():
            events |= self._copy_from(device, placed)
        return Staged(tensors=copies, events=events)

    def _has_room(self, size: int) -> bool:
        return size * self._ranks * _HOST_SPARE < memory_left()

    def _make(self, size: int, tensors: Sequence[Any]) -> None:
        device = next((tensor.device for tensor in tensors if tensor.device.type == "cuda"), None)
        self._block = HostBlock(size, device)

    def _copy_from(self, device: Any, placed: Sequence[_Placed]) -> dict[int, Any]:
        """Copy tensors of one CUDA device to their places on the host. Returns the events to wait for, by number.

        As many tensors as fit into free memory are copied on the device first. Training waits for the others.
        """
        import torch

        assert self._block is not None
        host = self._block.bytes
        stream = self._streams.setdefault(device, torch.cuda.Stream(device))
        with torch.cuda.device(device):
            copies, memory = self._copy_on_device(device, [one.tensor for one in placed])
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for one in placed[len(copies) :]:
                    _copy_pieces(host, one.start, _bytes_of(one.tensor))
                released = torch.cuda.Event()
                released.record()
                events: dict[int, Any] = {}
                for one, copy in zip(placed, copies, strict=False):
                    _copy_pieces(host, one.start, _bytes_of(copy))
                    events[one.number] = torch.cuda.Event()
                    events[one.number].record()
                if memory is not None:
                    memory.record_stream(stream)  # it is not reused before the copies are complete
        if len(copies) < len(placed):
            released.synchronize()
        return events

    def _copy_on_device(self, device: Any, tensors: Sequence[Any]) -> tuple[list[Any], Any]:
        """Return copies of the first tensors, as many as fit, and the memory that contains them."""
        import torch

        bounds = _bounds(tensors)
        room = _free_on_device(self._copied.get(device, 0))
        count = sum(1 for end in bounds[1:] if end <= room)
        self._copied[device] = bounds[count]
        if count == 0:
            return [], None
        try:
            memory = torch.empty(bounds[count], dtype=torch.uint8, device=device)
        except torch.cuda.OutOfMemoryError:
            return [], None
        copies = [_view(memory, start, tensor) for start, tensor in zip(bounds, tensors[:count], strict=False)]
        torch._foreach_copy_(copies, list(tensors[:count]))
        return copies, memory


def is_plain(tensor: Any) -> bool:
    """Return whether the tensor is memory with a shape: not sparse, not quantized, and not of a subclass."""
    import torch

    known = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return known and tensor.layout is torch.strided and not tensor.is_quantized


def _bounds(tensors: Sequence[Any]) -> list[int]:
    """Return the offset of each tensor in one block of memory, and at the end the size of the block."""
    bounds = [0]
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size() if is_plain(tensor) else 0
        bounds.append(bounds[-1] + -(-size // _ALIGN_BYTES) * _ALIGN_BYTES)
    return bounds


def _view(block: Any, start: int, tensor: Any) -> Any:
    size = tensor.numel() * tensor.element_size()
    return block[start : start + size].view(tensor.dtype).view(tensor.shape)


def _bytes_of(tensor: Any) -> Any:
    import torch

    return tensor.contiguous().view(-1).view(torch.uint8)


def _copy_pieces(host: Any, start: int, flat: Any) -> None:
    """Copy bytes to a block of the host, never across two pieces that were pinned separately."""
    done, size = 0, flat.numel()
    while done < size:
        length = min(size - done, PIECE_BYTES - (start + done) % PIECE_BYTES)
        host[start + done : start + done + length].copy_(flat[done : done + length], non_blocking=True)
        done += length


def _free_on_device(own_peak: int) -> int:
    """Return the bytes of the current device that training does not need.

    Training needs its peak memory, without the `own_peak` bytes of an earlier copy of the state.
    """
    import torch

    free, total = torch.cuda.mem_get_info()
    peak = max(torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated() - own_peak)
    return int(free + torch.cuda.memory_reserved() - peak - _DEVICE_SPARE * total)
