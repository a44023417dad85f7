"""The synchronous strategies of tf.distribute, with a Keras 3 model and Muster's own loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import tensorflow as tf

from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.data import Order
from muster_trainer.tasks.module import Task
from muster_trainer.tensorflow import compat, tpu
from muster_trainer.tensorflow.engine import KerasEngine
from muster_trainer.tensorflow.input import StepSamples
from muster_trainer.tensorflow.machine import central_storage, mirrored, one_device
from muster_trainer.tensorflow.preparation import train_once
from muster_trainer.tensorflow.workers import SUM
from muster_trainer.tensorflow.world import Membership, join, peers
from muster_trainer.training.engine import Engine, Part, StepOutcome


@final
class Synchronous(KerasEngine, Engine):
    """One worker, with all its devices."""

    def __init__(self, task: Task, spec: TrainerSpec, *, join: Callable[[TrainerSpec], Membership]) -> None:
        super().__init__(task, spec, join=join)
        self.accumulation = spec.batch.accumulation_steps
        on_cpus = all("CPU" in device for device in self.strategy.extended.worker_devices)
        self.measures_passes = self.world > 1 and on_cpus
        self.skips = task.config.nanLoss == "Skip"
        # The update is a separate call if a step may end without an update, with nanLoss: Skip or after the loss of a peer.
        self.updates_apart = self.updates.takes_sums or self.skips
        has_all_state = self.updates.takes_sums and not self.state.differs_by_device
        self.rescues = has_all_state and self.measures_passes and spec.checkpoint is not None
        self._updating = False
        self._example: list[Any] = []  # the specs of a step's shares
        # Relaxed shapes avoid a second trace for the last batch of an epoch, which may have another size.
        self._train = tf.function(self._train_on_devices, reduce_retracing=True, autograph=False)
        self._update = tf.function(self._update_on_devices, autograph=False)

    def expect(self, order: Order, steps: range) -> None:
        self._has_short_batch = order.size % order.batch > 0
        self.readings = self._readings(self.task.train, order.batch_indices, steps)

    def step(self, indices: np.ndarray, *, step: int, stop: bool, save: bool, busy: bool) -> StepOutcome:
        self.check(indices, step=step, parts=self.devices * self.accumulation)
        self.random_state.set(step)
        self.updates.set_learning_rate(step)
        samples = StepSamples.take(self.readings)
        report = self.workers.input_report(samples)
        batches = self._batches(samples)
        ready = time.monotonic()
        count = tf.constant(len(indices), dtype=tf.float32)
        votes = tf.constant([stop, save, busy, *report.ravel()], dtype=tf.float32) / self.workers.local_devices
        with peers(self.rank):
            self._trace_for_any_length(batches, count, votes)
            summed, gradients, passed = self._train(batches, count, votes)
            loss_sum, weight, stops, saves, busies, *reports = summed.numpy().tolist()
            waited = self.workers.slowest_input(np.reshape(reports, report.shape), samples.failure)
            loss = loss_sum / weight if weight else math.nan
            if gradients and (math.isfinite(loss) or not self.skips):
                self._updating = True
                self._update(gradients)
                self._updating = False
        return StepOutcome(
            loss=loss,
            stop=stops > 0,
            save=saves > 0,
            busy=busies > 0,
            input_seconds=waited,
            own_seconds=samples.seconds + max(0.0, float(passed.numpy()) - ready) if self.measures_passes else None,
            measures_passes=self.measures_passes,
        )

    def disconnect(self) -> None:
        if self.world > 1:
            compat.abort_collectives("the supervisor has ordered this process to leave its world")

    def rescue(self, directory: Path) -> Part | None:
        return self.state.rescue(directory) if self.rescues and not self._updating else None

    def _batches(self, samples: StepSamples) -> list[Any]:
        """The samples of each device in portions, for `DeviceStep.gradients`.

        A worker that could not read takes part in the step with zeros, and the votes of the step report the failure to the others. In two
        cases it raises the error here: in the first step, because the shapes are not defined yet, and in a world of one worker.
        """
        shares = samples.shares
        if not self._example or (samples.failure and self.world == 1):
            self.workers.read_together(samples)
            self._example = tf.nest.map_structure(tf.TensorSpec.from_tensor, shares)
        if samples.failure:
            shares = tf.nest.map_structure(lambda one: tf.zeros(one.shape, one.dtype), self._example)
        lengths = [len(weights) for _, weights in shares]
        pieces = min(self.accumulation, *lengths)
        rows = [np.array_split(np.arange(length), pieces) for length in lengths]

        def portion(device: int, piece: int) -> Any:
            of_piece = slice(rows[device][piece][0], rows[device][piece][-1] + 1)
            return shares[device] if pieces == 1 else tf.nest.map_structure(lambda one: one[of_piece], shares[device])

        if len(shares) == 1:
            return [portion(0, piece) for piece in range(pieces)]
        return [self.workers.per_device(partial(portion, piece=piece)) for piece in range(pieces)]

    def _trace_for_any_length(self, batches: list[Any], count: tf.Tensor, votes: tf.Tensor) -> None:
        """If an epoch ends with a shorter batch, traces the step once for any batch size. Otherwise TensorFlow would trace it for each
        size."""
        if self._has_short_batch and self.workers.local_devices == 1:
            self._has_short_batch = False
            self._train.get_concrete_function(tf.nest.map_structure(_any_length, batches), count, votes)

    # TensorFlow traces the functions below.

    def _train_on_devices(self, batches: Any, count: tf.Tensor, votes: tf.Tensor) -> tuple[tf.Tensor, Any, Any]:
        """Trains on all devices. Returns three values:

        - the sums of the losses, of their weights, and of the votes;
        - the gradients of each device if `updates_apart` is True, else ();
        - the `time.monotonic` at which all gradients of this worker were ready if `measures_passes` is True, else ().
        """
        sums, gradients = self.strategy.run(self._pass_on_device, args=(batches, count, votes))
        ready = self._time_after(gradients) if self.measures_passes else ()
        if self.device_step.objective.is_weighted:
            gradients = self.strategy.run(self._by_weight, args=(gradients, sums, count))
        if self.updates.takes_sums:
            gradients = self.strategy.run(self.updates.sum_over_devices, args=(gradients,))
        if not self.updates_apart:
            self._update_on_devices(gradients)
        return self.strategy.reduce(SUM, sums, axis=None), gradients if self.updates_apart else (), ready

    def _pass_on_device(self, batches: Any, count: tf.Tensor, votes: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """The loss, its weight and the votes in one tensor, and the gradients. One tensor is enough for one collective, which saves
        time."""
        sums, gradients = self.device_step.gradients(batches, count)
        return tf.concat([sums, votes], axis=0), gradients

    def _by_weight(self, gradients: Any, sums: tf.Tensor, count: tf.Tensor) -> list[Any]:
        (weight,) = self.updates.sum_over_devices([sums[1]])
        return self.device_step.by_weight(gradients, weight, count)

    def _time_after(self, gradients: Any) -> Any:
        local = [one for each in gradients for one in self.strategy.experimental_local_results(each)]
        with tf.control_dependencies(local):
            return tf.numpy_function(time.monotonic, [], tf.float64)  # tf.timestamp is not allowed with deterministic kernels

    def _update_on_devices(self, gradients: Any) -> None:
        self.strategy.run(self.updates.apply, args=(gradients,))


def _any_length(rows: tf.Tensor) -> tf.TensorSpec:
    return tf.TensorSpec([None, *rows.shape[1:]], rows.dtype)


OneDevice = partial(Synchronous, join=one_device)
Mirrored = partial(Synchronous, join=mirrored)
CentralStorage = partial(Synchronous, join=central_storage)
MultiWorkerMirrored = partial(Synchronous, join=join)
Tpu = partial(Synchronous, join=tpu.join)


def prepare(spec: TrainerSpec) -> None:
    train_once(spec, MultiWorkerMirrored)  # of one worker, which every machine can train
