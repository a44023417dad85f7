"""The workers of a synchronous world. Besides gradients, they exchange texts, sums and reports about their input."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from muster_contract.errors import TrainerError, error_of
from muster_trainer.tensorflow.input import StepSamples
from muster_trainer.tensorflow.world import Membership, peers
from muster_trainer.training.agreement import of_all

SUM = tf.distribute.ReduceOp.SUM
EXCHANGE_SIZE = 1024
"""The number of float32 numbers in an exchange. Fewer numbers are padded, because TensorFlow traces each length anew."""


class Workers:
    """The workers of a world, for one of them. `devices` is the number of devices of all workers, and `local_devices` that of this one."""

    def __init__(self, membership: Membership) -> None:
        self.rank, self.world, self.strategy = membership
        self.devices: int = self.strategy.num_replicas_in_sync
        self.local_devices = self.devices // self.world
        self._sum = tf.function(self._sum_on_devices, reduce_retracing=True, autograph=False)

    def per_device(self, value_of: Callable[[int], Any]) -> Any:
        """A distributed value with the result of `value_of` for each device of this worker, by the local number of the device."""
        numbers = iter(range(self.local_devices))
        return self.strategy.experimental_distribute_values_from_function(lambda _: value_of(next(numbers)))

    def total(self, values: np.ndarray) -> np.ndarray:
        """The sum over all workers of float32 values. Their shape must be the same on each worker."""
        if self.world == 1:
            return values
        padded = np.zeros(max(EXCHANGE_SIZE, values.size), dtype=np.float32)
        padded[: values.size] = values.ravel()
        shares = self.per_device(lambda device: tf.constant(padded if device == 0 else np.zeros_like(padded)))
        with peers(self.rank):
            summed: np.ndarray = self._sum(shares).numpy()
        return summed[: values.size].reshape(values.shape)

    def broadcast(self, text: str, *, source: int = 0) -> str:
        """The text of the worker `source`, on every worker. The workers sum its bytes, because tf.distribute has no broadcast."""
        if self.world == 1:
            return text
        content = np.frombuffer(text.encode() if self.rank == source else b"", dtype=np.uint8)
        length = int(self.total(np.array([len(content)], dtype=np.float32))[0])
        values = np.zeros(length, dtype=np.float32)
        values[: len(content)] = content
        for start in range(0, length, EXCHANGE_SIZE):
            part = slice(start, start + EXCHANGE_SIZE)
            values[part] = self.total(values[part])
        return values.astype(np.uint8).tobytes().decode()

    def gather(self, text: str) -> list[str]:
        """The texts of all workers in rank order, on every worker."""
        return [self.broadcast(text, source=source) for source in range(self.world)]

    def input_report(self, samples: StepSamples) -> np.ndarray:
        """This worker's part of the report about reading the samples of a step. The report is the sum over the workers.

        It is float32 of shape (2, world), with a column for each worker. Row 0 has the seconds of reading. Row 1 has a 1 if reading failed.
        """
        report = np.zeros((2, self.world), dtype=np.float32)
        report[:, self.rank] = samples.seconds, samples.failure is not None
        return report

    def slowest_input(self, report: np.ndarray, failure: TrainerError | None) -> float:
        """The longest time in seconds that a worker waited for its samples, from the summed report.

        If workers failed to read, every worker raises the error of the first of them. `failure` is the error of this worker, if any.
        """
        seconds, failures = report
        if failures.any():
            error = json.dumps([failure.code, str(failure)]) if failure else ""
            raise of_all(self, error_of(*json.loads(self.broadcast(error, source=int(failures.argmax())))))
        return float(seconds.max())

    def read_together(self, samples: StepSamples) -> float:
        """Exchanges the report about `samples` and returns `slowest_input`."""
        return self.slowest_input(self.total(self.input_report(samples)), samples.failure)

    def _sum_on_devices(self, values: Any) -> Any:
        return self.strategy.reduce(SUM, self.strategy.run(tf.identity, args=(values,)), axis=None)
