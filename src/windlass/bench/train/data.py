"""Training data: new random batches made on the device.

A batch depends only on the seed, the step and its place in the global batch. So one rank with two micro-steps and two
ranks with one get the same global batch. The random data contains a pattern that a model can learn, so a falling loss
shows that the step really trains.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ALPHABET = 1_024
_CLASSES_SHOWN = 16


class RandomTokens:
    """Pairs of tokens: the first is uniform, the second follows from it. Half of the text can be learnt."""

    def __init__(self, *, vocabulary: int, sequence: int, batch: int, seed: int, device: torch.device) -> None:
        self._alphabet = min(vocabulary, _ALPHABET)
        self._shape = (batch, sequence // 2 + 1)
        self._sequence = sequence
        self._seed = seed
        self._generator = torch.Generator(device=device)
        self._device = device

    def batch(self, step: int, place: int) -> tuple[Tensor, Tensor]:
        """Return tokens and the tokens that follow them, both (batch, sequence)."""
        self._generator.manual_seed(_mix(self._seed, step, place))
        first = torch.randint(self._alphabet, self._shape, generator=self._generator, device=self._device)
        second = (first * 5 + 7) % self._alphabet
        text = torch.stack((first, second), dim=-1).flatten(1)
        return text[:, : self._sequence], text[:, 1 : self._sequence + 1]


class RandomImages:
    """Noise over a coarse pattern that depends on the class. Only some classes occur, so a short run can learn them."""

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
        """Return images (batch, 3, image, image) in channels-last memory, and their classes."""
        self._generator.manual_seed(_mix(self._seed, step, place))
        size = (self._batch, self._image, self._image, 3)
        labels = torch.randint(self._shown, (self._batch,), generator=self._generator, device=self._device)
        noise = torch.randn(size, generator=self._generator, device=self._device, dtype=self._dtype).permute(0, 3, 1, 2)
        pattern = torch.nn.functional.interpolate(self._patterns[labels], size=(self._image, self._image))
        return noise + pattern, labels


def _mix(seed: int, step: int, place: int) -> int:
    """Combine three numbers into one that is unique within a run."""
    return (seed * 1_000_003 + step) * 1_000_003 + place
