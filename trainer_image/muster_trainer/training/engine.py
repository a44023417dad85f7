"""The interface between the training loop and the frameworks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from muster_trainer.data import Order
from muster_trainer.snapshots.choice import Found
from muster_trainer.snapshots.interval import StepsBetween
from muster_trainer.tasks.module import Task
from muster_trainer.training.agreement import Ranks
from muster_trainer.training.survivor import Kept


@dataclass(frozen=True)
class StepOutcome:
    """What all ranks know after a step: the mean loss of its samples, what any of them requested, and whether any is busy.

    `staleness`: the number of updates by others between the reading of the parameters and the update with their gradient. None for a
    synchronous strategy. `input_seconds`: the longest time that a rank waited for samples.
    `own_seconds`: how long this rank worked without waiting for others; None: the strategy does not measure it. `measures_passes`: it
    includes the forward and backward pass; otherwise ranks wait for each other during these.
    """

    loss: float
    stop: bool
    save: bool
    busy: bool
    staleness: int | None = None
    input_seconds: float = 0.0
    own_seconds: float | None = None
    measures_passes: bool = False


@dataclass(frozen=True)
class Part:
    """One rank's part of a checkpoint.

    `copied`: it has a copy of the state, which the next steps do not change. `write` writes its files, in any thread and without the
    other ranks. It returns their names and details for rank 0, as a JSON value. Rank 0 calls `finish` with the details of all ranks
    in their order. It writes the common files and returns their names.
    """

    copied: bool
    write: Callable[[], tuple[list[str], Any]]
    finish: Callable[[list[Any]], list[str]]


class PeersMemory(Protocol):
    """Snapshots in the memory of replicas. Every rank calls the same methods in the same order."""

    between: StepsBetween
    """After which steps snapshots are due."""
    copies: int
    """Replicas that hold each part besides the first."""
    is_on: bool
    """False once snapshots have turned out not to fit."""

    @property
    def newest_part(self) -> int:
        """The newest step of which some rank holds a part."""

    def newest(self) -> Found | None:
        """The newest complete snapshot, verified. All ranks find the same."""

    def restore(self, found: Found) -> None:
        """Restores a snapshot. Raises BadConfiguration if it does not fit the model."""

    def start(self, step: int) -> None:
        """Prepares for new snapshots, after a restore. Training begins after `step`."""

    def begin(self, step: int, event: str | None, on_complete: Callable[[int | None], object]) -> None:
        """Takes a snapshot after `step`, with the event of the step as JSON. First waits until the previous one is complete. Calls
        `on_complete` with the bytes of all snapshots, in another thread; None if snapshots do not fit."""

    def land(self) -> None:
        """Waits until the snapshot under way is complete."""


class Survival(Protocol):
    """How a process goes on in another world after the loss of a peer. The new world has the same shape."""

    def hang_up(self) -> None:
        """Leaves the world that has lost a member, without a collective. The state is then that after the last step."""

    def rejoin(self, done: int, meanwhile: Callable[[], None]) -> None:
        """Joins the world that the environment names, with the state after step `done`. `meanwhile` is called again and again while other
        ranks are waited for, and may raise to end that."""

    def adopt(self) -> None:
        """Gives all ranks the newest state that one has kept. Every rank calls it, also new processes."""


class EvaluationEngine(Protocol):
    """Reads checkpoints and measures the model. The evaluator needs nothing else."""

    def fingerprint(self) -> Mapping[str, Any]:
        """`framework`, `version`, `libraries`, `devices` and `threads` of this process."""

    def evaluate(self, batches: Iterable[np.ndarray]) -> Mapping[str, float]:
        """Mean loss and metrics over the samples of the test set in `batches`."""

    def load(self, directory: Path) -> None:
        """Reads a checkpoint. Raises BadConfiguration if it does not fit the model."""

    def close(self) -> None:
        """Leaves the world in an orderly way."""


class Engine(EvaluationEngine, Ranks, Protocol):
    """One process's part of a world. Every rank calls the same methods in the same order.

    An engine inherits this class and is final, so that mypy compares all of its methods with these.

    Each method raises PeerLost if another member is gone, and UserError if the user's code fails.
    """

    world: int
    devices: int
    learning_rate: float
    rescues: bool = False
    """Whether `rescue` of this rank may return a part."""
    survival: Survival | None = None
    """Absent: this process ends after the loss of a peer."""
    kept: Kept | None = None
    """What the ranks of this world have kept of the one before."""
    memory: PeersMemory | None = None
    """Absent: no snapshots are kept in memory."""
    refuses: frozenset[str] = frozenset()
    """Settings of `config` that this engine does not accept: a field, or a field with a value ("nanLoss: Skip")."""

    def weigh(self) -> tuple[int, int]:
        """Bytes of the gradients, and of the whole state of the training: weights, gradients, state of the optimizer."""

    def expect(self, order: Order, steps: range) -> None:
        """Names the coming steps in their order, so that their samples can be read ahead. Called once, before the first step."""

    def step(self, indices: np.ndarray, *, step: int, stop: bool, save: bool, busy: bool) -> StepOutcome:
        """Trains on the samples `indices` of the whole world; `stop`, `save` and `busy` are this rank's votes."""

    def snapshot(self, directory: Path, *, room: int) -> Part:
        """This rank's part of model and optimizer, to be written to `directory`. It is a copy if that takes at most `room` bytes."""

    def rescue(self, directory: Path) -> Part | None:
        """The whole state after the last step, without a collective, for a rank that has lost its peers. None: this rank does not have
        all of it, or has begun to change it."""
        return None

    def disconnect(self) -> None:
        """Makes the collective under way fail, on this rank and on others. Any thread may call it."""
        return

    def keep(self, step: int, event: str | None) -> bool:
        """The same into memory. Returns whether this rank has the state after `step` there."""
        return False


def rate_share(task: Task, step: int) -> float:
    """The factor of the learning rate at `step` (from 0): the task's schedule, with a linear warm-up over `warmupSteps` steps.

    Gradual warm-up of Goyal et al., 2017 (section 2.2), but from near 0 instead of the rate of one device. It depends only on the
    step, so a resumed run has the same rates.
    """
    warmed = min((step + 1) / task.config.warmupSteps, 1.0) if task.config.warmupSteps else 1.0
    return warmed * task.scheduled(step)
