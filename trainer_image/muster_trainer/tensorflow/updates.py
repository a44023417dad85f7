"""Updates the variables with the gradients of a device."""

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
    """The optimizer with its learning rate, clipping and weight decay. Create it in the scope of the strategy.

    By default, Keras' optimizer sums the gradients over the devices within its update. If `takes_sums` is True, `apply` needs gradients
    that `sum_over_devices` has summed. The loss of a peer then cannot leave a partly updated state.
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
        """Whether gradients of embeddings must be whole tensors instead of rows, because clipping or decay need that."""
        return bool(self._clip_norm or self._decay)

    def set_learning_rate(self, step: int) -> None:
        """Sets the rate of a step (from 0), if the task has a schedule or a warm-up."""
        if self.task.schedule or step < self.task.config.warmupSteps:
            self.optimizer.learning_rate.assign(self._full_rate * rate_share(self.task, step))

    def sum_over_devices(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """Sums the gradients over all devices. Each device calls it within `strategy.run`."""
        summed: list[tf.Tensor] = tf.distribute.get_replica_context().all_reduce(SUM, gradients)
        return summed

    def apply(self, gradients: list[tf.Tensor]) -> None:
        """Updates the variables with the gradients of a device. Each device calls it within `strategy.run`."""
        self._apply(zip(self._clipped_and_decayed(gradients), self.variables, strict=True))

    def _clipped_and_decayed(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """Clips by the norm of the sum over all devices. Adds this device's share of the weight decay."""
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
        """The optimizer's own rate. Raises BadConfiguration if both the optimizer and the job have a schedule."""
        if (self.task.schedule or self.task.config.warmupSteps) and not hasattr(self.optimizer.learning_rate, "assign"):
            setting = f"{self.task.title}: schedule" if self.task.schedule else "spec.trainer.config.warmupSteps"
            raise BadConfiguration(f"{setting}: {self.task.title}'s optimizer has a schedule of its own; leave one of them out")
        return float(keras.ops.convert_to_numpy(self.optimizer.learning_rate))


def _optimizer(config: Config) -> keras.optimizers.Optimizer:
    if config.optimizer == "SGD":
        return keras.optimizers.SGD(config.learningRate, momentum=config.momentum)
    if config.optimizer == "Adam":
        return keras.optimizers.Adam(config.learningRate, epsilon=1e-8)
    return keras.optimizers.AdamW(config.learningRate, epsilon=1e-8, weight_decay=config.weightDecay)
