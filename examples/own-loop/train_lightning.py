"""A Lightning program with DDP. A callback of muster_training reports, saves, and ends the training at a stop."""

import os
import sys
import time
from collections.abc import Iterator

import lightning.pytorch as pl
import torch
from torch import nn

import muster_training as muster

STEPS, SAVE_EVERY, BATCH = 60, 10, 64
PAUSE = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0  # seconds after each step, to have time to watch it


class Batches:
    """This rank's samples. They depend on the step alone, so a resumed run sees the same ones."""

    def __init__(self, first: int, rank: int, world: int) -> None:
        self.first, self.rank, self.world = first, rank, world

    def __iter__(self) -> Iterator[torch.Tensor]:
        for step in range(self.first, STEPS):
            yield torch.randn(BATCH, 16, generator=torch.Generator().manual_seed(step))[self.rank :: self.world]


class Sums(pl.LightningModule):
    """Learns to add 16 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, x: torch.Tensor, index: int) -> torch.Tensor:
        time.sleep(PAUSE)
        return nn.functional.mse_loss(self.network(x), x.sum(dim=1, keepdim=True))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)

    def train_dataloader(self) -> Batches:
        return Batches(self.trainer.global_step, self.trainer.global_rank, self.trainer.world_size)


def main() -> None:
    pl.seed_everything(0)
    trainer = pl.Trainer(
        max_steps=STEPS,
        strategy="ddp",
        accelerator="auto",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", 1)),
        callbacks=[muster.lightning_callback(every_steps=SAVE_EVERY)],
        enable_checkpointing=False,
        logger=False,
        enable_progress_bar=False,
    )
    newest = muster.latest()
    trainer.fit(Sums(), ckpt_path=newest / "lightning.ckpt" if newest else None)


if __name__ == "__main__":
    main()
