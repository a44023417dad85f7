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
from muster_trainer.tensorflow.updates import Updates


class DeviceStep:
    """The forward and backward pass of Muster's own loop (`options.loop: Custom`).

    A share is ((inputs, targets), weights) or ((inputs, targets, weights of the data set), weights). `weights` are float32, shape
    (n,): 1 for a sample, and 0 for padding. With `sparse`, gradients of embeddings stay sparse (rows) if the update accepts that.
    """

    def __init__(self, task: Task, model: keras.Model, updates: Updates, *, sparse: bool) -> None:
        self.task, self.model, self.variables = task, model, updates.variables
        self.sparse = sparse and not updates.needs_dense_gradients

    def gradients(self, shares: Iterable[Any], count: tf.Tensor) -> tuple[tf.Tensor, list[Any]]:
        """The sum of the losses of all shares, and the gradients of this sum divided by `count`, the number of samples in the whole
        step."""
        gradients: list[Any] | None = None
        total = tf.zeros(())
        for batch, weights in shares:
            loss, parts = self._gradients_of(batch, weights, count)
            if not self.sparse:
                parts = [tf.convert_to_tensor(part) for part in parts]
            gradients = parts if gradients is None else [tf.add_n(pair) for pair in zip(gradients, parts, strict=True)]
            total += loss
        return total, gradients or []

    def metrics(self, share: Any) -> dict[str, tf.Tensor]:
        """The sums of the loss and of the task's metrics over the samples, without padding."""
        batch, weights = share
        outputs = in_float32(self.model(batch[0], training=False))
        values = {"loss": self._losses(outputs, batch), **self.task.metrics(outputs, batch)}
        return {name: self._weighted_sum(value, weights, name) for name, value in values.items()}

    def _gradients_of(self, batch: Any, weights: tf.Tensor, count: tf.Tensor) -> tuple[tf.Tensor, list[Any]]:
        values = [variable.value for variable in self.variables]
        with tf.GradientTape() as tape:
            loss = self._loss(self.model(batch[0], training=True), batch, weights)
            mean = loss / count
        return loss, tape.gradient(mean, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    def _loss(self, outputs: Any, batch: Any, weights: tf.Tensor) -> tf.Tensor:
        """The sum of the task's losses, plus this device's share of the losses that layers add (regularisers, add_loss)."""
        loss = self._weighted_sum(self._losses(in_float32(outputs), batch), weights, "loss")
        added = [tf.cast(one, tf.float32) for one in self.model.losses]
        total: tf.Tensor = loss + (tf.add_n(added) * tf.reduce_sum(weights) if added else tf.zeros(()))
        return total

    def _losses(self, outputs: Any, batch: Any) -> Any:
        """The task's losses, times the weights of samples if the data set has weights."""
        values = self.task.loss(outputs, batch)
        if len(batch) == 2:
            return values
        return tf.cast(values, tf.float32) * tf.cast(self.task.weights_for(values, batch), tf.float32)

    def _weighted_sum(self, values: Any, weights: tf.Tensor, name: str) -> tf.Tensor:
        """The weighted sum of `values`, which are one value per sample or their mean."""
        each: tf.Tensor = tf.cast(values, tf.float32)
        if each.shape.rank == 0:
            return each * tf.reduce_sum(weights)
        if each.shape.rank != 1:
            raise UserError(
                f"{self.task.title}: {name} must have the shape (n,), a value per sample, or () for their mean; it has {each.shape}"
            )
        return tf.reduce_sum(each * weights)


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
        return self._traced.loss / count

    def _take_gradients(self, pairs: Iterable[tuple[Any, keras.Variable]]) -> None:
        """Replaces Optimizer.apply_gradients."""
        self._traced.gradients = {id(variable): gradient for gradient, variable in pairs}
