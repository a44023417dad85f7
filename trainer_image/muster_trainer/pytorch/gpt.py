"""The bundled task `gpt` in PyTorch: a decoder-only transformer (Radford et al., 2019). It is a Sequential, so that every
strategy can cut it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from muster_trainer.tasks.config import Config
from muster_trainer.tasks.gpt import CHARACTERS, check, dataset

__all__ = ["build_model", "dataset", "loss", "metrics", "tensor_parallel_plan"]


class Embedding(nn.Module):
    """Embeds characters (n, context) and their positions into vectors (n, context, width)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.character = nn.Embedding(CHARACTERS, config.width)
        self.place = nn.Embedding(config.context, config.width)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(characters.shape[1], device=characters.device)
        vectors: torch.Tensor = self.character(characters) + self.place(positions)
        return vectors


class Block(nn.Module):
    """Attention and a dense part, each with a residual connection.

    The number of heads follows from the width on this rank, because under tensor parallelism a rank has some of the heads.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.width
        self.head_width = width // config.heads
        self.before_attention = nn.LayerNorm(width)
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.joined = nn.Linear(width, width)
        self.before_dense = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        vectors = vectors + self.dropout(self._attend(self.before_attention(vectors)))
        dense = self.down(functional.gelu(self.up(self.before_dense(vectors))))
        outputs: torch.Tensor = vectors + self.dropout(dense)
        return outputs

    def _attend(self, vectors: torch.Tensor) -> torch.Tensor:
        samples, positions, _ = vectors.shape
        parts = (layer(vectors) for layer in (self.query, self.key, self.value))
        query, key, value = (part.view(samples, positions, -1, self.head_width).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        attended: torch.Tensor = self.joined(mixed.transpose(1, 2).flatten(2))
        return attended


def build_model(config: Config) -> nn.Module:
    check(config)
    blocks = [Block(config) for _ in range(config.layers)]
    return nn.Sequential(Embedding(config), *blocks, nn.LayerNorm(config.width), nn.Linear(config.width, CHARACTERS))


def loss(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(outputs.transpose(1, 2), batch[1], reduction="none").mean(dim=1)


def metrics(outputs: torch.Tensor, batch: Any) -> dict[str, torch.Tensor]:
    return {"accuracy": (outputs.argmax(dim=2) == batch[1]).float().mean(dim=1)}


def tensor_parallel_plan(model: nn.Module) -> dict[str, str]:
    """The cut of Megatron (Shoeybi et al., 2019). Ranks divide the heads and the inner width, with two all-reduces in each block."""
    cut_outputs = dict.fromkeys(("*.query", "*.key", "*.value", "*.up"), "Colwise")
    return cut_outputs | dict.fromkeys(("*.joined", "*.down"), "Rowwise")
