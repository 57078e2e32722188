"""A Llama-style model in plain PyTorch: embedding, blocks of attention and SwiGLU with RMSNorm, and a head.

`forward` takes tokens and targets and returns the mean loss. The repository's `bench/fast_llama` has a tuned step.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from windlass.bench.train.device import Vendor
from windlass.bench.train.options import Checkpointing, LlamaSize

# Best first. torch takes the first that can run the case. cuDNN's attention is the fastest on Hopper.
ATTENTION: dict[Vendor, tuple[SDPBackend, ...]] = {
    "nvidia": (
        SDPBackend.CUDNN_ATTENTION,
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.MATH,
    ),
    "amd": (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH),
    "intel": (SDPBackend.OVERRIDEABLE, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH),
    "cpu": (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH),
}


class Block(nn.Module):  # type: ignore[misc]
    """One layer. Checkpointing is inside, so that a compiled block has it too."""

    def __init__(self, size: LlamaSize, checkpointing: Checkpointing) -> None:
        super().__init__()
        self.size = size
        self.checkpointing = checkpointing
        self.attention_norm = nn.Parameter(torch.empty(size.width))
        self.qkv = nn.Linear(size.width, size.head_width * (size.heads + 2 * size.kv_heads), bias=False)
        self.attention_out = nn.Linear(size.head_width * size.heads, size.width, bias=False)
        self.mlp_norm = nn.Parameter(torch.empty(size.width))
        self.gate_up = nn.Linear(size.width, 2 * size.hidden, bias=False)
        self.down = nn.Linear(size.hidden, size.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if self.checkpointing == "none":
            return self._layer(x, cos, sin)
        keep = partial(create_selective_checkpoint_contexts, _keep_products)
        extra = {} if self.checkpointing == "full" else {"context_fn": keep}
        result: Tensor = checkpoint(self._layer, x, cos, sin, use_reentrant=False, preserve_rng_state=False, **extra)
        return result

    def _layer(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self._attend(_rms_norm(x, self.attention_norm, self.size.norm_eps), cos, sin)
        gate, up = self.gate_up(_rms_norm(x, self.mlp_norm, self.size.norm_eps)).chunk(2, -1)
        return x + self.down(nn.functional.silu(gate) * up)

    def _attend(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        size = self.size
        batch, positions, _ = x.shape
        qkv = self.qkv(x).view(batch, positions, -1, size.head_width).transpose(1, 2)
        q, k, v = qkv.split((size.heads, size.kv_heads, size.kv_heads), dim=1)
        mixed = nn.functional.scaled_dot_product_attention(
            _rotated(q, cos, sin), _rotated(k, cos, sin), v, is_causal=True, enable_gqa=size.kv_heads != size.heads
        )
        return self.attention_out(mixed.transpose(1, 2).reshape(batch, positions, -1))


class Llama(nn.Module):  # type: ignore[misc]
    """The whole model, on the meta device until `initialize`."""

    def __init__(
        self, size: LlamaSize, *, vendor: Vendor, compute_type: torch.dtype, checkpointing: Checkpointing
    ) -> None:
        super().__init__()
        self.size = size
        self.vendor: Vendor = vendor
        self.compute_type = compute_type
        with torch.device("meta"):
            self.embedding = nn.Parameter(torch.empty(size.vocabulary, size.width))
            self.blocks = nn.ModuleList(Block(size, checkpointing) for _ in range(size.layers))
            self.norm = nn.Parameter(torch.empty(size.width))
            self.head = nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        cos, sin = rotary_table(tokens.shape[1], self.size.head_width, self.size.rope_theta, tokens.device)
        x = nn.functional.embedding(tokens, self.embedding).to(self.compute_type)
        with sdpa_kernel(list(ATTENTION[self.vendor]), set_priority=True):
            for block in self.blocks:
                x = block(x, cos, sin)
        logits = self.head(_rms_norm(x, self.norm, self.size.norm_eps))
        return nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def rotary_table(positions: int, head_width: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cos and sin of shape (positions, head_width / 2), in fp32.

    bf16 cannot distinguish position 4001 from 4002.
    """
    inverse = theta ** (-torch.arange(0, head_width, 2, device=device, dtype=torch.float32) / head_width)
    angles = torch.outer(torch.arange(positions, device=device, dtype=torch.float32), inverse)
    return angles.cos(), angles.sin()


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


@torch.no_grad()  # type: ignore[untyped-decorator]
def initialize(
    module: nn.Module, prefix: str, *, layers: int, seed: int, device: torch.device, recurse: bool = True
) -> None:
    """Materialise a module's meta parameters on `device` with values that depend only on the seed and their names.

    So a block can be created and sharded before the next one is created, and all parallel modes start with equal
    weights. Standard deviation 0.02, smaller by √(2·layers) for the two products that write to the residual stream.
    """
    module.to_empty(device=device, recurse=recurse)
    for name, parameter in module.named_parameters(recurse=recurse):
        full = f"{prefix}{name}"
        generator = torch.Generator(device=device).manual_seed(_stable_hash(full) ^ seed)
        if full.endswith("norm"):
            parameter.fill_(1.0)
            continue
        deviation = 0.02
        if "attention_out" in full or "down" in full:
            deviation /= (2 * layers) ** 0.5
        parameter.normal_(0.0, deviation, generator=generator)


def _stable_hash(text: str) -> int:
    value = 1469598103934665603  # FNV-1a, because Python's own hash differs between processes
    for byte in text.encode():
        value = ((value ^ byte) * 1099511628211) % 2**63
    return value


KEPT = {
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
}


def _keep_products(_ctx: object, op: object, *_args: object, **_kwargs: object) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in KEPT else CheckpointPolicy.PREFER_RECOMPUTE
