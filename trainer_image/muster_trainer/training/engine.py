"""The interface between the training loop and the frameworks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from muster_trainer.data import Order
from muster_trainer.snapshots.choice import CompleteSnapshot
from muster_trainer.snapshots.interval import StepsBetween
from muster_trainer.tasks.module import Task
from muster_trainer.training.agreement import Ranks
from muster_trainer.training.survivor import SurvivorSteps


@dataclass(frozen=True)
class StepOutcome:
    """The result of a step, on all ranks: the mean loss of its samples, the requests of any rank, and whether any rank is busy.

    `staleness` is the number of updates by other workers between the reading of the parameters and the update with their gradient. It is
    None for a synchronous strategy. `input_seconds` is the longest time that a rank waited for samples.
    `own_seconds` is the time in which this rank worked without waiting for others. It is None if the strategy does not measure it.
    `measures_passes` is True if that time includes the forward and backward passes. Otherwise ranks wait for each other during the passes.
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

    `copied` is True if the part has a copy of the state, so that the next steps may begin before it is written. `write` writes the files of
    this rank, in any thread and without the other ranks. It returns the names of the files and details for rank 0, as a JSON value.
    Rank 0 calls `finish` with the details of all ranks in their order. `finish` writes the common files and returns their names.
    """

    copied: bool
    write: Callable[[], tuple[list[str], Any]]
    finish: Callable[[list[Any]], list[str]]


class PeersMemory(Protocol):
    """Snapshots in the memory of replicas. Every rank calls the same methods in the same order."""

    between: StepsBetween
    """After which steps snapshots are due."""
    copies: int
    """The number of replicas that have a copy of each part, besides the replica of the part."""
    is_on: bool
    """False if snapshots have not fitted into the memory."""

    @property
    def newest_part(self) -> int:
        """The newest step of which any rank has a part."""

    def newest(self) -> CompleteSnapshot | None:
        """The newest complete snapshot, verified; None if there is none. The result is the same on all ranks."""

    def restore(self, snapshot: CompleteSnapshot) -> None:
        """Restores a snapshot. Raises BadConfiguration if it does not fit the model."""

    def start(self, step: int) -> None:
        """Prepares for new snapshots. Call it after a restore. Training begins after `step`."""

    def begin(self, step: int, event: str | None, on_complete: Callable[[int | None], object]) -> None:
        """Takes a snapshot after `step`, with the `event` of the step as JSON. Before that, waits until the previous one is complete.

        When the snapshot is complete, calls `on_complete` in another thread with the bytes of all snapshots, or None if they do not fit.
        """

    def store_alone(self, step: int, event: str | None) -> bool:
        """Stores this rank's part of the state after `step`, the last one, without a collective. Returns whether the memory has it."""

    def finish(self) -> None:
        """Waits until the snapshot that `begin` has begun is complete."""


class Survival(Protocol):
    """The methods by which a process continues in another world after the loss of a peer. The new world has the same shape."""

    survivor_steps: SurvivorSteps | None
    """The steps of the states that survivors bring into this world. None in the first attempt."""

    def abandon_world(self) -> None:
        """Leaves the world that has lost a member, without a collective. The state is then the one after the last step."""

    def rejoin(self, done: int, meanwhile: Callable[[], None]) -> None:
        """Joins the world that the environment names, with the state after step `done`. While it waits for other ranks, it repeatedly calls
        `meanwhile`, which may raise to end the wait."""

    def adopt(self) -> None:
        """Copies the newest state that any rank has to all ranks. Every rank calls it, also new processes."""


class EvaluationEngine(Protocol):
    """An engine that reads checkpoints and measures the model. This is enough for the evaluator."""

    def fingerprint(self) -> Mapping[str, Any]:
        """`framework`, `version`, `libraries`, `devices` and `threads` of this process."""

    def evaluate(self, batches: Iterable[np.ndarray]) -> Mapping[str, float]:
        """The mean loss and metrics over the samples of the test set in `batches`. Each batch has indices: int64, shape (n,)."""

    def load(self, directory: Path) -> None:
        """Reads a checkpoint. Raises BadConfiguration if it does not fit the model."""

    def close(self) -> None:
        """Leaves the world in an orderly way."""


class Engine(EvaluationEngine, Ranks, Protocol):
    """The training of one process of a world. Every rank calls the same methods in the same order.

    An engine inherits this class and is final, so that mypy checks all its methods against these.

    Each method raises PeerLost if another member is gone, and UserError if the user's code fails.
    """

    world: int
    devices: int
    learning_rate: float
    rescues: bool = False
    """Whether this rank can save its state after the last step without its peers: to the storage with `rescue`, or to the memory."""
    survival: Survival | None = None
    """None if this process ends after the loss of a peer."""
    memory: PeersMemory | None = None
    """None if the job has no snapshots in memory."""
    refuses: frozenset[str] = frozenset()
    """Settings of `config` that this engine does not accept: a field, or a field with a value ("nanLoss: Skip")."""

    def weigh(self) -> tuple[int, int]:
        """The bytes of the gradients, and of the whole state of the training: weights, gradients and the state of the optimizer."""

    def expect(self, order: Order, steps: range) -> None:
        """Announces the next steps in their order, so that the engine can read samples ahead. Called once, before the first step."""

    def step(self, indices: np.ndarray, *, step: int, stop: bool, save: bool, busy: bool) -> StepOutcome:
        """Trains on the samples `indices`, which are those of the whole world: int64, shape (n,). `stop`, `save` and `busy` are this rank's
        votes."""

    def part_to_save(self, directory: Path, *, room: int) -> Part:
        """This rank's part of model and optimizer, for a checkpoint in `directory`. It is copied if it takes at most `room` bytes."""

    def rescue(self, directory: Path) -> Part | None:
        """The whole state after the last step, without a collective, for a rank that has lost its peers. None if this rank does not
        have it, or has begun to change the state."""
        return None

    def disconnect(self) -> None:
        """Makes the current collective fail, on this rank and on others. Any thread may call it."""
        return


def rate_share(task: Task, step: int) -> float:
    """The factor of the learning rate at `step` (from 0): the task's schedule, with a linear warm-up over `warmupSteps` steps.

    This is the gradual warm-up of Goyal et al., 2017 (section 2.2), but it begins near 0 instead of at the rate of one device. It depends
    on the step only, so a resumed run has the same rates.
    """
    warmed = min((step + 1) / task.config.warmupSteps, 1.0) if task.config.warmupSteps else 1.0
    return warmed * task.scheduled(step)
