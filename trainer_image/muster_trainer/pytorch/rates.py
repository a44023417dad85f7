"""The learning rate of each step."""

from __future__ import annotations

import torch


def set_rates(optimizer: torch.optim.Optimizer, share: float) -> None:
    """Gives every parameter group `share` of the rate that it was made with."""
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * share
