"""The computations of one device within `strategy.run`: losses, gradients and metrics of its share of a batch."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from muster_contract.errors import UserError
from muster_trainer.tasks.module import Task
from muster_trainer.tensorflow.model import in_float32
from muster_trainer.tensorflow.objective import Objective
from muster_trainer.tensorflow.updates import Updates


class DeviceStep:
    """The forward and backward pass of Muster's own loop (`options.loop: Custom`).

    A share is ((inputs, targets), weights) or ((inputs, targets, weights of the data set), weights). `weights` are float32, shape
    (n,): 1 for a sample, and 0 for padding. With `sparse`, gradients of embeddings stay sparse (rows) if the update accepts that.
    """

    def __init__(self, task: Task, model: keras.Model, updates: Updates, *, sparse: bool) -> None:
        self.task, self.model, self.variables = task, model, updates.variables
        self.objective = Objective(task)
        self.sparse = sparse and not updates.needs_dense_gradients

    def gradients(self, shares: Iterable[Any], count: tf.Tensor) -> tuple[tf.Tensor, list[Any]]:
        """Of all shares, the sum of the losses and the sum of their weights, shape (2,), and the gradients of the former divided by
        `count`, the number of samples in the whole step. `by_weight` gives the factor that the gradients still need."""
        gradients: list[Any] | None = None
        total = tf.zeros(2)
        for batch, weights in shares:
            sums, parts = self._gradients_of(batch, weights, count)
            if not self.sparse:
                parts = [tf.convert_to_tensor(part) for part in parts]
            gradients = parts if gradients is None else [tf.add_n(pair) for pair in zip(gradients, parts, strict=True)]
            total += sums
        return total, gradients or []

    def by_weight(self, gradients: list[Any], weight: tf.Tensor, count: tf.Tensor) -> list[Any]:
        """The gradients divided by the weight of the whole step in place of `count`."""
        return [tf.math.scalar_mul(count / weight, one) for one in gradients]

    def metrics(self, share: Any) -> dict[str, tf.Tensor]:
        """The sums of the loss and of the task's metrics over the samples, without padding."""
        batch, weights = share
        return self.objective.metric_sums(in_float32(self.model(batch[0], training=False)), batch, weights)

    def _gradients_of(self, batch: Any, weights: tf.Tensor, count: tf.Tensor) -> tuple[tf.Tensor, list[Any]]:
        values = [variable.value for variable in self.variables]
        with tf.GradientTape() as tape:
            sums = self._loss(self.model(batch[0], training=True), batch, weights)
            mean = sums[0] / count
        return sums, tape.gradient(mean, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    def _loss(self, outputs: Any, batch: Any, weights: tf.Tensor) -> tf.Tensor:
        """The sum of the task's losses, plus this device's share of the losses that layers add (regularisers, add_loss), and the sum of
        the weights: shape (2,)."""
        loss, weight = self.objective.loss_sum(in_float32(outputs), batch, weights)
        added = [tf.cast(one, tf.float32) for one in self.model.losses]
        return tf.stack([loss + tf.add_n(added) * weight if added else loss, weight])


class KerasStep(DeviceStep):
    """The model's own `train_step`, as Keras' `fit` calls it (`options.loop: Fit`). Muster intercepts the gradients that `train_step`
    passes to its optimizer, and updates the variables itself.

    The argument sample_weight has the weights of the samples and the batch size of the step. So the loss is the same as in Muster's
    own loop. Keras alone would compute the mean of the means of the devices.
    """

    def __init__(self, task: Task, model: keras.Model, updates: Updates, *, sparse: bool) -> None:
        super().__init__(task, model, updates, sparse=sparse)
        self._traced = threading.local()  # TensorFlow traces each device in a thread
        model.compile(optimizer=updates.optimizer, jit_compile=False)
        model.compute_loss = self._compute_loss
        updates.optimizer.apply_gradients = self._take_gradients

    def _gradients_of(self, batch: Any, weights: tf.Tensor, count: tf.Tensor) -> tuple[tf.Tensor, list[Any]]:
        self._traced.loss, self._traced.gradients = None, {}
        self.model.train_step((batch[0], tuple(batch[1:]), (weights, count)))
        if self._traced.loss is None:
            raise UserError(f"{self.task.title}: train_step of the model must take its loss from self.compute_loss")
        gradients = [self._traced.gradients.get(id(variable)) for variable in self.variables]
        return self._traced.loss, [tf.zeros_like(v.value) if one is None else one for one, v in zip(gradients, self.variables, strict=True)]

    def _compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True) -> Any:
        """Replaces Model.compute_loss. Returns this device's part of the mean loss of the step."""
        weights, count = sample_weight
        self._traced.loss = self._loss(y_pred, (x, *y), weights)
        return self._traced.loss[0] / count

    def _take_gradients(self, pairs: Iterable[tuple[Any, keras.Variable]]) -> None:
        """Replaces Optimizer.apply_gradients."""
        self._traced.gradients = {id(variable): gradient for gradient, variable in pairs}
