"""The state that a rank of PyTorch saves after it lost its peers: that of a finished step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from muster_trainer.pytorch.finished_state import FinishedState
from muster_trainer.pytorch.parallel import ParallelModel

pytestmark = pytest.mark.torch


def trained() -> tuple[torch.nn.Module, FinishedState]:
    """A model after 12 steps, and in the passes of step 13. Its buffer counts passes."""
    module = torch.nn.BatchNorm1d(1)
    count_of(module).fill_(12)
    finished = FinishedState(module, is_kept=True)
    finished.copy()
    count_of(module).add_(1)
    return module, finished


def count_of(module: torch.nn.Module) -> torch.Tensor:
    return module.get_buffer("num_batches_tracked")


def test_a_rank_saves_the_buffers_of_the_step_that_it_has_finished() -> None:
    module, finished = trained()
    assert finished.restore()
    assert count_of(module).item() == 12


def test_the_passes_of_a_step_stay_once_they_count() -> None:
    module, finished = trained()
    finished.drop()
    with finished.updating():
        assert not finished.restore()
    assert finished.restore()
    assert count_of(module).item() == 13


def test_a_rank_whose_update_has_failed_saves_nothing() -> None:
    _, finished = trained()
    with pytest.raises(RuntimeError, match="needs a peer"), finished.updating():
        raise RuntimeError("the optimizer needs a peer")
    assert not finished.restore()


def test_gradients_are_clipped_before_the_votes_and_not_in_the_update() -> None:
    """The norm needs the other ranks. An update does not."""
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([3.0, 4.0])
    model: Any = SimpleNamespace(
        context=SimpleNamespace(task=SimpleNamespace(config=SimpleNamespace(gradientClipNorm=1.0))),
        layout=SimpleNamespace(holds_whole_model=True),
        module=SimpleNamespace(parameters=lambda: [weight]),
    )
    ParallelModel.clip_gradients(model)
    assert torch.allclose(weight.grad, torch.tensor([0.6, 0.8]))
