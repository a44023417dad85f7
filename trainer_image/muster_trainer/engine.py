"""What a strategy does for the training loop: the seam between `loop` and the frameworks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from muster_trainer.contract import BadConfiguration, TrainerSpec
from muster_trainer.data import Order
from muster_trainer.tasks.module import Task


@dataclass(frozen=True)
class StepOutcome:
    """What all ranks know after a step: the mean loss of its samples, what any of them asked for, and whether any is busy.

    `staleness` of an asynchronous strategy: how many updates others made between the reading of the parameters and the
    update with their gradient. None: it is synchronous. `input_seconds`: the longest time that a rank waited for samples.
    `own_seconds`: how long this rank worked, as against waiting for others; None: the strategy cannot tell. `tells_passes`: the forward
    and backward pass are in it; else ranks wait for each other all through them.
    """

    loss: float
    stop: bool
    save: bool
    busy: bool
    staleness: int | None = None
    input_seconds: float = 0.0
    own_seconds: float | None = None
    tells_passes: bool = False


@dataclass(frozen=True)
class Part:
    """One rank's part of a checkpoint.

    `copied`: it holds a copy of the state, of which the next steps change nothing. `write` writes its files, in any thread and
    without the other ranks; it gives their names, and what rank 0 has to know of them, as JSON can hold it. `finish`, on rank 0, is
    given the latter of all ranks in their order; it writes what belongs to all, and gives the names of these files.
    """

    copied: bool
    write: Callable[[], tuple[list[str], Any]]
    finish: Callable[[list[Any]], list[str]]


class Engine(Protocol):
    """One process's part of a world. Every rank calls the same methods in the same order.

    Each method raises PeerLost where another member is gone, and UserError where the user's code fails.
    """

    rank: int
    world: int
    devices: int
    learning_rate: float
    rescues: bool
    """Whether `rescue` may give anything."""
    refuses: frozenset[str]
    """What cannot be written into `config` here, though other engines take it: a field, or a field with a value ("nanLoss: Skip")."""

    def fingerprint(self) -> Mapping[str, Any]:
        """`framework`, `version`, `libraries`, `devices` and `threads` of this process."""

    def weigh(self) -> tuple[int, int]:
        """Bytes of the gradients, and of all that training keeps from step to step: weights, gradients, state of the optimizer."""

    def broadcast(self, text: str) -> str:
        """Rank 0's text, on every rank."""

    def gather(self, text: str) -> list[str]:
        """The texts of all ranks in their order, on every rank."""

    def expect(self, order: Order, steps: range) -> None:
        """Tells the steps that will come, in this order, so that their samples can be read ahead. Once, before the first."""

    def step(self, indices: np.ndarray, *, step: int, stop: bool, save: bool, busy: bool) -> StepOutcome:
        """Trains on the samples `indices` of the whole world; `stop`, `save` and `busy` are this rank's votes."""

    def evaluate(self, batches: Iterable[np.ndarray]) -> Mapping[str, float]:
        """Mean loss and metrics over the samples of the test set in `batches`."""

    def snapshot(self, directory: Path, *, room: int) -> Part:
        """This rank's part of model and optimizer, to be written to `directory`; a copy where that takes no more than `room` bytes."""

    def rescue(self, directory: Path) -> Part | None:
        """The whole state as the last step left it, of a rank that has lost its peers: no collective is made. None: this rank has not
        all of it, or has begun to change it."""

    def load(self, directory: Path) -> None:
        """Reads what `save` wrote. Raises BadConfiguration where it does not fit the model."""

    def close(self) -> None:
        """Leaves the world in an orderly way."""


def rate_share(task: Task, step: int) -> float:
    """The share of the learning rate that `step` (from 0) is done with: the task's schedule, which grows evenly over `warmupSteps` steps.

    Gradual warm-up of Goyal et al., 2017 (section 2.2), who begin with the rate of one device; here it begins near 0. A function of the
    step alone: a resumed run has the rates of one that was never interrupted.
    """
    warmed = min((step + 1) / task.config.warmupSteps, 1.0) if task.config.warmupSteps else 1.0
    return warmed * task.scheduled(step)


def scaled_learning_rate(spec: TrainerSpec, base: float, *, devices: int) -> float:
    """The learning rate for a world of `devices`, as batch.learningRateScaling says (Goyal et al., 2017: linear)."""
    factors = {"None": 1.0, "Linear": float(devices), "Sqrt": devices**0.5}
    scaling = spec.batch.learning_rate_scaling
    if scaling not in factors:
        raise BadConfiguration(f"spec.batch.learningRateScaling: {scaling!r} is none of {', '.join(factors)}")
    return base * factors[scaling]
