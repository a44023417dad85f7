"""The evaluation of a model in JAX, by all processes of a training or by the evaluator."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

import jax
import numpy as np

from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.data import weighted_share
from muster_trainer.jax import state
from muster_trainer.jax.input import batches_of
from muster_trainer.jax.model import Model, Tree
from muster_trainer.jax.programs import State, evaluation_program
from muster_trainer.jax.world import fingerprint, join
from muster_trainer.tasks.averages import averages
from muster_trainer.tasks.config import Config
from muster_trainer.tasks.module import Task
from muster_trainer.training.agreement import gather
from muster_trainer.training.engine import EvaluationEngine


class ModelOnDevices:
    """A model on all devices of the world. A subclass sets `_state`."""

    _state: State

    def __init__(self, task: Task, spec: TrainerSpec) -> None:
        self.task, self.spec = task, spec
        _set_flags(task.config)
        self._world = join()
        self.rank, self.world, self.devices = self._world.rank, self._world.size, self._world.devices
        self._model = Model(task)
        self._evaluate = evaluation_program(self._world, self._model)
        self._rows = -(-spec.batch.global_size // self.devices)
        """The number of rows in the share of a device, including padding. It is the same for all batches."""

    def fingerprint(self) -> Mapping[str, Any]:
        return fingerprint(threads=1 if self.task.config.deterministic else os.cpu_count() or 1)

    def broadcast(self, text: str) -> str:
        return self.gather(text)[0]

    def gather(self, text: str) -> list[str]:
        return self._world.gather(text)

    def evaluate(self, batches: Iterable[np.ndarray]) -> Mapping[str, float]:
        steps = list(batches)
        whole: dict[str, float] = {}
        for part in gather(self, lambda: self._sums(steps)):
            for name, value in part.items():
                whole[name] = whole.get(name, 0.0) + value
        return averages(whole, sum(map(len, steps)))

    def close(self) -> None:
        self._world.leave()

    def _on_every_device(self, tree: Tree) -> Tree:
        return jax.tree.map(self._world.copied, tree)

    def _shares(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The samples of a batch that the devices of this process read, one device after the other, and their weights.

        A share may end with padding: rows that repeat its first sample, with weight 0.
        """
        shares = [weighted_share(indices, self.devices, position) for position in self._world.positions]
        fill = [self._rows - len(samples) for samples, _ in shares]
        rows = [np.pad(samples, (0, more), constant_values=samples[0]) for (samples, _), more in zip(shares, fill, strict=True)]
        weights = [np.pad(weights, (0, more)) for (_, weights), more in zip(shares, fill, strict=True)]
        return np.concatenate(rows), np.concatenate(weights)

    def _sums(self, steps: list[np.ndarray]) -> dict[str, float]:
        """The sums of loss and metrics over the samples of the test set that the devices of this process read."""
        sums: dict[str, float] = {}
        requests = (self._shares(indices)[0] for indices in steps)
        samples = batches_of(self.task, self.task.test, requests, spec=self.spec.input)
        for indices, batch in zip(steps, samples, strict=True):
            weights = self._world.shared(self._shares(indices)[1])
            results = self._evaluate(self._state.parameters, jax.tree.map(self._world.shared, batch), weights)
            for name, value in _local_sums(results):
                sums[name] = sums.get(name, 0.0) + value
        return sums


@final
class Evaluation(ModelOnDevices, EvaluationEngine):
    """The engine of the evaluator: only the model, on the devices of one process."""

    def __init__(self, task: Task, spec: TrainerSpec) -> None:
        super().__init__(task, spec)
        self._state = State(self._model.first_parameters(), ())

    def load(self, directory: Path) -> None:
        parameters = state.load(directory, self._state.parameters, "model.")
        self._state = State(self._on_every_device(parameters), ())


def _local_sums(results: Mapping[str, jax.Array]) -> Iterator[tuple[str, float]]:
    return ((name, sum(float(shard.data[0]) for shard in values.addressable_shards)) for name, values in results.items())


def _set_flags(config: Config) -> None:
    """Sets deterministic kernels, and one thread on the CPU, because the order of additions depends on the number of threads."""
    if config.deterministic:
        present = os.environ.get("XLA_FLAGS", "")
        flags = [
            f"{name}={value}"
            for name, value in (("--xla_cpu_multi_thread_eigen", "false"), ("--xla_gpu_deterministic_ops", "true"))
            if name not in present
        ]
        os.environ["XLA_FLAGS"] = " ".join([*flags, present]).strip()
