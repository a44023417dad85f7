"""The common part of the engines of tf.distribute: all methods of `training.engine.Engine` except for the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from muster_contract.batch import learning_rate_factor
from muster_contract.options import Loop
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.data import weighted_share
from muster_trainer.tasks.averages import averages, is_check_due
from muster_trainer.tasks.module import Task
from muster_trainer.tensorflow import model
from muster_trainer.tensorflow.device_step import DeviceStep, KerasStep
from muster_trainer.tensorflow.input import Reading, StepSamples
from muster_trainer.tensorflow.machine import prepare
from muster_trainer.tensorflow.objective import Check
from muster_trainer.tensorflow.state import State, bytes_of
from muster_trainer.tensorflow.updates import Updates
from muster_trainer.tensorflow.workers import SUM, Workers
from muster_trainer.tensorflow.world import Membership, fingerprint, peers
from muster_trainer.training.engine import Part


class KerasEngine:
    """One process of a world, with its model, optimizer and state under a strategy of tf.distribute.

    `join` creates the strategy after the devices are set up. It may wait for other workers.
    """

    sparse_gradients = False
    """Whether gradients of embeddings stay sparse (rows) if possible."""

    def __init__(self, task: Task, spec: TrainerSpec, *, join: Callable[[TrainerSpec], Membership], io_device: str | None = None) -> None:
        self.task = task
        self.input = spec.input
        prepare(spec, deterministic=task.config.deterministic)
        self.workers = Workers(join(spec))
        self.rank, self.world, self.strategy = self.workers.rank, self.workers.world, self.workers.strategy
        self.broadcast, self.gather = self.workers.broadcast, self.workers.gather
        self.devices = self.workers.devices
        self.learning_rate = task.config.learningRate * learning_rate_factor(spec.batch.learning_rate_scaling, self.devices)
        keras.utils.set_random_seed(task.config.seed % 2**32)
        with peers(self.rank), self.strategy.scope():
            self.model = model.build(task)
            variables = self._trained_variables()
            self.updates = Updates(task, self.model, variables, workers=self.workers, rate=self.learning_rate)
            step = KerasStep if spec.options.loop is Loop.FIT else DeviceStep
            self.device_step = step(task, self.model, self.updates, sparse=self.sparse_gradients)
        self._check = Check(task, self.model) if task.is_checked else None
        self._is_checked = False
        self.random_state = model.RandomState(self.model, seed=task.config.seed, rank=self.rank)
        self.state = State(self.model, self.updates.optimizer, workers=self.workers, io_device=io_device)
        self._measure = tf.function(self._measure_on_devices, reduce_retracing=True, autograph=False)

    def fingerprint(self) -> Mapping[str, Any]:
        return fingerprint()

    def weigh(self) -> tuple[int, int]:
        gradients = sum(map(bytes_of, self.updates.variables))
        return gradients, gradients + self.state.size()

    def evaluate(self, batches: Iterable[np.ndarray]) -> Mapping[str, float]:
        self.state.settle()
        sums: dict[str, float] = {}
        steps = list(batches)
        readings = self._readings(self.task.test, steps.__getitem__, range(len(steps)))
        for _ in steps:
            samples = StepSamples.take(readings)
            self.workers.read_together(samples)
            share = self._share_for_evaluation(samples.shares)
            with peers(self.rank):
                values = self._measure(share)
            for name, value in values.items():
                sums[name] = sums.get(name, 0.0) + float(value.numpy())
        return averages(sums, sum(map(len, steps)))

    def check(self, indices: np.ndarray, *, step: int, parts: int) -> None:
        """Checks the task's functions in the first step of this process, and in the steps of `is_check_due`, if batches are computed in
        `parts`. Raises UserError, on all workers alike."""
        if self._check and parts > 1 and (not self._is_checked or is_check_due(step)):
            self._is_checked = True
            with peers(self.rank):
                self._check.run(indices)

    def part_to_save(self, directory: Path, *, room: int) -> Part:
        return self.state.part_to_save(directory, room=room)

    def load(self, directory: Path) -> None:
        self.state.load(directory)

    def close(self) -> None:
        """Does nothing, because the cluster ends with its processes."""

    def _trained_variables(self) -> Sequence[keras.Variable]:
        """The trained variables, in the order of the gradients."""
        return list(self.model.trainable_variables)

    def _readings(self, data: Any, indices_of: Callable[[int], np.ndarray], steps: range) -> list[Reading]:
        """A `Reading` for each device of this worker. It starts with the first `take`."""
        readings = []
        for number, device in enumerate(self.strategy.extended.worker_devices, self.rank * self.workers.local_devices):

            def share(step: int, number: int = number) -> tuple[np.ndarray, np.ndarray]:
                return weighted_share(indices_of(step), self.devices, number)

            readings.append(Reading(self.task, data, share, spec=self.input, device=device))
            readings[-1].expect(steps)
        return readings

    def _share_for_evaluation(self, shares: list[Any]) -> Any:
        return shares[0] if len(shares) == 1 else self.workers.per_device(shares.__getitem__)

    def _measure_on_devices(self, share: Any) -> dict[str, tf.Tensor]:
        sums = self.strategy.run(self.device_step.metrics, args=(share,))
        return {name: self.strategy.reduce(SUM, value, axis=None) for name, value in sums.items()}
