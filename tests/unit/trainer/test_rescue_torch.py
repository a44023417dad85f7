"""The state that a rank of PyTorch saves after it lost its peers: that of a finished step."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from muster_contract.trainer_spec import CheckpointSpec
from muster_trainer.pytorch.engine import TorchEngine, _Buffers
from muster_trainer.pytorch.parallel import ParallelModel

pytestmark = pytest.mark.torch


class Lost:
    """An engine that has sent its votes for step 13 and has lost its peers. Its model has one buffer, which counts passes."""

    def __init__(self) -> None:
        self.module = torch.nn.BatchNorm1d(1)
        self.updates: list[int] = []
        self.rescues, self.shards, self._voted_step = True, ("a", "b", "a", "b"), 12
        self.parallel: Any = SimpleNamespace(update=self.updates.append, module=self.module)
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

    def advance(self, *, skip: bool = False) -> None:
        TorchEngine.advance(self, skip=skip)  # type: ignore[arg-type]


def test_a_rank_saves_the_buffers_of_the_step_that_it_has_finished() -> None:
    lost = Lost()
    assert lost.rescue() == "the part"
    assert (lost.count.item(), lost.updates) == (0, [])


@pytest.mark.parametrize(("skip", "updates"), [(False, [12]), (True, [])])
def test_a_rank_that_advances_has_the_buffers_and_the_update_of_the_next_step(skip: bool, updates: list[int]) -> None:
    lost = Lost()
    lost.advance(skip=skip)
    assert lost.rescue() == "the part"
    assert (lost.count.item(), lost.updates, lost._voted_step) == (1, updates, None)


def test_a_rank_whose_update_has_failed_saves_nothing() -> None:
    def fail(step: int) -> None:
        raise RuntimeError("the optimizer needs a peer")

    lost = Lost()
    lost.parallel.update = fail
    with pytest.raises(RuntimeError, match="needs a peer"):
        lost._update(12)
    assert lost.rescue() is None


class World:
    """What decides whether ranks can rescue together."""

    def __init__(self, *shards: str, whole: bool = False, within: bool = False, memory: object = None, storage: bool = True) -> None:
        self.gathered = list(shards)
        layout = SimpleNamespace(holds_whole_model=whole)
        self.parallel: Any = SimpleNamespace(layout=layout, updates_within_passes=within, module=torch.nn.Linear(1, 1))
        self.memory = memory
        self.spec = SimpleNamespace(checkpoint=CheckpointSpec("/checkpoints") if storage else None)

    def gather(self, text: str) -> list[str]:
        return self.gathered

    @property
    def shards(self) -> tuple[str, ...]:
        return TorchEngine._shards(self)  # type: ignore[arg-type]


def test_ranks_rescue_together_if_each_shard_is_on_two_of_them() -> None:
    assert World("a", "b", "a", "b").shards == ("a", "b", "a", "b")
    assert World("a", "a").shards == ("a", "a")


@pytest.mark.parametrize(
    "world",
    [
        pytest.param(World("a", "b", "c", "d"), id="each shard on one rank"),
        pytest.param(World("a", "a", "b"), id="a shard on one rank"),
        pytest.param(World("a", "a", whole=True), id="the whole state"),
        pytest.param(World("a", "a", within=True), id="updates within the passes"),
        pytest.param(World("a", "a", memory=object()), id="snapshots in memory"),
        pytest.param(World("a", "a", storage=False), id="no storage"),
    ],
)
def test_other_ranks_do_not_rescue_together(world: World) -> None:
    assert world.shards == ()


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
