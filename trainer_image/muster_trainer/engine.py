"""What a strategy does for the training loop: the seam between `loop` and the frameworks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from muster_trainer.contract import BadConfiguration, TrainerSpec
from muster_trainer.data import Order
from muster_trainer.tasks.config import Config


@dataclass(frozen=True)
class StepOutcome:
    """What all ranks know after a step: the mean loss of its samples, and what any of them asked for.

    `staleness` of an asynchronous strategy: how many updates others made between the reading of the parameters and the
    update with their gradient. None: it is synchronous. `input_seconds`: the longest time that a rank waited for samples.
    `own_seconds`: how long this rank worked, as against waiting for others; None: the strategy cannot tell.
    """

    loss: float
    stop: bool
    save: bool
    staleness: int | None = None
    input_seconds: float = 0.0
    own_seconds: float | None = None


class Engine(Protocol):
    """One process's part of a world. Every rank calls the same methods in the same order.

    Each method raises PeerLost where another member is gone, and UserError where the user's code fails.
    """

    rank: int
    world: int
    devices: int
    learning_rate: float

    def fingerprint(self) -> Mapping[str, Any]:
        """`framework`, `version`, `libraries`, `devices` and `threads` of this process."""

    def broadcast(self, text: str) -> str:
        """Rank 0's text, on every rank."""

    def expect(self, order: Order, steps: range) -> None:
        """Tells the steps that will come, in this order, so that their samples can be read ahead. Once, before the first."""

    def step(self, indices: np.ndarray, *, step: int, stop: bool, save: bool) -> StepOutcome:
        """Trains on the samples `indices` of the whole world; `stop` and `save` are this rank's votes."""

    def evaluate(self, batches: Iterable[np.ndarray]) -> Mapping[str, float]:
        """Mean loss and metrics over the samples of the test set in `batches`."""

    def save(self, directory: Path) -> None:
        """Writes model and optimizer; returns on rank 0 when every rank has flushed its files."""

    def load(self, directory: Path) -> None:
        """Reads what `save` wrote. Raises BadConfiguration where it does not fit the model."""

    def close(self) -> None:
        """Leaves the world in an orderly way."""


def warm_up(config: Config, step: int) -> float:
    """The share of the learning rate that `step` (from 0) is done with: it grows evenly over `warmupSteps` steps, then it is 1.

    Gradual warm-up of Goyal et al., 2017 (section 2.2), who begin with the rate of one device; here it begins near 0.
    """
    return min((step + 1) / config.warmupSteps, 1.0) if config.warmupSteps else 1.0


def scaled_learning_rate(spec: TrainerSpec, base: float, *, devices: int) -> float:
    """The learning rate for a world of `devices`, as batch.learningRateScaling says (Goyal et al., 2017: linear)."""
    factors = {"None": 1.0, "Linear": float(devices), "Sqrt": devices**0.5}
    scaling = spec.batch.learning_rate_scaling
    if scaling not in factors:
        raise BadConfiguration(f"spec.batch.learningRateScaling: {scaling!r} is none of {', '.join(factors)}")
    return base * factors[scaling]
