"""The task's loss and metrics, summed over samples, and the check that these sums may be computed in parts."""

from __future__ import annotations

from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from muster_contract.errors import TrainerError, UserError
from muster_trainer.tasks.averages import (
    ADDED,
    SAMPLES_CHECKED,
    TOLERANCE,
    TOLERANCE_IN_HALF,
    WEIGHT,
    Results,
    check,
    samples_checked,
    values_and_weights,
)
from muster_trainer.tasks.batches import read_batch
from muster_trainer.tasks.module import Task
from muster_trainer.tensorflow import compat
from muster_trainer.tensorflow.model import in_float32

_CHANGES = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")


class Objective:
    """Sums the results of the task's functions. Weights are float32 of shape (n,): 1 for a sample, and 0 for padding.

    The functions see one device in any strategy of tf.distribute, so they compute a share as one device computes a batch.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.is_weighted = False
        """Whether the task has returned a loss with weights."""

    def loss_sum(self, outputs: Any, batch: Any, weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The sum of the losses, and the sum of their weights, by which the whole step is divided."""
        total, weight = self._sums(self._losses(outputs, batch), weights, "loss")
        self.is_weighted = weight is not None
        return total, tf.reduce_sum(weights) if weight is None else weight

    def metric_sums(self, outputs: Any, batch: Any, weights: tf.Tensor) -> dict[str, tf.Tensor]:
        """The sums of loss and metrics, without padding, for `averages`."""
        with compat.seen_devices(1):
            metrics = self.task.metrics(outputs, batch)
        sums: dict[str, tf.Tensor] = {}
        for name, result in {"loss": self._losses(outputs, batch), **metrics}.items():
            sums[name], weight = self._sums(result, weights, name)
            if weight is not None:
                sums[name + WEIGHT] = weight
        return sums

    def _losses(self, outputs: Any, batch: Any) -> Any:
        """The task's losses, times the weights of samples if the data set has weights."""
        with compat.seen_devices(1):
            values = self.task.loss(outputs, batch)
        if len(batch) == 2:
            return values
        return tf.cast(values, tf.float32) * tf.cast(self.task.weights_for(values, batch), tf.float32)

    def _sums(self, result: Any, weights: tf.Tensor, name: str) -> tuple[tf.Tensor, tf.Tensor | None]:
        values, own = values_and_weights(result)
        if own is None:
            return self._sum(values, weights, name, of_scalar=tf.reduce_sum), None
        total, weight = (self._sum(one, weights, part, of_scalar=tf.reduce_mean) for part, one in ((name, values), (name + WEIGHT, own)))
        return total, weight

    def _sum(self, values: Any, weights: tf.Tensor, name: str, *, of_scalar: Any) -> tf.Tensor:
        """The weighted sum of `values`. A scalar counts as often as `of_scalar(weights)` says."""
        if isinstance(values, keras.metrics.Metric):
            raise UserError(f"{self.task.title}: {_HAS_STATE.format(name=name)}")
        each: tf.Tensor = tf.cast(values, tf.float32)
        if each.shape.rank == 0:
            scaled: tf.Tensor = each * of_scalar(weights)
            return scaled
        if each.shape.rank != 1 or not each.shape.is_compatible_with(weights.shape):
            raise UserError(
                f"{self.task.title}: {name} must have the shape (n,), a value per sample, or () for their mean, here n = "
                f"{weights.shape[0]}; it has {each.shape}"
            )
        return tf.reduce_sum(each * weights)


