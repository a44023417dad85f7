"""The bundled task `recommender` in PyTorch: matrix factorisation with biases (Koren et al., 2009)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from muster_trainer.tasks.config import Config
from muster_trainer.tasks.recommender import FIRST_SCALE, dataset

__all__ = ["build_model", "dataset", "loss", "metrics"]


class Factors(nn.Module):
    """Computes from (user, item) pairs, shape (n, 2), the logits that the user likes the item, shape (n,)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(config.users, config.embedding), nn.Embedding(config["items"], config.embedding)
        self.user_bias, self.item_bias = nn.Embedding(config.users, 1), nn.Embedding(config["items"], 1)
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=FIRST_SCALE)
        for table in (self.user_bias, self.item_bias):
            nn.init.zeros_(table.weight)

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        user, item = pairs[:, 0], pairs[:, 1]
        match = (self.user(user) * self.item(item)).sum(dim=1)
        logits: torch.Tensor = match + self.user_bias(user)[:, 0] + self.item_bias(item)[:, 0]
        return logits


def build_model(config: Config) -> nn.Module:
    return Factors(config)


def loss(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
    return nn.functional.binary_cross_entropy_with_logits(outputs, batch[1], reduction="none")


def metrics(outputs: torch.Tensor, batch: Any) -> dict[str, torch.Tensor]:
    return {"accuracy": ((outputs > 0) == (batch[1] > 0.5)).float()}
