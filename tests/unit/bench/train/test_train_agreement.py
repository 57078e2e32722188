"""Every precision and every way to save memory trains like fp32 without any of them."""

from __future__ import annotations

import pytest

from requirements import require_torch

require_torch()

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from fast_llama import loop as fast_loop  # noqa: E402
from fast_llama.model import Llama  # noqa: E402
from fast_llama.pieces import make_pieces  # noqa: E402
from fast_llama.product import Accumulation, ProductRules  # noqa: E402
from unit.bench.train.training import largest_distance, short_run, tuned_run  # noqa: E402
from windlass.bench.train.device import find_device  # noqa: E402
from windlass.bench.train.llama import initialize  # noqa: E402
from windlass.bench.train.options import LLAMAS  # noqa: E402
from windlass.bench.train.steps import TrainResult  # noqa: E402
from windlass.errors import MachineError  # noqa: E402

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def reference() -> TrainResult:
    return short_run()


def test_the_reference_learns(reference: TrainResult) -> None:
    assert reference.losses[-1] < reference.losses[0] - 0.5


@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [
        pytest.param({"precision": "bf16"}, 2e-3, id="bf16"),
        pytest.param({"checkpointing": "full"}, 1e-6, id="full checkpointing"),
        pytest.param({"checkpointing": "selective"}, 1e-6, id="selective checkpointing"),
    ],
)
def test_loss_curve_agrees_with_fp32(reference: TrainResult, changes: dict[str, object], tolerance: float) -> None:
    assert largest_distance(reference.losses, short_run(**changes).losses) < tolerance


@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [
        pytest.param({"checkpointing": "full"}, 1e-5, id="fp32 with full checkpointing"),
        pytest.param({"precision": "bf16"}, 1e-3, id="bf16"),
        pytest.param({"precision": "fp8"}, 4e-3, id="fp8"),
        pytest.param({"precision": "fp8", "checkpointing": "selective"}, 4e-3, id="fp8 with selective checkpointing"),
        pytest.param({"loss_chunk": 10}, 1e-5, id="loss in chunks that do not divide the tokens"),
    ],
)
def test_loss_curve_of_the_tuned_step_is_that_of_the_plain_one(
    reference: TrainResult, changes: dict[str, object], tolerance: float
) -> None:
    assert largest_distance(reference.losses, tuned_run(**changes).losses) < tolerance


def test_another_learning_rate_is_seen_by_the_same_measure(reference: TrainResult) -> None:
    assert largest_distance(reference.losses, short_run(learning_rate=2e-3).losses) > 4e-3


def test_low_precision_is_really_used(reference: TrainResult) -> None:
    assert short_run(precision="bf16", steps=2).losses != reference.losses[:2]
    assert tuned_run(precision="fp8", steps=2).losses != tuned_run(precision="bf16", steps=2).losses


def test_micro_steps_accumulate_to_the_mean_over_the_global_batch() -> None:
    """Two micro-steps of the same place and one of both give the same gradient: compared by the first gradient norm."""
    whole, halves = _tiny("fp32"), _tiny("fp32")
    tokens = torch.randint(256, (4, 33), generator=torch.Generator().manual_seed(5))
    whole(tokens[:, :-1], tokens[:, 1:]).backward()
    for part in (tokens[:2], tokens[2:]):
        (halves(part[:, :-1], part[:, 1:]) / 2).backward()
    for a, b in zip(whole.parameters(), halves.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("in_place", [False, True])
def test_gradients_are_those_of_a_plain_model(in_place: bool) -> None:
    """The same model written the plain way, with torch's own functions and autograd only."""
    model = _tiny("fp32", in_place=in_place)
    tokens = torch.randint(256, (2, 25), generator=torch.Generator().manual_seed(7))
    names = dict(model.named_parameters())
    twins = {name: p.detach().clone().requires_grad_() for name, p in names.items()}
    for _ in range(2):  # the second time gradients are added to those that are there
        model(tokens[:, :-1], tokens[:, 1:]).backward()
        _plain_loss(twins, tokens[:, :-1], tokens[:, 1:]).backward()
    for name, parameter in names.items():
        torch.testing.assert_close(parameter.grad, twins[name].grad, rtol=2e-4, atol=2e-6)


def test_bf16_gradients_are_near_those_of_fp32() -> None:
    exact, low = _tiny("fp32"), _tiny("bf16", in_place=True)
    tokens = torch.randint(256, (2, 25), generator=torch.Generator().manual_seed(7))
    for model in (exact, low):
        for _ in range(2):
            model(tokens[:, :-1], tokens[:, 1:]).backward()
    for a, b in zip(exact.parameters(), low.parameters(), strict=True):
        assert (a.grad - b.grad).norm() / a.grad.norm() < 0.03


def test_fp8_on_a_device_without_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    without = dataclasses.replace(find_device("cpu"), fp8=None, name="old card")
    with pytest.raises(MachineError, match="old card has no fp8"):
        fast_loop.resolve(fast_loop.FastLlmOptions(precision="fp8"), without)


def _tiny(precision: str, *, in_place: bool = False) -> Llama:
    device = find_device("cpu")
    model = Llama(
        LLAMAS["tiny"],
        rules=ProductRules(precision=precision, fp8=device.fp8),  # type: ignore[arg-type]
        pieces=make_pieces(compile=False),
        accumulation=Accumulation(in_place),
        device=device,
        checkpointing="none",
        loss_chunk=16,
    )
    initialize(model, "", layers=2, seed=1, device=device.torch)
    model.refresh()
    return model


def _plain_loss(p: dict[str, Tensor], tokens: Tensor, targets: Tensor) -> Tensor:
    size, f = LLAMAS["tiny"], nn.functional
    x = p["embedding"][tokens]
    batch, positions, _ = x.shape
    inverse = size.rope_theta ** (-torch.arange(0, size.head_width, 2) / size.head_width)
    angles = torch.arange(positions)[:, None] * inverse[None, :]
    turn = torch.polar(torch.ones_like(angles), angles)

    def rotated(v: Tensor) -> Tensor:
        half = size.head_width // 2
        turned = torch.complex(v[..., :half], v[..., half:]) * turn
        return torch.cat((turned.real, turned.imag), -1)

    for layer in range(size.layers):
        at = f"blocks.{layer}."
        n = f.rms_norm(x, (size.width,), p[at + "attention_norm"], size.norm_eps)
        qkv = f.linear(n, p[at + "qkv.weight"]).view(batch, positions, -1, size.head_width).transpose(1, 2)
        q, k, v = qkv.split((size.heads, size.kv_heads, size.kv_heads), dim=1)
        repeat = size.heads // size.kv_heads
        k, v = rotated(k).repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
        scores = rotated(q) @ k.transpose(2, 3) / size.head_width**0.5
        mask = torch.ones(positions, positions, dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(mask, -torch.inf).softmax(-1) @ v
        x = x + f.linear(mixed.transpose(1, 2).flatten(2), p[at + "attention_out.weight"])
        n = f.rms_norm(x, (size.width,), p[at + "mlp_norm"], size.norm_eps)
        gate, up = f.linear(n, p[at + "gate_up.weight"]).chunk(2, -1)
        x = x + f.linear(f.silu(gate) * up, p[at + "down.weight"])
    logits = f.linear(f.rms_norm(x, (size.width,), p["norm"], size.norm_eps), p["head.weight"])
    return f.cross_entropy(logits.flatten(0, 1), targets.reshape(-1))
