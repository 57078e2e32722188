"""Our optimizers do what torch's do."""

from __future__ import annotations

from looping import each
from requirements import require_torch

require_torch()

import torch  # noqa: E402
from torch import nn  # noqa: E402

from fast_llama.optimizer import AdamW  # noqa: E402
from fast_resnet.optimizer import MasterSgd  # noqa: E402
from windlass.bench.train.loop import warm_learning_rate  # noqa: E402


def _pair() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(3)
    one = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4))
    other = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4))
    other.load_state_dict(one.state_dict())
    return one, other


@each("clip", [0.05, 1e9])
def test_adamw_equals_torch_with_clipping(clip: float) -> None:
    ours, theirs = _pair()
    mine = AdamW(ours, weight_decay=0.1, clip=clip, compile=False)
    groups = [
        {"params": [p for p in theirs.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in theirs.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    reference = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), eps=1e-8)
    for step in range(8):
        x = torch.randn(32, 8)
        rate = warm_learning_rate(0.02, step)
        for model in (ours, theirs):
            model.zero_grad(set_to_none=True)
            model(x).square().mean().backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        for group in reference.param_groups:
            group["lr"] = rate
        reference.step()
        torch.testing.assert_close(mine.step(rate), norm)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_sgd_over_fp32_weights_equals_torch() -> None:
    ours, theirs = _pair()
    mine = MasterSgd(list(ours.parameters()), learning_rate=0.1, momentum=0.9, decay=1e-2, compile=False)
    reference = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2)
    for _ in range(6):
        x = torch.randn(32, 8)
        for model in (ours, theirs):
            model.zero_grad(set_to_none=True)
            model(x).square().mean().backward()
        mine.step()
        reference.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_masters_keep_steps_that_bf16_would_lose() -> None:
    weight = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimizer = MasterSgd([weight], learning_rate=1e-4, momentum=0.0, decay=0.0, compile=False)
    for _ in range(100):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    # 1 - 1e-4 is 1 in bf16, so without a master nothing would ever move.
    torch.testing.assert_close(weight.float(), torch.full((4,), 0.99), rtol=0, atol=4e-3)


def test_the_learning_rate_rises_and_stays() -> None:
    assert [warm_learning_rate(1.0, step, warmup=4) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
