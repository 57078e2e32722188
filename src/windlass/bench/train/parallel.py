"""One model over many ranks: DDP or FSDP2, and their differences inside a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from windlass.bench.rank import World
from windlass.bench.train.device import Device
from windlass.bench.train.llama import initialize
from windlass.bench.train.options import Parallel
from windlass.errors import UsageError

_TIMEOUT = timedelta(seconds=300)


@contextmanager
def process_group(world: World, parallel: Parallel, device: Device) -> Iterator[None]:
    """Join the ranks during the block.

    FSDP with one rank needs a group too. Without a launcher it is a local group.
    """
    if parallel == "none":
        if world.size > 1:
            raise UsageError(f"{world.size} ranks but --parallel none", hint="use --parallel ddp or fsdp")
        yield
        return
    store = dist.HashStore() if world.size == 1 and world.rendezvous is None else None
    extra: dict[str, Any] = {"store": store, "rank": 0, "world_size": 1} if store is not None else {}
    if device.kind != "cpu" and device.collective != "gloo":
        extra["device_id"] = device.torch
    dist.init_process_group(device.collective, timeout=_TIMEOUT, **extra)
    try:
        yield
    finally:
        dist.destroy_process_group()


def spread_llama(model: Any, parallel: Parallel, device: Device, seed: int) -> nn.Module:
    """Return the model with its weights on the device, wrapped for the parallel mode.

    The model has blocks, a head, and further parameters. Under FSDP it is created and sharded block by block.
    """
    make = partial(initialize, layers=model.size.layers, seed=seed, device=device.torch)
    if parallel != "fsdp":
        make(model, "")
        return _ddp(model, device) if parallel == "ddp" else model
    low = None if model.compute_type == torch.float32 else torch.bfloat16
    # Inputs are not cast, because the rotary tables must stay fp32.
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32, cast_forward_inputs=False)
    mesh = dist.device_mesh.init_device_mesh(device.kind, (dist.get_world_size(),))
    for index, block in enumerate(model.blocks):
        make(block, f"blocks.{index}.")
        fully_shard(block, mesh=mesh, mp_policy=policy)
    make(model.head, "head.")
    make(model, "", recurse=False)
    sharded: nn.Module = fully_shard(model, mesh=mesh, mp_policy=policy)
    return sharded


def _ddp(model: nn.Module, device: Device) -> nn.Module:
    where = None if device.kind == "cpu" else [device.index]
    wrapped: nn.Module = DistributedDataParallel(
        model, device_ids=where, gradient_as_bucket_view=True, broadcast_buffers=False
    )
    return wrapped


def spread_resnet(model: nn.Module, parallel: Parallel, device: Device, *, fp16: bool = False) -> nn.Module:
    """Return a ResNet on its device, wrapped for the parallel mode. `fp16`: DDP sends gradients in that type."""
    if parallel != "ddp":
        return model
    spread = _ddp(model, device)
    if fp16:
        spread.register_comm_hook(None, fp16_compress_hook)
    return spread


def micro_step(model: nn.Module, parallel: Parallel, *, last: bool) -> AbstractContextManager[object]:
    """Wrap one forward and backward pass. Gradients are exchanged only in the last micro-step of a step."""
    if parallel == "fsdp":
        model.set_requires_gradient_sync(last)
    if parallel == "ddp" and not last:
        context: AbstractContextManager[object] = model.no_sync()
        return context
    return nullcontext()


def mean_over_ranks(value: float, world: World, parallel: Parallel, device: Device) -> float:
    """Return the mean of one number over all ranks."""
    if parallel == "none" or world.size == 1:
        return value
    tensor = torch.tensor([value], dtype=torch.float64 if device.kind == "cpu" else torch.float32, device=device.torch)
    dist.all_reduce(tensor)
    return float(tensor.item()) / world.size
