"""Training data: fresh random batches made on the device, or windows of a file of tokens.

A batch depends on the seed, the step and its place in the global batch alone, so that one rank with two micro-steps
and two ranks with one see the same global batch. Random data has something to learn in it: a loss that falls shows
that the step really trains.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from windlass.errors import UsageError

_ALPHABET = 1_024
_CLASSES_SHOWN = 16


class RandomTokens:
    """Pairs of tokens: the first of each is uniform, the second follows from it. Half of the text can be learnt."""

    def __init__(self, *, vocabulary: int, sequence: int, batch: int, seed: int, device: torch.device) -> None:
        self._alphabet = min(vocabulary, _ALPHABET)
        self._shape = (batch, sequence // 2 + 1)
        self._sequence = sequence
        self._seed = seed
        self._generator = torch.Generator(device=device)
        self._device = device

    def batch(self, step: int, place: int) -> tuple[Tensor, Tensor]:
        """Tokens and the tokens that follow them, both (batch, sequence)."""
        self._generator.manual_seed(_mix(self._seed, step, place))
        first = torch.randint(self._alphabet, self._shape, generator=self._generator, device=self._device)
        second = (first * 5 + 7) % self._alphabet
        text = torch.stack((first, second), dim=-1).flatten(1)
        return text[:, : self._sequence], text[:, 1 : self._sequence + 1]


class TokenFile:
    """Random windows of a flat file of little-endian token numbers: uint16 (.bin, .u16) or uint32 (.u32)."""

    def __init__(
        self, path: Path, *, vocabulary: int, sequence: int, batch: int, seed: int, device: torch.device
    ) -> None:
        if not path.is_file():
            raise UsageError(f"{path}: no such token file", hint="give a flat file of uint16 or uint32 token numbers")
        width, kind = (4, torch.uint32) if path.suffix == ".u32" else (2, torch.uint16)
        size = path.stat().st_size
        if size % width or size // width < sequence + 1:
            raise UsageError(
                f"{path}: {size} bytes is not a whole number of tokens for sequences of {sequence}",
                hint=f"it needs at least {(sequence + 1) * width} bytes of {8 * width}-bit numbers",
            )
        self._path = path
        self._text = torch.from_file(str(path), shared=False, size=size // width, dtype=kind)
        self._vocabulary = vocabulary
        self._sequence = sequence
        self._batch = batch
        self._seed = seed
        self._device = device

    def batch(self, step: int, place: int) -> tuple[Tensor, Tensor]:
        """Tokens and the tokens that follow them, both (batch, sequence); an error at a number outside the
        vocabulary."""
        generator = torch.Generator().manual_seed(_mix(self._seed, step, place))
        last = self._text.numel() - self._sequence
        starts = torch.randint(last, (self._batch,), generator=generator).tolist()
        rows = torch.stack([self._text[at : at + self._sequence + 1].long() for at in starts])
        if int(rows.max()) >= self._vocabulary:
            raise UsageError(
                f"{self._path}: token {int(rows.max())} is outside the vocabulary of {self._vocabulary}",
                hint="the file was made with another tokenizer, or with wider numbers",
            )
        if self._device.type != "cpu":
            rows = rows.pin_memory().to(self._device, non_blocking=True)
        return rows[:, :-1], rows[:, 1:]


class RandomImages:
    """Noise over a coarse pattern that depends on the class; only some classes appear, so a short run can learn
    them."""

    def __init__(
        self, *, image: int, classes: int, batch: int, seed: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._shown = min(classes, _CLASSES_SHOWN)
        self._image = image
        self._seed = seed
        self._dtype = dtype
        self._batch = batch
        self._device = device
        self._generator = torch.Generator(device=device)
        patterns = torch.Generator(device=device).manual_seed(seed)
        coarse = torch.randn(self._shown, 3, 7, 7, generator=patterns, device=device) * 0.5
        self._patterns = coarse.to(dtype, memory_format=torch.channels_last)

    def batch(self, step: int, place: int) -> tuple[Tensor, Tensor]:
        """Images (batch, 3, image, image) in channels-last memory, and their classes."""
        self._generator.manual_seed(_mix(self._seed, step, place))
        size = (self._batch, self._image, self._image, 3)
        labels = torch.randint(self._shown, (self._batch,), generator=self._generator, device=self._device)
        noise = torch.randn(size, generator=self._generator, device=self._device, dtype=self._dtype).permute(0, 3, 1, 2)
        pattern = torch.nn.functional.interpolate(self._patterns[labels], size=(self._image, self._image))
        return noise + pattern, labels


def _mix(seed: int, step: int, place: int) -> int:
    """One number from three, different for all that a run meets."""
    return (seed * 1_000_003 + step) * 1_000_003 + place
