"""The language-model training loop, from start to measured result. Read it top to bottom."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import torch
from torch import nn

from windlass.bench.rank import World, read_world
from windlass.bench.train import parallel
from windlass.bench.train.data import RandomTokens
from windlass.bench.train.device import Device, allow_tf32, find_device
from windlass.bench.train.interruption import out_of_memory_explained
from windlass.bench.train.llama import Llama
from windlass.bench.train.options import LlmOptions, learning_rate_for, llama_size, state_bytes
from windlass.bench.train.steps import MeasuredRun, SoFar, TrainResult
from windlass.errors import MachineError

_WEIGHT_DECAY = 0.1
_CLIP = 1.0
Options = TypeVar("Options", bound=LlmOptions)


def train_llm(options: LlmOptions, so_far: SoFar | None = None) -> TrainResult:
    """Train for `warmup + steps` optimizer steps and return the times of the last `steps`."""
    world = read_world()
    device = find_device(options.device, world.local_rank)
    options = resolve(options, device)
    allow_tf32(bool(options.tf32))
    with parallel.process_group(world, options.parallel, device), out_of_memory_explained(device, smaller(options)):
        return _train(options, device, world, so_far)


def smaller(options: LlmOptions) -> str:
    """Return advice for a device without enough memory. It omits measures that are already in use."""
    words = ["a smaller --micro-batch"] if options.micro_batch > 1 else []
    words += {"none": ["--checkpointing selective or full"], "selective": ["--checkpointing full"]}.get(
        options.checkpointing, ["a shorter --sequence"]
    )
    words.append("--parallel fsdp" if options.parallel != "fsdp" else "more ranks")
    return ", ".join(words[:-1]) + f", or {words[-1]}"


def resolve(options: Options, device: Device) -> Options:
    """Return the options with every None replaced by a suitable value for the device."""
    return replace(
        options,
        device=device.kind,
        precision=options.precision or device.precision,
        compile=device.compile if options.compile is None else options.compile,
        tf32=False if options.tf32 is None else options.tf32,
        learning_rate=options.learning_rate or learning_rate_for(llama_size(options.model)),
    )


def _train(options: LlmOptions, device: Device, world: World, so_far: SoFar | None) -> TrainResult:
    size = llama_size(options.model)
    assert options.learning_rate is not None
    peak = options.learning_rate
    check_memory(options, device, world.size)
    model = _model(options, device)
    optimizer = _optimizer(model, device)
    # FSDP casts the weights that it gathers.
    low = options.precision == "bf16" and options.parallel != "fsdp"
    data = RandomTokens(
        vocabulary=size.vocabulary,
        sequence=options.sequence,
        batch=options.micro_batch,
        seed=options.seed,
        device=device.torch,
    )
    run = MeasuredRun(options=options, device=device, world=world, parameters=size.parameters, so_far=so_far)

    def one_step(step: int) -> None:
        total = torch.zeros((), device=device.torch)
        for micro in range(options.accumulation):
            last = micro == options.accumulation - 1
            tokens, targets = data.batch(step, world.rank * options.accumulation + micro)
            with parallel.micro_step(model, options.parallel, last=last):
                with torch.autocast(device.kind, torch.bfloat16, enabled=low):
                    loss = model(tokens, targets) / options.accumulation
                loss.backward()
                total += loss.detach()
        norm = nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
        run.norms.append(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
        for group in optimizer.param_groups:
            group["lr"] = warm_learning_rate(peak, step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        run.losses.append(total)

    return run.measure(one_step)


def _model(options: LlmOptions, device: Device) -> nn.Module:
    model = Llama(
        llama_size(options.model),
        vendor=device.vendor,
        compute_type=torch.float32 if options.precision == "fp32" else torch.bfloat16,
        checkpointing=options.checkpointing,
    )
    if options.compile:
        for block in model.blocks:
            block.compile(dynamic=False)
    return parallel.spread_llama(model, options.parallel, device, options.seed)


def _optimizer(model: nn.Module, device: Device) -> torch.optim.Optimizer:
    """Return AdamW. Norms do not decay."""
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": _WEIGHT_DECAY},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), fused=device.kind != "cpu")


def warm_learning_rate(peak: float, step: int, *, warmup: int = 10) -> float:
    """Return a rate that rises linearly over the first steps and then stays constant.

    A cold Adam takes steps of full size on noise.
    """
    return peak * min(1.0, (step + 1) / warmup)


def check_memory(options: LlmOptions, device: Device, ranks: int) -> None:
    """Reject a model whose state alone is larger than the device, before a login node runs out of memory."""
    assert options.precision is not None
    needed = state_bytes(llama_size(options.model).parameters, options.precision, options.parallel, ranks)
    if needed > device.memory_bytes:
        raise MachineError(
            f"{options.model} needs {needed / 2**30:.0f} GiB for its state on each device, "
            f"{device.name} has {device.memory_bytes / 2**30:.0f}",
            hint="take a smaller model, or --parallel fsdp on more ranks",
        )
