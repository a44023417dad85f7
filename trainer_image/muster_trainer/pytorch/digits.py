"""The bundled task `digits` in PyTorch, by the contract of `muster_trainer.tasks.module`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from muster_trainer.tasks.config import Config
from muster_trainer.tasks.digits import SIDE, Convolution, Dense, dataset, layers

__all__ = ["build_model", "dataset", "loss", "metrics", "tensor_parallel_plan"]


def build_model(config: Config) -> nn.Module:
    modules: list[nn.Module] = []
    channels, side = 1, SIDE
    width = SIDE * SIDE
    if config.model == "cnn":
        modules.append(nn.Unflatten(1, (1, SIDE, SIDE)))
    flat = config.model == "mlp"
    for layer in layers(config):
        if isinstance(layer, Dense):
            if not flat:
                modules.append(nn.Flatten())
                width, flat = channels * side * side, True
            modules.append(nn.Linear(width, layer.units))
            width = layer.units
            if layer.relu:
                modules.append(nn.ReLU())
        elif isinstance(layer, Convolution):
            modules += [nn.Conv2d(channels, layer.filters, kernel_size=3, padding=1), nn.ReLU()]
            channels = layer.filters
        else:
            modules.append(nn.MaxPool2d(2))
            side //= 2
    return nn.Sequential(*modules)


def loss(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, batch[1], reduction="none")


def metrics(outputs: torch.Tensor, batch: Any) -> dict[str, torch.Tensor]:
    return {"accuracy": (outputs.argmax(dim=1) == batch[1]).float()}


def tensor_parallel_plan(model: nn.Module) -> dict[str, str]:
    """The plan for pairs of dense layers. On each rank, the first layer computes a part of its outputs, and the second uses that part as
    inputs. With an odd number of layers, the last one stays whole."""
    dense = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    paired = dense[: len(dense) // 2 * 2]
    return {name: "Rowwise" if place % 2 else "Colwise" for place, name in enumerate(paired)}
