"""Keras' own compile and fit (`options.loop: Fit`), in the hands of the training loop all the same.

`fit` runs in a thread, an epoch a call. A callback lets it do one batch when the loop asks for a step, so that order of samples,
seeds, checkpoints and stopping are those of Muster's own loop, and so are the losses.

Keras 3 alone cannot fit over several machines (keras-team/keras#20585): to build the model and to log it sums up what has no sum
there, and it knows of no ClusterCoordinator. Here the model is built and the loss goes another way than the logs; with parameter
servers a batch of `fit` is a turn of a worker, as in tf_keras.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from muster_trainer.contract import BadConfiguration, TrainerSpec, UserError
from muster_trainer.data import Order
from muster_trainer.engine import StepOutcome
from muster_trainer.tasks.batches import read_batch
from muster_trainer.tasks.module import Task
from muster_trainer.tensorflow import parameter_server
from muster_trainer.tensorflow.input import kind
from muster_trainer.tensorflow.machine import central_storage, mirrored, one_device
from muster_trainer.tensorflow.precision import single
from muster_trainer.tensorflow.synchronous import Synchronous
from muster_trainer.tensorflow.world import join, peers


class _Fit(Synchronous):
    """What Keras hands on as sample_weight are the samples' weights, 0 for one that fills up, and the size of the step's batch: so
    losses and gradients are those of Muster's own loop. Keras itself would take the mean of the devices' means."""

    refuses = frozenset({"nanLoss: Skip"})

    def __init__(self, task: Task, spec: TrainerSpec, **how: Any) -> None:
        if spec.batch.accumulation_steps > 1:
            raise BadConfiguration(
                "spec.batch.accumulationSteps: Keras fit computes a batch in one piece; write 1, or options.loop: Custom"
            )
        if task.config.nanLoss == "Skip":
            raise BadConfiguration("spec.trainer.config.nanLoss: Keras fit updates after each batch; write Stop, or options.loop: Custom")
        super().__init__(task, spec, **how)
        self.course = _Course(self._end_of_batch)
        self.seen = threading.local()  # TensorFlow traces each device in a thread
        self.optimizer.apply_gradients = self._take_gradients
        self._train_step = self.model.train_step
        self.model.train_step = self._train_one
        self.model.compute_loss = self._compute_loss
        with self.strategy.scope():
            self.model.compile(optimizer=self.optimizer, jit_compile=False)

    def _leaves_sums(self) -> bool:
        return False  # Keras' train_step has no place between them and the update

    def expect(self, order: Order, steps: range) -> None:
        super().expect(order, steps)
        threading.Thread(target=self._fit, args=(order, steps), name="fit", daemon=True).start()

    # in the thread of fit

    def _fit(self, order: Order, steps: range) -> None:
        first = steps.start
        try:
            while first < steps.stop:
                epoch = order.epoch(first)
                end = (epoch + 1) * order.steps_per_epoch
                epochs = {"initial_epoch": epoch, "epochs": epoch + 1, "steps_per_epoch": end - first}
                self.course.wait()
                self._fit_epoch(range(first, end), callbacks=[self.course], shuffle=False, verbose=0, **epochs)
                self.course.give()
                first = end
        except (Exception, SystemExit) as error:  # noqa: BLE001 (the loop's thread raises it)
            self.course.ends.put(error)

    def _train_one(self, data: Any) -> dict[str, tf.Tensor]:
        """Keras' train_step, or the model's own, on one device. Keras takes the mean of logs over the devices, if they have an axis."""
        self.seen.loss = None
        self._train_step(data)
        if self.seen.loss is None:
            raise UserError(f"{self.task.title}: train_step of the model must take its loss from self.compute_loss")
        return {"loss": tf.reshape(self.seen.loss * self.devices, [1])}

    def _compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> tf.Tensor:
        """Takes the place of Model.compute_loss: one device's part of the mean loss of the step."""
        weights, count = sample_weight
        self.seen.loss = self._weighed(self._losses(single(y_pred), (x, *y)), weights, "loss") + self._added(weights)
        return self.seen.loss / count

    def _whole(self, pairs: Iterable[tuple[Any, Any]]) -> list[Any]:
        """The gradients that Keras hands to its optimizer with their variables."""
        found = [tf.zeros_like(variable.value) if gradient is None else gradient for gradient, variable in pairs]
        return found if self.keeps_rows else [tf.convert_to_tensor(gradient) for gradient in found]


