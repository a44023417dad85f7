"""The optimizer of a task, and the learning rate of each step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from muster_contract.errors import BadConfiguration
from muster_trainer.tasks.config import Config
from muster_trainer.tasks.module import Task

_SET = "muster_lr"
RATES = frozenset({"lr", "initial_lr", _SET})
"""The entries of a parameter group that are learning rates."""


def build_optimizer(task: Task, model: nn.Module, *, learning_rate: float) -> torch.optim.Optimizer:
    """The optimizer that the task defines, or that its config names.

    DTensors and plain tensors are in separate parameter groups, because some optimizers update a group in one call, which cannot mix them.
    """
    build: Callable[[nn.Module, Config], torch.optim.Optimizer] = task.optimizer or default_optimizer
    optimizer = build(model, task.config.replaced(learningRate=learning_rate))
    groups = []
    for group in optimizer.param_groups:
        split = [one for one in group["params"] if isinstance(one, DTensor)]
        plain = [one for one in group["params"] if not isinstance(one, DTensor)]
        groups += [{**group, "params": split}, {**group, "params": plain}] if split and plain else [group]
    optimizer.param_groups[:] = groups
    return optimizer


def default_optimizer(model: nn.Module, config: Config) -> torch.optim.Optimizer:
    """The optimizer from the keys of the config: optimizer, learningRate, momentum (of SGD), weightDecay."""
    parameters = model.parameters()
    rate, decay = config.learningRate, config.weightDecay
    if config.optimizer == "SGD":
        return torch.optim.SGD(parameters, lr=rate, momentum=config.momentum, weight_decay=decay)
    kind = torch.optim.AdamW if config.optimizer == "AdamW" else torch.optim.Adam
    return kind(parameters, lr=rate, weight_decay=decay)


def set_rates(optimizer: torch.optim.Optimizer, share: float) -> None:
    """Sets the learning rate of each parameter group to `share` times its initial one.

    Raises BadConfiguration if a scheduler has changed rates, because checkpoints do not have its state, and a resumed run would have other
    rates.
    """
    for group in optimizer.param_groups:
        is_scheduled = "initial_lr" in group if _SET not in group else group["lr"] != group[_SET]
        if is_scheduled:
            raise BadConfiguration(
                "the optimizer's learning rate is set by a scheduler, whose state is in no checkpoint; leave it out and define "
                "schedule(step, config), which returns the factor of the learning rate for a step"
            )
        group["lr"] = group[_SET] = group.setdefault("initial_lr", group["lr"]) * share
