"""Keras' own compile and fit (`options.loop: Fit`), in the hands of the training loop all the same.

`fit` runs in a thread, an epoch a call. A callback lets it do one batch when the loop asks for a step, so that order of samples,
seeds, checkpoints and stopping are those of Muster's own loop, and so are the losses. Keras 3 fits on one machine only.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial, reduce
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from muster_trainer.contract import BadConfiguration, TrainerSpec
from muster_trainer.data import Order, weighted_share
from muster_trainer.engine import StepOutcome
from muster_trainer.tasks.module import Task
from muster_trainer.tensorflow.input import Reading
from muster_trainer.tensorflow.machine import central_storage, mirrored, one_device
from muster_trainer.tensorflow.precision import single
from muster_trainer.tensorflow.synchronous import Synchronous
from muster_trainer.tensorflow.world import Membership


class Fit(Synchronous):
    """A sample's weight in Keras is its share of the step's mean loss, 0 for one that fills up, so that losses and gradients are
    sums over samples and devices, as in Muster's own loop. Keras itself would take the mean of the devices' means."""

    def __init__(self, task: Task, spec: TrainerSpec, *, join: Callable[[TrainerSpec], Membership]) -> None:
        if spec.batch.accumulation_steps > 1:
            raise BadConfiguration(
                "spec.batch.accumulationSteps: Keras fit computes a batch in one piece; write 1, or options.loop: Custom"
            )
        if task.config.nanLoss == "Skip":
            raise BadConfiguration("spec.trainer.config.nanLoss: Keras fit updates after each batch; write Stop, or options.loop: Custom")
        super().__init__(task, spec, join=join)
        self.course = _Course(self)
        self._apply_as_keras = self.optimizer.apply_gradients
        self.optimizer.apply_gradients = self._apply_prepared
        self.model.compute_loss = self._compute_loss
        # The model is built; Keras would add up the devices' samples for it, which cannot be where their numbers differ.
        self.model._maybe_symbolic_build = _nothing
        with self.strategy.scope():
            self.step_loss = keras.metrics.Sum(name="step_loss")
            self.model.compile(optimizer=self.optimizer, jit_compile=False)

    def expect(self, order: Order, steps: range) -> None:
        threading.Thread(target=self._fit, args=(order, steps), name="fit", daemon=True).start()

    def step(self, indices: np.ndarray, *, step: int, stop: bool, save: bool) -> StepOutcome:
        self._seed(step)
        self._warm_up(step)
        return StepOutcome(loss=self.course.next_loss(), stop=stop, save=save)

    # in the thread of fit

    def _fit(self, order: Order, steps: range) -> None:
        first = steps.start
        try:
            with self.strategy.scope():
                while first < steps.stop:
                    epoch = order.epoch(first)
                    end = (epoch + 1) * order.steps_per_epoch
                    data = self._dataset(order, range(first, end))
                    epochs = {"initial_epoch": epoch, "epochs": epoch + 1, "steps_per_epoch": end - first}
                    self.model.fit(data, **epochs, callbacks=[self.course], shuffle=False, verbose=0)
                    first = end
        except Exception as error:  # noqa: BLE001 (the loop's thread raises it)
            self.course.ends.put(self._cause(error))

    def _dataset(self, order: Order, steps: range) -> Any:
        """Of each step the share of each device, one after the other: tf.distribute deals them out in turn."""
        self.readings = [
            Reading(self.task, self.task.train, partial(self._share, order, place), spec=self.input) for place in range(self.devices)
        ]
        shares = tf.data.Dataset.zip(tuple(reading.dataset(steps) for reading in self.readings))

        def in_turn(*each: Any) -> tf.data.Dataset:
            parts = (tf.data.Dataset.from_tensors((batch[0], tuple(batch[1:]), weights)) for batch, weights in each)
            return reduce(tf.data.Dataset.concatenate, parts)

        return self.strategy.distribute_datasets_from_function(lambda _: shares.flat_map(in_turn))

    def _share(self, order: Order, place: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        indices = order.batch_indices(step)
        samples, weights = weighted_share(indices, self.devices, place)
        return samples, weights / np.float32(len(indices))

    def _compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> tf.Tensor:
        """Takes the place of Model.compute_loss: one device's part of the mean loss of the step."""
        loss = self._weighed(self._losses(single(y_pred), (x, *y)), sample_weight, "loss") + self._added(sample_weight)
        self.step_loss.update_state(loss)
        return loss

    def _apply_prepared(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        gradients = [tf.zeros_like(variable.value) if gradient is None else tf.convert_to_tensor(gradient) for gradient, variable in pairs]
        self._apply_as_keras(zip(self._prepared(gradients), self.trainables, strict=True))

    def _cause(self, error: Exception) -> Exception:
        """What the data set raised while it was read, rather than TensorFlow's words for that."""
        return next((failure for reading in self.readings if (failure := reading.failure)), error)


class _Course(keras.callbacks.Callback):
    """Where the loop and `fit` meet, once before each batch and once behind it."""

    def __init__(self, engine: Fit) -> None:
        super().__init__()
        self.engine = engine
        self.asked: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.ends: queue.SimpleQueue[float | Exception] = queue.SimpleQueue()

    def next_loss(self) -> float:
        """Lets `fit` do one batch. Raises what it raised."""
        self.asked.put(None)
        end = self.ends.get()
        if isinstance(end, Exception):
            raise end
        return end

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        self.asked.get()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        loss = float(self.engine.step_loss.result())
        self.engine.step_loss.reset_state()
        self.ends.put(loss)


def _nothing(**_: Any) -> None:
    """What is left of a step that is not needed."""


OneDevice = partial(Fit, join=one_device)
Mirrored = partial(Fit, join=mirrored)
CentralStorage = partial(Fit, join=central_storage)