class Fit(_Fit):
    """Of the synchronous strategies."""

    def __init__(self, task: Task, spec: TrainerSpec, **how: Any) -> None:
        super().__init__(task, spec, **how)
        self.handed_over: queue.SimpleQueue[tuple[list[Any], np.float32]] = queue.SimpleQueue()
        self.model._maybe_symbolic_build = _nothing  # the model is built

    def expect(self, order: Order, steps: range) -> None:
        super().expect(order, steps)
        for reading in self.readings:
            reading.device = None  # tf.distribute copies what comes out of `_dataset`

    def step(self, indices: np.ndarray, *, step: int, stop: bool, save: bool, busy: bool) -> StepOutcome:
        self._seed(step)
        self._warm_up(step)
        shares, waited, _ = self._take(self.readings)
        stops, saves, works = (self._total(np.array([stop, save, busy], dtype=np.float32)) > 0).tolist()
        self.handed_over.put((shares, np.float32(len(indices))))
        with peers(self.rank):
            loss = self.course.next()
        return StepOutcome(loss=loss / len(indices), stop=stops, save=saves, busy=works, input_seconds=waited)

    def _fit_epoch(self, steps: range, **choices: Any) -> None:
        with self.strategy.scope():
            data = self.strategy.distribute_datasets_from_function(lambda _: self._dataset(len(steps)))
            self.model.fit(data, **choices)

    def _dataset(self, steps: int) -> tf.data.Dataset:
        """What the loop hands over for each step, one device's share after the other: tf.distribute deals them out in turn."""

        def parts() -> Iterator[Any]:
            for _ in range(steps):
                shares, count = self.handed_over.get()
                for batch, weights in shares:
                    yield batch[0], tuple(batch[1:]), (weights, count)

        sample = read_batch(self.task, self.task.train, np.arange(1))
        weights = tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.float32)
        kinds = *tf.nest.map_structure(kind, (sample[0], tuple(sample[1:]))), weights
        found = tf.data.Dataset.from_generator(parts, output_signature=kinds)
        # Else all workers would agree in each step on whether there is one more.
        return found.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))

    def _take_gradients(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        self._apply_one(self._whole(pairs))

    def _end_of_batch(self, logs: Mapping[str, tf.Tensor]) -> float:
        return float(np.squeeze(logs["loss"]))


class ParameterServer(_Fit, parameter_server.ParameterServer):
    """The chief: a batch of its `fit` is one that a worker is handed, as in tf_keras. The worker computes it by `train_step`, and
    the update is that of Muster's own loop."""

    def __init__(self, task: Task, spec: TrainerSpec) -> None:
        super().__init__(task, spec)
        self.model._distribute_strategy = None  # the chief computes nothing
        self.model.train_function = self._hand_out_next

    def _schedule(self, step: int) -> tuple[Any, float]:
        return self.course.next()

    def _fit_epoch(self, steps: range, **choices: Any) -> None:
        self.model.fit(tf.data.Dataset.range(steps.start, steps.stop), **choices)

    def _hand_out_next(self, steps: Iterator[tf.Tensor]) -> dict[str, Any]:
        self.handed = super()._schedule(int(next(steps)))
        return {}

    def _end_of_batch(self, logs: Mapping[str, Any]) -> tuple[Any, float]:
        return self.handed

    # what a worker computes

    def _gradients_one(self, batches: Any, count: tf.Tensor) -> tuple[tf.Tensor, list[Any]]:
        ((batch, weights),) = batches
        self.model.train_step((batch[0], tuple(batch[1:]), (weights, count)))
        return self.seen.loss, self.seen.gradients

    def _take_gradients(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        self.seen.gradients = self._whole(pairs)


class _Course(keras.callbacks.Callback):
    """Where the loop and `fit` meet: `fit` does one batch, with what follows it at the end of an epoch, when it is asked to."""

    def __init__(self, end_of_batch: Callable[[Any], Any]) -> None:
        super().__init__()
        self.end_of_batch = end_of_batch
        self.asked: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.ends: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def next(self) -> Any:
        """Lets `fit` do one batch; gives what came of it. Raises what `fit` raised."""
        self.asked.put(None)
        end = self.ends.get()
        if isinstance(end, BaseException):
            raise end
        return end

    def wait(self) -> None:
        self.asked.get()

    def give(self) -> None:
        self.ends.put(self.end)

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        if batch > 0:
            self.give()
            self.wait()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        self.end = self.end_of_batch(logs)


def _nothing(**_: Any) -> None:
    """What is left of a step that is not needed."""


OneDevice = partial(Fit, join=one_device)
Mirrored = partial(Fit, join=mirrored)
CentralStorage = partial(Fit, join=central_storage)
MultiWorkerMirrored = partial(Fit, join=join)
