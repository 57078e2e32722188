"""A training in this very process, of one rank."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from windlass.runtime import Snapshot


class Training:
    """A model that learns noise, with dropout: every step needs the generators to be right."""

    def __init__(self, *, width: int = 8, optimizer: str = "adamw") -> None:
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        self.model = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Dropout(0.5), nn.Linear(width, 1))
        makers = {
            "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
            "sgd": lambda p: torch.optim.SGD(p, lr=1e-2),
            "momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
        }
        self.optimizer = makers[optimizer](self.model.parameters())

    def advance(self) -> str:
        inputs = torch.randn(6, 4) + random.random() + float(np.random.rand())
        loss = self.model(inputs).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach()).hex()

    def run(self, folder: Path, steps: int, *, stop_at: int | None = None, **options: Any) -> dict[int, str]:
        options = {"every_steps": 3, "background": False, **options}
        snapshot = Snapshot(folder, model=self.model, optimizer=self.optimizer, **options)
        seen = {}
        for step in snapshot.resume(range(steps)):
            seen[step] = self.advance()
            if step == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
            snapshot.step(step)
        return seen


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())
