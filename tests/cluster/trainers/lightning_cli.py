"""A regression with Lightning's command line."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LightningCLI
from marks import end_step


class Line(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        # Drawn by step: after a resume in the middle of an epoch, Lightning begins the loader of the epoch anew.
        seed = 2 * self.trainer.global_step + self.trainer.global_rank
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))
        self.loss = torch.nn.functional.mse_loss(self.layer(x), x.sum(1, keepdim=True))
        return self.loss

    def on_train_batch_end(self, *_: Any) -> None:
        end_step(self.trainer.global_step, float(self.loss))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.05)

    def train_dataloader(self) -> Any:
        points = torch.randn(512, 4, generator=torch.Generator().manual_seed(1))
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(points), batch_size=8)


if __name__ == "__main__":
    LightningCLI(Line, seed_everything_default=1)
