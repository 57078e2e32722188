"""The model of `windlass.bench.train.llama` with products, pieces and loss of our own.

`forward` takes tokens and targets and returns the mean loss, because the head and the loss are computed together.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.attention import sdpa_kernel
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from fast_llama.loss import chunked_loss
from fast_llama.pieces import Pieces
from fast_llama.product import Accumulation, Linear, ProductRules, embed
from windlass.bench.train.device import Device, Vendor
from windlass.bench.train.llama import ATTENTION, KEPT, rotary_table
from windlass.bench.train.options import Checkpointing, LlamaSize


class Block(nn.Module):  # type: ignore[misc]
    """One layer. It takes the residual stream and the last branch still to be added to it, so that the sum and the norm
    that follows it are one kernel."""

    def __init__(
        self, size: LlamaSize, rules: ProductRules, pieces: Pieces, accumulation: Accumulation, vendor: Vendor
    ) -> None:
        super().__init__()
        self.size = size
        self.pieces = pieces
        self.attention_order = ATTENTION[vendor]
        head_rows = size.head_width * (size.heads + 2 * size.kv_heads)
        self.attention_norm = nn.Parameter(torch.empty(size.width))
        self.qkv = Linear(size.width, head_rows, rules, pieces, accumulation)
        self.attention_out = Linear(size.head_width * size.heads, size.width, rules, pieces, accumulation)
        self.mlp_norm = nn.Parameter(torch.empty(size.width))
        self.gate_up = Linear(size.width, 2 * size.hidden, rules, pieces, accumulation)
        self.down = Linear(size.hidden, size.width, rules, pieces, accumulation)

    def forward(self, stream: Tensor, branch: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        stream, normed = self.pieces.add_rms_norm(stream, branch, self.attention_norm, self.size.norm_eps)
        branch = self.attention_out(self._attend(self.qkv(normed), cos, sin))
        stream, normed = self.pieces.add_rms_norm(stream, branch, self.mlp_norm, self.size.norm_eps)
        return stream, self.down(self.pieces.swiglu(self.gate_up(normed)))

    def _attend(self, qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        size = self.size
        batch, positions, _ = qkv.shape
        parts = qkv.view(batch, positions, size.heads + 2 * size.kv_heads, size.head_width)
        q, k, v = self.pieces.rotate(parts, cos, sin, size.heads, size.kv_heads)
        with sdpa_kernel(list(self.attention_order), set_priority=True):
            mixed = nn.functional.scaled_dot_product_attention(
                q.transpose(1, 2),
                k.transpose(1, 2),
                v.transpose(1, 2),
                is_causal=True,
                enable_gqa=size.kv_heads != size.heads,
            )
        return mixed.transpose(1, 2).reshape(batch, positions, size.heads * size.head_width)


class Llama(nn.Module):  # type: ignore[misc]
    """The whole model, on the meta device until `initialize`."""

    def __init__(
        self,
        size: LlamaSize,
        *,
        rules: ProductRules,
        pieces: Pieces,
        accumulation: Accumulation,
        device: Device,
        checkpointing: Checkpointing,
        loss_chunk: int,
    ) -> None:
        super().__init__()
        self.size = size
        self.pieces = pieces
        self.checkpointing = checkpointing
        self.loss_chunk = loss_chunk
        self.accumulation = accumulation
        self.compute_type = torch.float32 if rules.precision == "fp32" else torch.bfloat16
        head_rules = rules if rules.precision != "fp8" else _in_bf16(rules)
        with torch.device("meta"):
            self.embedding = nn.Parameter(torch.empty(size.vocabulary, size.width))
            self.blocks = nn.ModuleList(
                Block(size, rules, pieces, accumulation, device.vendor) for _ in range(size.layers)
            )
            self.norm = nn.Parameter(torch.empty(size.width))
            self.head = Linear(size.width, size.vocabulary, head_rules, pieces, accumulation)
        self._rotary: tuple[Tensor, Tensor] | None = None

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        cos, sin = self._rotary_of(tokens)
        stream = embed(tokens, self.embedding, self.accumulation).to(self.compute_type)
        branch = torch.zeros_like(stream)
        for block in self.blocks:
            stream, branch = _call(self.checkpointing, block, stream, branch, cos, sin)
        _, normed = self.pieces.add_rms_norm(stream, branch, self.norm, self.size.norm_eps)
        return chunked_loss(normed, self.head, targets, self.pieces, self.loss_chunk)

    def _rotary_of(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        if self._rotary is None or len(self._rotary[0]) != tokens.shape[1]:
            self._rotary = rotary_table(tokens.shape[1], self.size.head_width, self.size.rope_theta, tokens.device)
        return self._rotary

    def refresh(self) -> None:
        """Bring the low-precision copies up to date with the masters."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.refresh()


def _in_bf16(rules: ProductRules) -> ProductRules:
    return ProductRules(precision="bf16", standing_copies=rules.standing_copies)


_KEPT = KEPT | {torch.ops.aten._scaled_mm.default}


def _keep_products(_ctx: object, op: object, *_args: object, **_kwargs: object) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE


def _call(mode: Checkpointing, block: nn.Module, *arguments: Tensor) -> tuple[Tensor, Tensor]:
    """The block, with all, some (products and attention) or none of its inner values kept for backward."""
    result: tuple[Tensor, Tensor]
    if mode == "none":
        result = block(*arguments)
        return result
    extra = {} if mode == "full" else {"context_fn": lambda: create_selective_checkpoint_contexts(_keep_products)}
    result = checkpoint(block, *arguments, use_reentrant=False, preserve_rng_state=False, **extra)
    return result
