"""The ResNet: its known sizes, its shortcuts to speed against the plain forms, and that it learns."""

from __future__ import annotations

import pytest

from looping import each
from requirements import require_torch

require_torch()

import torch  # noqa: E402

import unit.bench.train.training  # noqa: E402, F401  (one thread)
from fast_resnet import model as fast  # noqa: E402
from fast_resnet.loop import FastResNetOptions, train_fast_resnet  # noqa: E402
from windlass.bench.train.options import RESNETS, ResNetOptions  # noqa: E402
from windlass.bench.train.resnet import ResNet, train_resnet  # noqa: E402


@each(("name", "parameters"), [("resnet50", 25_557_032), ("resnet101", 44_549_160)])
def test_sizes_are_the_published_ones(name: str, parameters: int) -> None:
    with torch.device("meta"):
        models = ResNet(RESNETS[name], 1_000), fast.ResNet(RESNETS[name], 1_000)
    assert [sum(p.numel() for p in model.parameters()) for model in models] == [parameters, parameters]


def test_the_tuned_step_without_its_shortcuts_is_the_plain_one() -> None:
    asked = {"model": "resnet-tiny", "image": 32, "batch": 4, "steps": 3, "warmup": 0, "device": "cpu"}
    plain = train_resnet(ResNetOptions(**asked, precision="fp32"))  # type: ignore[arg-type]
    tuned = train_fast_resnet(
        FastResNetOptions(
            **asked,  # type: ignore[arg-type]
            precision="fp32",
            channels_last=False,
            pointwise_as_matmul=False,
            stem_patches=False,
        )
    )
    assert tuned.losses == pytest.approx(plain.losses, rel=1e-5)


def test_the_stem_over_patches_is_the_same_convolution() -> None:
    plain, patches = fast.Stem(over_patches=False).double(), fast.Stem(over_patches=True).double()
    patches.load_state_dict(plain.state_dict())
    x = torch.randn(2, 3, 64, 96, dtype=torch.float64)
    y, z = plain(x), patches(x)
    torch.testing.assert_close(y, z)
    towards = torch.randn_like(y)
    y.backward(towards)
    z.backward(towards)
    torch.testing.assert_close(plain.weight.grad, patches.weight.grad)


def test_pointwise_convolutions_as_products_change_nothing() -> None:
    images, labels = torch.randn(2, 3, 64, 64, dtype=torch.float64), torch.tensor([1, 2])
    gradients = []
    for as_matmul in (False, True):
        torch.manual_seed(0)
        model = fast.ResNet(RESNETS["resnet-tiny"], 10, as_matmul=as_matmul).double()
        model.to(memory_format=torch.channels_last)
        model(images, labels).backward()
        gradients.append([p.grad for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "amp"])
def test_it_learns(precision: str) -> None:
    options = ResNetOptions(
        model="resnet-tiny",
        image=32,
        batch=16,
        steps=25,
        warmup=0,
        device="cpu",
        precision=precision,  # type: ignore[arg-type]
    )
    result = train_resnet(options)
    assert sum(result.losses[-5:]) / 5 < sum(result.losses[:5]) / 5 - 1.0
    assert len(result.step_s) == 25


@pytest.mark.timeout(180)
@pytest.mark.parametrize("low", ["bf16", "amp"])
def test_low_precision_follows_fp32_at_first(low: str) -> None:
    runs = [
        train_resnet(
            ResNetOptions(
                model="resnet-tiny",
                image=32,
                batch=16,
                steps=6,
                warmup=0,
                device="cpu",
                precision=precision,  # type: ignore[arg-type]
                learning_rate=1e-3,
            )
        )
        for precision in ("fp32", low)
    ]
    for a, b in zip(runs[0].losses, runs[1].losses, strict=True):
        assert abs(a - b) / a < 0.03