class Check:
    """Checks on a few samples that loss and metrics may be computed in parts. It changes no state of the training."""

    def __init__(self, task: Task, model: keras.Model) -> None:
        self.task, self.model = task, model
        self._objective = Objective(task)
        self._tolerance = TOLERANCE_IN_HALF if task.config.precision == "BFloat16" else TOLERANCE
        self._gradients = tf.function(self._loss_and_gradients, reduce_retracing=True, autograph=False)
        self._metrics = tf.function(self._objective.metric_sums, reduce_retracing=True, autograph=False)

    def run(self, indices: np.ndarray) -> None:
        """Checks with the first of the samples `indices`. Raises UserError."""
        first = indices[:SAMPLES_CHECKED]
        try:
            samples = read_batch(self.task, self.task.train, first if len(first) > 1 else np.repeat(first, 2))
        except TrainerError:
            return  # the step reports it on all ranks
        batch = tf.nest.map_structure(tf.convert_to_tensor, samples)
        outputs = in_float32(self.model(batch[0], training=False))
        count = max(2, len(first))
        rows = min(count, samples_checked(sum(int(tf.size(one)) for one in tf.nest.flatten(outputs)) // count))
        outputs, batch = _rows(outputs, slice(0, rows)), _rows(batch, slice(0, rows))
        self._refuse_variables("loss", self._gradients, outputs, batch)
        self._check("loss", rows, lambda part: self._of_loss(outputs, batch, part))
        self._check_added(batch[0], rows)
        if self.task.test is None:
            return
        self._refuse_variables("metrics", self._metrics, outputs, batch)
        for name in set(self._of_metrics(outputs, batch, slice(0, rows))) - {"loss", f"loss{WEIGHT}"}:
            self._check(name, rows, partial(self._of_metric, name, outputs, batch))

    def _check(self, name: str, rows: int, results: Results) -> None:
        check(self.task.title, name, results, rows=rows, tolerance=self._tolerance)

    def _of_loss(self, outputs: Any, batch: Any, part: slice) -> list[np.ndarray]:
        return [one.numpy() for one in self._gradients(_rows(outputs, part), _rows(batch, part), tf.ones(part.stop - part.start))]

    def _of_metric(self, name: str, outputs: Any, batch: Any, part: slice) -> list[np.ndarray]:
        return [self._of_metrics(outputs, batch, part)[name]]

    def _of_metrics(self, outputs: Any, batch: Any, part: slice) -> dict[str, np.ndarray]:
        sums = self._metrics(_rows(outputs, part), _rows(batch, part), tf.ones(part.stop - part.start))
        return {name: one.numpy() for name, one in sums.items()}

    def _loss_and_gradients(self, outputs: Any, batch: Any, weights: tf.Tensor) -> list[tf.Tensor]:
        """The sum of weights, and the gradients of the sum of losses by the outputs, which show weights that the values hide."""
        watched = [one for one in tf.nest.flatten(outputs) if one.dtype.is_floating and one.shape.rank]
        with tf.GradientTape() as tape:
            tape.watch(watched)
            total, weight = self._objective.loss_sum(outputs, batch, weights)
        gradients = tape.gradient(total, watched, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return [weight, *map(tf.convert_to_tensor, gradients)]

    def _check_added(self, inputs: Any, rows: int) -> None:
        """Checks the losses that layers add: each is a mean over the samples, or does not depend on them."""

        def added(part: slice, devices: int = 1) -> list[np.ndarray]:
            with compat.seen_devices(devices):
                self.model(_rows(inputs, part), training=False)
                return [np.asarray(one, dtype=np.float64) for one in self.model.losses]

        def added_sums(part: slice) -> list[np.ndarray]:
            return [one * (part.stop - part.start) for one in added(part)]

        if not self.model.losses:
            return
        self._check(ADDED, rows, added_sums)
        whole = added(slice(0, rows))
        if not np.allclose(whole, added(slice(0, rows), devices=2), rtol=self._tolerance):
            raise UserError(f"{self.task.title}: {_SCALED}")
        if self._objective.is_weighted and not np.allclose(whole, added(slice(0, 1)), rtol=self._tolerance):
            raise UserError(f"{self.task.title}: {_ADDED_WITH_WEIGHTS}")

    def _refuse_variables(self, name: str, function: Any, outputs: Any, batch: Any) -> None:
        """Raises UserError if a function of the task creates or changes variables, as the metrics of Keras do."""

        def refuse(*_: Any, **__: Any) -> Any:
            raise UserError(f"{self.task.title}: {_HAS_STATE.format(name=name)}")

        part = slice(0, len(tf.nest.flatten(batch[1])[0]))
        with tf.variable_creator_scope(refuse):
            compiled = function.get_concrete_function(outputs, batch, tf.ones(part.stop))
        if any(operation.type in _CHANGES for operation in compiled.graph.get_operations()):
            refuse()


def _rows(nested: Any, part: slice) -> Any:
    return tf.nest.map_structure(lambda one: one[part], nested)


_HAS_STATE = (
    "{name} creates or changes variables, as an object of keras.metrics does, so its result depends on other batches. Call a function that "
    "returns a value per sample, such as keras.metrics.sparse_categorical_accuracy(targets, outputs)"
)
_SCALED = "a layer divides a loss that it adds by the number of devices. Muster adds it once in any world, so add it as on one device"
_ADDED_WITH_WEIGHTS = (
    "a layer adds a loss that depends on the batch, and loss returns the pair (values, weights). Both cannot be divided by the same "
    "weight. Return that loss as an output of the model, and add it to the values in loss"
)
