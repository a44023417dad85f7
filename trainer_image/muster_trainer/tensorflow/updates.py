"""From a device's gradients to the next values of the variables."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from muster_contract.errors import BadConfiguration
from muster_trainer.tasks.config import Config
from muster_trainer.tasks.module import Task
from muster_trainer.tensorflow import compat
from muster_trainer.tensorflow.workers import SUM, Workers
from muster_trainer.training.engine import rate_share


class Updates:
    """The optimizer, its learning rate, and clipping and weight decay around it. Make it in the strategy's scope.

    Keras' optimizer sums the gradients over the devices within its update. Where `takes_sums` is true, `apply` needs gradients that
    `sum_over_devices` has summed; a lost peer then leaves the state as it was.
    """

    def __init__(self, task: Task, model: keras.Model, variables: Sequence[keras.Variable], *, workers: Workers, rate: float) -> None:
        config = task.config.replaced(learningRate=rate)
        self.task, self.variables, self.devices = task, variables, workers.devices
        self.optimizer = task.optimizer(model, config) if task.optimizer else _optimizer(config)
        self.optimizer.build(variables)
        self._apply = self.optimizer.apply_gradients
        self._full_rate = self._rate_after_warm_up()
        self._clip_norm = config.gradientClipNorm
        self._decay = 0.0 if task.optimizer or config.optimizer == "AdamW" else config.weightDecay
        self.takes_sums = workers.world > 1 and compat.accept_summed_gradients(self.optimizer)

    @property
    def needs_dense_gradients(self) -> bool:
        """Clipping and decay work on whole gradients, not on the rows of an embedding that a batch names."""
        return bool(self._clip_norm or self._decay)

    def set_learning_rate(self, step: int) -> None:
        """Sets the rate of a step (from 0) where the task has a schedule or warms up."""
        if self.task.schedule or step < self.task.config.warmupSteps:
            self.optimizer.learning_rate.assign(self._full_rate * rate_share(self.task, step))

    def sum_over_devices(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """For one device, within `strategy.run`."""
        summed: list[tf.Tensor] = tf.distribute.get_replica_context().all_reduce(SUM, gradients)
        return summed

    def apply(self, gradients: list[tf.Tensor]) -> None:
        """For one device, within `strategy.run`."""
        self._apply(zip(self._clipped_and_decayed(gradients), self.variables, strict=True))

    def _clipped_and_decayed(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """The norm to clip by is that of the sum over all devices; each device adds its share of the weight decay."""
        if self._clip_norm:
            summed = gradients if self.takes_sums else self.sum_over_devices(gradients)
            factor = self._clip_norm / tf.maximum(tf.linalg.global_norm(summed), self._clip_norm)
            gradients = [gradient * factor for gradient in gradients]
        if self._decay:
            share = self._decay / (1 if self.takes_sums else self.devices)
            values = [variable.value for variable in self.variables]
            gradients = [gradient + share * value for gradient, value in zip(gradients, values, strict=True)]
        return gradients

    def _rate_after_warm_up(self) -> float:
        """The optimizer's own rate. Raises BadConfiguration where it has a schedule, and the job one too."""
        if (self.task.schedule or self.task.config.warmupSteps) and not hasattr(self.optimizer.learning_rate, "assign"):
            given = f"{self.task.title}: schedule" if self.task.schedule else "spec.trainer.config.warmupSteps"
            raise BadConfiguration(f"{given}: {self.task.title}'s optimizer has a schedule of its own; leave one of them out")
        return float(keras.ops.convert_to_numpy(self.optimizer.learning_rate))


def _optimizer(config: Config) -> keras.optimizers.Optimizer:
    if config.optimizer == "SGD":
        return keras.optimizers.SGD(config.learningRate, momentum=config.momentum)
    if config.optimizer == "Adam":
        return keras.optimizers.Adam(config.learningRate, epsilon=1e-8)
    return keras.optimizers.AdamW(config.learningRate, epsilon=1e-8, weight_decay=config.weightDecay)
