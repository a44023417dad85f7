"""Data-parallel training in JAX. Every device holds a copy of the model, and gradients are summed over all devices."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import final

import jax
import numpy as np
import optax

from muster_contract.batch import learning_rate_factor
from muster_contract.errors import TrainerError, UserError
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.data import Order
from muster_trainer.jax import state
from muster_trainer.jax.evaluation import ModelOnDevices
from muster_trainer.jax.input import Coming, batches_of
from muster_trainer.jax.model import seed_of
from muster_trainer.jax.optimizer import default_optimizer
from muster_trainer.jax.programs import Programs, State, keeps_state
from muster_trainer.tasks.averages import SAMPLES_CHECKED, is_check_due
from muster_trainer.tasks.batches import read_batch
from muster_trainer.tasks.module import Task
from muster_trainer.training.agreement import gather
from muster_trainer.training.engine import Engine, Part, StepOutcome, rate_share


@final
class DataParallel(ModelOnDevices, Engine):
    """One process of the world, with all of its devices."""

    refuses: frozenset[str] = frozenset()

    def __init__(self, task: Task, spec: TrainerSpec) -> None:
        super().__init__(task, spec)
        # Only rank 0 can rescue. It hosts the coordination service, and JAX aborts all other processes when that is gone.
        self.rescues = self.rank == 0 and keeps_state(self._world) and self.world > 1 and spec.checkpoint is not None
        self.learning_rate = task.config.learningRate * learning_rate_factor(spec.batch.learning_rate_scaling, self.devices)
        self._optimizer = self._make_optimizer()
        self._state = self._first_state()
        self._is_checked = False
        self._table()  # raises now if the state cannot be saved

    # the engine

    def weigh(self) -> tuple[int, int]:
        gradients, moments = (sum(leaf.nbytes for leaf in jax.tree.leaves(tree)) for tree in self._state)
        return gradients, 2 * gradients + moments

    def expect(self, order: Order, steps: range) -> None:
        portions, self._rows = self._shape_of_shares(order.batch)
        self._programs = Programs(self._world, self._model, self._optimizer, self.task.config, portions=portions)
        requests = (self._shares(order.batch_indices(step))[0] for step in steps)
        self._coming = Coming(batches_of(self.task, self.task.train, requests, spec=self.spec.input))
        self._coming.read()
        gather(self, self._coming.check)
        self._failed = False

    def step(self, indices: np.ndarray, *, step: int, stop: bool, save: bool, busy: bool) -> StepOutcome:
        if self._failed:
            gather(self, self._coming.check)
        self._check(indices, step)
        began, read = time.monotonic(), self._coming.seconds
        weights = self._world.shared(self._shares(indices)[1])
        batch = jax.tree.map(self._world.shared, self._coming.batch)
        seed = self._world.copied(seed_of(self.task.config.seed, step))
        gradients, losses = self._programs.gradients(self._state.parameters, batch, weights, seed)
        jax.block_until_ready(gradients)
        own = time.monotonic() - began + read
        self._coming.read()
        votes = np.zeros((len(self._world.positions), 5), np.float32)
        votes[0] = stop, save, busy, self._coming.failure is not None, read
        with self._world.peers():
            after, losses, votes = self._programs.update(
                self._state,
                gradients,
                losses,
                self._world.shared(votes),
                self._world.copied(np.float32(rate_share(self.task, step))),
            )
            losses, votes = jax.device_get((losses, votes))
            jax.block_until_ready(after)
        self._state = after
        total, weight = losses.astype(np.float64).sum(axis=0)
        stops, saves, works, self._failed = (bool(column.any()) for column in votes.T[:4])
        return StepOutcome(
            loss=float(total / weight) if weight else math.nan,
            stop=stops,
            save=saves,
            busy=works,
            input_seconds=float(votes[:, 4].max()),
            own_seconds=own,
            measures_passes=True,
        )

    def part_to_save(self, directory: Path, *, room: int) -> Part:
        copied = not keeps_state(self._world)
        return state.part_to_save(directory, self._table(), rank=self.rank, world=self.world, room=room, copied=copied)

    def rescue(self, directory: Path) -> Part | None:
        """The state is always that of a complete step, because it is replaced after the update."""
        return state.part_to_save(directory, self._table(), rank=0, world=1, room=0, copied=False) if self.rescues else None

    def load(self, directory: Path) -> None:
        parameters = state.load(directory, self._state.parameters, "model.")
        moments = state.load(directory, self._state.optimizer, "optimizer.")
        self._state = State(self._on_every_device(parameters), self._on_every_device(moments))

    # parts

    def _check(self, indices: np.ndarray, step: int) -> None:
        """Checks the task's functions in the first step of this process, and in the steps of `is_check_due`, with the same samples on all
        ranks. Raises UserError."""
        if not self.task.is_checked or (self._is_checked and not is_check_due(step)):
            return
        self._is_checked = True
        first = indices[:SAMPLES_CHECKED]
        try:
            samples = read_batch(self.task, self.task.train, first if len(first) > 1 else np.repeat(first, 2))
        except TrainerError:
            return  # the step reports it on all ranks
        own = jax.tree.map(lambda one: one.addressable_data(0), self._state.parameters)
        self._model.check(own, jax.tree.map(np.asarray, samples))

    def _make_optimizer(self) -> optax.GradientTransformation:
        config = self.task.config.replaced(learningRate=self.learning_rate)
        optimizer = (self.task.optimizer or default_optimizer)(self._model.model, config)
        if not callable(getattr(optimizer, "init", None)) or not callable(getattr(optimizer, "update", None)):
            kind = type(optimizer).__name__
            raise UserError(f"{self.task.title}: optimizer must return an optax.GradientTransformation; it returned {kind}")
        return optimizer

    def _first_state(self) -> State:
        parameters = self._world.of_first(self._model.first_parameters())
        return State(self._on_every_device(parameters), self._on_every_device(self._optimizer.init(parameters)))

    def _table(self) -> dict[str, jax.Array]:
        return state.table_of(self._state.parameters, "model.") | state.table_of(self._state.optimizer, "optimizer.")

    def _shape_of_shares(self, batch: int) -> tuple[int, int]:
        """For a step of `batch` samples, the number of portions in which a device computes its share, and the number of rows of a share.

        Both are the same on every device and in every step, so that one compiled program is enough.
        """
        most = min(map(int, self.gather(str(self.spec.batch.most_at_once or batch))))
        share = -(-batch // self.devices)
        portions = min(max(self.spec.batch.accumulation_steps, -(-share // most)), share)
        return portions, -(-share // portions) * portions
