"""The state that a rank of PyTorch saves after it lost its peers: that of a finished step."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from muster_trainer.pytorch.engine import TorchEngine, _Buffers
from muster_trainer.pytorch.parallel import ParallelModel

pytestmark = pytest.mark.torch


class Lost:
    """An engine that has sent its votes for step 13 and has lost its peers. Its model has one buffer, which counts passes."""

    def __init__(self) -> None:
        self.module = torch.nn.BatchNorm1d(1)
        self.updates: list[int] = []
        self.rescues = True
        self.parallel: Any = SimpleNamespace(update=self.updates.append, module=self.module, layout=SimpleNamespace(holds_whole_model=True))
        self._buffers = _Buffers(self.module, are_copied=True)
        self._buffers.copy()
        self.count.add_(1)  # the passes of step 13

    @property
    def count(self) -> torch.Tensor:
        return self.module.get_buffer("num_batches_tracked")

    def _update(self, step: int) -> None:
        TorchEngine._update(self, step)  # type: ignore[arg-type]

    def _part(self, directory: Path, *, room: int, alone: bool) -> Any:
        return "the part"

    def rescue(self) -> Any:
        return TorchEngine.rescue(self, Path())  # type: ignore[arg-type]


def test_a_rank_saves_the_buffers_of_the_step_that_it_has_finished() -> None:
    lost = Lost()
    assert lost.rescue() == "the part"
    assert (lost.count.item(), lost.updates) == (0, [])


def test_a_rank_whose_update_has_failed_saves_nothing() -> None:
    def fail(step: int) -> None:
        raise RuntimeError("the optimizer needs a peer")

    lost = Lost()
    lost.parallel.update = fail
    with pytest.raises(RuntimeError, match="needs a peer"):
        lost._update(12)
    assert lost.rescue() is None


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
