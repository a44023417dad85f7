"""The learning rate of each step."""

from __future__ import annotations

import torch

from muster_trainer.contract import BadConfiguration

_SET = "muster_lr"
RATES = frozenset({"lr", "initial_lr", _SET})
"""What of a parameter group is a rate."""


def set_rates(optimizer: torch.optim.Optimizer, share: float) -> None:
    """Gives every parameter group `share` of the rate that it was made with.

    Raises BadConfiguration where another has set rates: what a scheduler counts is in no checkpoint, and a resumed run would have others.
    """
    for group in optimizer.param_groups:
        scheduled = "initial_lr" in group if _SET not in group else group["lr"] != group[_SET]
        if scheduled:
            raise BadConfiguration(
                "the optimizer's learning rate is set by a scheduler, which no checkpoint holds; leave it out and define "
                "schedule(step, config), which gives the share of the learning rate that a step is done with"
            )
        group["lr"] = group[_SET] = group.setdefault("initial_lr", group["lr"]) * share
