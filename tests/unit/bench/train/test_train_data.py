"""Batches: equal for the same place in the global batch, fresh otherwise, learnable."""

from __future__ import annotations

from looping import each
from requirements import require_torch

require_torch()

import torch  # noqa: E402

from windlass.bench.train.data import RandomImages, RandomTokens  # noqa: E402

CPU = torch.device("cpu")


def _tokens(seed: int = 1) -> RandomTokens:
    return RandomTokens(vocabulary=256, sequence=16, batch=4, seed=seed, device=CPU)


def test_a_batch_depends_on_seed_step_and_place_alone() -> None:
    one, other = _tokens(), _tokens()
    other.batch(9, 9)
    assert torch.equal(one.batch(3, 1)[0], other.batch(3, 1)[0])


@each(("step", "place", "seed"), [(4, 1, 1), (3, 2, 1), (3, 1, 2)])
def test_another_step_place_or_seed_is_another_batch(step: int, place: int, seed: int) -> None:
    assert not torch.equal(_tokens().batch(3, 1)[0], _tokens(seed).batch(step, place)[0])


def test_targets_are_the_next_tokens_and_every_second_one_follows_from_its_neighbour() -> None:
    tokens, targets = _tokens().batch(0, 0)
    assert tokens.shape == targets.shape == (4, 16)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    assert torch.equal(targets[:, 0::2], (tokens[:, 0::2] * 5 + 7) % 256)
    assert len(set(tokens[:, 0::2].flatten().tolist())) > 16


def test_images_are_fresh_and_channels_last() -> None:
    data = RandomImages(image=32, classes=10, batch=4, seed=1, dtype=torch.bfloat16, device=CPU)
    images, labels = data.batch(0, 0)
    assert images.shape == (4, 3, 32, 32)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert labels.max() < 10
    assert not torch.equal(images, data.batch(1, 0)[0])
