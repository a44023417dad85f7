"""The learning rate of each step, and other code that sets it."""

from __future__ import annotations

import pytest
import torch

from muster_contract.errors import BadConfiguration
from muster_trainer.pytorch.optimizers import set_rates

pytestmark = pytest.mark.torch
REFUSED = r"scheduler.* schedule\(step, config\)"


def optimizer() -> torch.optim.Optimizer:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(2))], "lr": rate} for rate in (0.1, 0.3)]
    return torch.optim.SGD(groups)


def rates(of: torch.optim.Optimizer) -> list[float]:
    return [group["lr"] for group in of.param_groups]


def test_each_group_gets_the_share_of_its_own_rate() -> None:
    made = optimizer()
    for share in (0.5, 0.0, 1.0, 0.25):
        set_rates(made, share)
        assert rates(made) == [0.1 * share, 0.3 * share]


def test_a_scheduler_of_the_optimizer_is_refused_with_the_remedy() -> None:
    made = optimizer()
    torch.optim.lr_scheduler.StepLR(made, step_size=10)
    with pytest.raises(BadConfiguration, match=REFUSED):
        set_rates(made, 1.0)


@pytest.mark.parametrize("group", [0, 1])
def test_a_rate_that_changes_between_two_steps_is_refused_with_the_remedy(group: int) -> None:
    made = optimizer()
    set_rates(made, 1.0)
    made.param_groups[group]["lr"] *= 0.5
    with pytest.raises(BadConfiguration, match=REFUSED):
        set_rates(made, 1.0)
