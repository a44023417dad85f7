"""Reads the samples of the next steps ahead with tf.data.

Parallel readers call the data set, each for its own lane of steps. tf.data prefetches their batches to the device, in the order of the
steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from muster_contract.errors import TrainerError
from muster_contract.trainer_spec import InputSpec
from muster_trainer.data import DataSet
from muster_trainer.data.files import workers_for
from muster_trainer.tasks.batches import read_batch
from muster_trainer.tasks.module import Task

AUTOTUNE = tf.data.AUTOTUNE
MOST_LANES = 16  # the most that AUTOTUNE may choose

Share = Callable[[int], tuple[np.ndarray, np.ndarray]]
"""Step -> the samples to read, and the weight of each in the loss: int64 and float32, both of shape (n,), n >= 1."""


class Reading:
    """The samples of one device, step by step. `share` must be a pure function. Batches go to `device`, such as `/device:GPU:0`, or to
    the memory of the host if it is None."""

    def __init__(self, task: Task, data: DataSet, share: Share, *, spec: InputSpec, device: str | None = None) -> None:
        self.task, self.data, self.share, self.spec, self.device = task, data, share, spec, device
        self._failures: dict[int, TrainerError] = {}
        self._steps = range(0)
        self._batches: Iterator[Any] | None = None

    def expect(self, steps: range) -> None:
        """Sets the steps that `take` will return. Reading starts with the first `take`."""
        self._steps = steps
        self._batches = None

    def take(self) -> tuple[Any, tf.Tensor]:
        """Waits for the batch of the next step, and returns (samples, weights). Raises the error of reading them."""
        step, self._steps = self._steps[0], self._steps[1:]
        if workers_for(self.data, self.spec, automatic=AUTOTUNE) == 0:
            samples, weights = tf.nest.map_structure(tf.convert_to_tensor, self._read(step))
            return samples, weights
        if self._batches is None:
            self._batches = iter(self.dataset(range(step, step + 1 + len(self._steps))))
        try:
            samples, weights = next(self._batches)
            return samples, weights
        except tf.errors.OpError:
            if step not in self._failures:
                raise
            failure = self._failures[step]
            raise failure from failure.__cause__

    def dataset(self, steps: range) -> tf.data.Dataset[Any]:
        """A data set with (samples, weights) of each of `steps`, in order. There must be at least one step."""
        workers = workers_for(self.data, self.spec, automatic=AUTOTUNE)
        lanes = min(MOST_LANES if workers == AUTOTUNE else max(workers, 1), len(steps))
        samples, weights = self.share(steps[0])
        example = read_batch(self.task, self.data, samples[:1]), weights[:1]
        kinds = [kind(one) for one in tf.nest.flatten(example)]

        def read(step: tf.Tensor) -> Any:
            parts = tf.numpy_function(self._flat, [step], [kind.dtype for kind in kinds], stateful=False)
            return tf.nest.pack_sequence_as(example, [tf.ensure_shape(part, kind.shape) for part, kind in zip(parts, kinds, strict=True)])

        def lane(number: tf.Tensor) -> tf.data.Dataset[Any]:
            return tf.data.Dataset.range(steps.start + number, steps.stop, lanes).map(read)

        batches = tf.data.Dataset.range(lanes).interleave(
            lane, cycle_length=lanes, block_length=1, num_parallel_calls=AUTOTUNE if workers == AUTOTUNE else lanes, deterministic=True
        )
        ahead = self.spec.prefetch or AUTOTUNE
        if self.device is None or "GPU" not in self.device:
            return batches.prefetch(ahead)
        return batches.prefetch(ahead).apply(tf.data.experimental.prefetch_to_device(self.device))

    def _read(self, step: int) -> tuple[Any, np.ndarray]:
        samples, weights = self.share(step)
        return read_batch(self.task, self.data, samples), weights

    def _flat(self, step: np.ndarray) -> list[np.ndarray]:
        try:
            return [np.asarray(part) for part in tf.nest.flatten(self._read(int(step)))]
        except TrainerError as error:
            self._failures[int(step)] = error
            raise


@dataclass(frozen=True)
class StepSamples:
    """The samples of this process for a step: a share for each of its devices, or `failure`. `seconds` is the time of waiting for them."""

    shares: list[Any]
    failure: TrainerError | None
    seconds: float

    @classmethod
    def take(cls, readings: Sequence[Reading]) -> StepSamples:
        """Takes the next step from each of `readings`."""
        began = time.monotonic()
        try:
            return cls([reading.take() for reading in readings], None, time.monotonic() - began)
        except TrainerError as error:
            return cls([], error, time.monotonic() - began)


def kind(rows: Any) -> tf.TensorSpec:
    """The spec of an array with any number of rows like those of `rows`."""
    return tf.TensorSpec([None, *np.shape(rows)[1:]], np.asarray(rows).dtype)
