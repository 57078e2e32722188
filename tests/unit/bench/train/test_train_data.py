"""Batches: equal for the same place in the global batch, fresh otherwise, learnable, checked when from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from looping import each
from requirements import require_torch

require_torch()

import torch  # noqa: E402

from windlass.bench.train.data import RandomImages, RandomTokens, TokenFile  # noqa: E402
from windlass.errors import UsageError  # noqa: E402

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


def _file(path: Path, numbers: list[int], width: int = 2) -> Path:
    path.write_bytes(b"".join(n.to_bytes(width, "little") for n in numbers))
    return path


def _open(path: Path, sequence: int = 8) -> TokenFile:
    return TokenFile(path, vocabulary=100, sequence=sequence, batch=2, seed=1, device=CPU)


@each(("name", "width"), [("t.bin", 2), ("t.u32", 4)])
def test_windows_of_a_file_are_runs_of_its_tokens(tmp_path: Path, name: str, width: int) -> None:
    tokens, targets = _open(_file(tmp_path / name, list(range(100)), width)).batch(0, 0)
    assert torch.equal(tokens + 1, targets)
    assert torch.equal(tokens[:, 1:] - 1, tokens[:, :-1])


def test_a_file_that_just_fits_one_window_can_be_read(tmp_path: Path) -> None:
    tokens, targets = _open(_file(tmp_path / "t.bin", list(range(9)))).batch(0, 0)
    assert tokens[0].tolist() == list(range(8))
    assert targets[0].tolist() == list(range(1, 9))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing\.bin: no such token file"):
        _open(tmp_path / "nothing.bin")


@each("content", [b"", b"\0" * 16, b"\0" * 19])
def test_a_file_too_short_or_torn_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.bin"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="not a whole number of tokens"):
        _open(path)


def test_a_token_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="token 100 is outside the vocabulary of 100"):
        _open(_file(tmp_path / "t.bin", [100] * 20)).batch(0, 0)
