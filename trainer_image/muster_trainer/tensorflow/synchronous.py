"""The synchronous strategies of tf.distribute, with a Keras 3 model and a loop of our own.

Keras 3's `fit` cannot run under MultiWorkerMirroredStrategy (keras-team/keras#20585).
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from muster_trainer.agreement import of_all
from muster_trainer.contract import BadConfiguration, StorageUnavailable, TrainerError, TrainerSpec, UserError, error_of
from muster_trainer.data import Order, portions, weighted_share
from muster_trainer.engine import Part, StepOutcome, rate_share, scaled_learning_rate
from muster_trainer.tasks.batches import read_batch
from muster_trainer.tasks.config import Config
from muster_trainer.tasks.module import Task
from muster_trainer.tensorflow import snapshots, tpu
from muster_trainer.tensorflow.input import Reading, Share
from muster_trainer.tensorflow.machine import central_storage, mirrored, one_device, prepare
from muster_trainer.tensorflow.precision import computing_in, single
from muster_trainer.tensorflow.snapshots import PREFIX, STORAGE_ERRORS
from muster_trainer.tensorflow.world import Membership, fingerprint, join, one_line, peers

SUM = tf.distribute.ReduceOp.SUM
IN_FLOAT32 = ("float32", "bfloat16", "float16")
"""Types of which every number is one of float32 too."""
ADDED_AT_ONCE = 1024
"""Numbers that workers add up beside the gradients: a text of so many bytes, or what they tell each other before a step."""


class Synchronous:
    """One worker, for all its devices. `join` makes the strategy once the devices are set up; it may wait for other workers."""

    refuses: frozenset[str] = frozenset()

    def __init__(self, task: Task, spec: TrainerSpec, *, join: Callable[[TrainerSpec], Membership]) -> None:
        self.task = task
        self.accumulation = spec.batch.accumulation_steps
        self.input = spec.input
        prepare(spec, deterministic=task.config.deterministic)
        self.rank, self.world, self.strategy = join(spec)
        self.devices = self.strategy.num_replicas_in_sync
        self.local_devices = self.devices // self.world
        self.tells_time = self.world > 1 and all("CPU" in device for device in self.strategy.extended.worker_devices)
        self.learning_rate = scaled_learning_rate(spec, task.config.learningRate, devices=self.devices)
        keras.utils.set_random_seed(task.config.seed % 2**32)
        config = task.config.replaced(learningRate=self.learning_rate)
        with peers(self.rank), self.strategy.scope():
            with computing_in(task.config.precision):
                self.model = task.build_model(task.config)
            if not isinstance(self.model, keras.Model):
                kind = type(self.model).__name__
                raise UserError(f"{task.title}: build_model must give a keras.Model; it gave {kind}")
            self._build()
            self.optimizer = task.optimizer(self.model, config) if task.optimizer else _optimizer(config)
            self.trainables = self._trainables()
            self.optimizer.build(self.trainables)
            self.full_rate = self._full_rate()
        self._update = self.optimizer.apply_gradients
        self.sums = self.world > 1 and self._leaves_sums()
        self.decay = 0.0 if task.optimizer or config.optimizer == "AdamW" else config.weightDecay
        self.checkpoint = tf.train.Checkpoint(model=self.model, optimizer=self.optimizer)
        self.files = tf.train.CheckpointOptions()
        self.host = "/device:CPU:0"
        self._seeds = [v for v in self.model.non_trainable_variables if v.path.endswith("seed_generator_state")]
        self._kept = [v for v in self.model.non_trainable_variables if v.dtype in IN_FLOAT32] if self.devices > 1 else []
        # what is kept is read together
        self.rescues = self.sums and self.tells_time and not self._kept and spec.checkpoint is not None
        self.updating = False
        self.clip_norm = task.config.gradientClipNorm
        self.keeps_rows = False
        self.examples: list[Any] = []  # what a step's share looks like
        self.skips = task.config.nanLoss == "Skip"
        # Batches differ in size only at the end of an epoch; relaxed shapes keep that from being a trace of its own for each size.
        self._train = tf.function(self._train_all, reduce_retracing=True, autograph=False)
        self._apply = tf.function(self._apply_all, autograph=False)
        self._measure = tf.function(self._measure_all, reduce_retracing=True, autograph=False)
        self._sum = tf.function(self._sum_all, reduce_retracing=True, autograph=False)

    def fingerprint(self) -> Mapping[str, Any]:
        return fingerprint()

    def weigh(self) -> tuple[int, int]:
        """Bytes of the gradients, and of all that training keeps from step to step: weights, gradients, state of the optimizer."""
        gradients = sum(map(_bytes, self.trainables))
        return gradients, gradients + sum(map(_bytes, [*self.model.variables, *self.optimizer.variables]))

    def gather(self, text: str) -> list[str]:
        return [self.broadcast(text, source=source) for source in range(self.world)]

    def broadcast(self, text: str, *, source: int = 0) -> str:
        if self.world == 1:
            return text
        content = np.frombuffer(text.encode() if self.rank == source else b"", dtype=np.uint8)
        length = int(self._total(np.array([len(content)], dtype=np.float32))[0])
        values = np.zeros(length, dtype=np.float32)
        values[: len(content)] = content
        for start in range(0, length, ADDED_AT_ONCE):
            part = slice(start, start + ADDED_AT_ONCE)
            values[part] = self._total(values[part])
        return values.astype(np.uint8).tobytes().decode()

    def expect(self, order: Order, steps: range) -> None:
        self.uneven = order.size % order.batch > 0
        self.readings = self._readings(self.task.train, order.batch_indices, steps)

    def step(self, indices: np.ndarray, *, step: int, stop: bool, save: bool, busy: bool) -> StepOutcome:
        self._seed(step)
        self._warm_up(step)
        shares, failure, read = self._taken(self.readings)
        told = self._told(failure, read)
        if not self.examples or (failure and self.world == 1):
            self._heard(self._total(told), failure)
            self.examples = tf.nest.map_structure(tf.TensorSpec.from_tensor, shares)
        if failure:  # all will hear of it, once they are through with the step
            shares = tf.nest.map_structure(lambda one: tf.zeros(one.shape, one.dtype), self.examples)
        together = time.monotonic()
        batches = self._distributed(shares, pieces=self.accumulation)
        count = tf.constant(len(indices), dtype=tf.float32)
        words = tf.constant([stop, save, busy, *told.ravel()], dtype=tf.float32) / self.local_devices
        with peers(self.rank):
            if self.uneven and self.local_devices == 1:
                self.uneven = False  # not to be traced twice, for the usual length and for any
                self._train.get_concrete_function(tf.nest.map_structure(_any_length, batches), count, words)
            summed, gradients, ready = self._train(batches, count, words)
            loss_sum, stops, saves, works, *heard = summed.numpy().tolist()
            waited = self._heard(np.reshape(heard, told.shape), failure)
            if gradients and (math.isfinite(loss_sum) or not self.skips):
                self.updating = True
                self._apply(gradients)
                self.updating = False
        own = read + max(0.0, float(ready.numpy()) - together) if self.tells_time else None
        return StepOutcome(
            loss=loss_sum / len(indices),
            stop=stops > 0,
            save=saves > 0,
            busy=works > 0,
            input_seconds=waited,
            own_seconds=own,
            tells_passes=self.tells_time,
        )

    def evaluate(self, batches: Iterable[np.ndarray]) -> Mapping[str, float]:
        self._settle()
        sums: dict[str, float] = {}
        steps = list(batches)
        readings = self._readings(self.task.test, steps.__getitem__, range(len(steps)))
        for _ in steps:
            shares, _, _ = self._take(readings)
            (share,) = self._distributed(shares, pieces=1)
            with peers(self.rank):
                values = self._measure(share)
            for name, value in values.items():
                sums[name] = sums.get(name, 0.0) + float(value.numpy())
        return {name: value / sum(map(len, steps)) for name, value in sums.items()}

    def snapshot(self, directory: Path, *, room: int) -> Part:
        """Every worker reads, since reading mirrored variables is collective; the chief alone writes."""
        self._settle()
        with peers(self.rank):
            table = snapshots.read(self.checkpoint, self.host)
        if self.rank:
            table = {}
        copied = sum(value.shape.num_elements() * value.dtype.size for value in table.values()) <= room
        if copied:
            table = snapshots.copied(table, self.host)
        return Part(copied, partial(snapshots.write, table, directory, self.host), lambda _: [])

    def rescue(self, directory: Path) -> Part | None:
        if not self.rescues or self.updating:
            return None
        table = snapshots.read(self.checkpoint, self.host)
        return Part(False, partial(snapshots.write, table, directory, self.host), lambda _: [])

    def load(self, directory: Path) -> None:
        try:
            with peers(self.rank):
                self.checkpoint.read(str(directory / PREFIX), options=self.files).assert_consumed()
        except (AssertionError, ValueError, tf.errors.InvalidArgumentError) as error:
            raise BadConfiguration(
                f"checkpoint {directory} does not fit the model or optimizer of this job: {one_line(error)}. "
                "Put them back as they were, or write `resume: Never` or another checkpoint.name to start over"
            ) from error
        except STORAGE_ERRORS as error:
            raise StorageUnavailable(f"checkpoint storage {directory}: {one_line(error)}") from error

    def close(self) -> None:
        """Nothing to do: the cluster ends with its processes."""

    # the functions that TensorFlow traces

    def _train_all(self, batches: Any, count: tf.Tensor, words: tf.Tensor) -> tuple[tf.Tensor, Any, Any]:
        """The loss and after it the sums of the words, the gradients of each device where it is left to the caller to apply them
        (nanLoss: Skip, and where a lost peer is to leave the state as it was), and where `tells_time` when (`time.monotonic`) all
        gradients of this worker were ready."""
        told, gradients = self.strategy.run(self._told_one, args=(batches, count, words))
        ready = self._now_after(gradients) if self.tells_time else ()
        if self.sums:
            gradients = self.strategy.run(self._summed, args=(gradients,))
        apart = self.sums or self.skips
        if not apart:
            self._apply_all(gradients)
        return self.strategy.reduce(SUM, told, axis=None), gradients if apart else (), ready

    def _now_after(self, gradients: Any) -> tf.Tensor:
        own = [one for each in gradients for one in self.strategy.experimental_local_results(each)]
        with tf.control_dependencies(own):
            return tf.numpy_function(time.monotonic, [], tf.float64)  # tf.timestamp is refused where kernels are deterministic

    def _told_one(self, batches: Any, count: tf.Tensor, words: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """One device's part. What is to be added up beside the gradients is one tensor: each meeting of the workers takes its time."""
        loss, gradients = self._gradients_one(batches, count)
        return tf.concat([loss[tf.newaxis], words], axis=0), gradients

    def _gradients_one(self, batches: Any, count: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """One device's part: gradients of the sum over its samples, by the number of samples in the whole step."""
        variables = [variable.value for variable in self.trainables]
        gradients: list[Any] | None = None
        total = tf.zeros(())
        for batch, weights in batches:
            with tf.GradientTape() as tape:
                outputs = single(self.model(batch[0], training=True))
                loss = self._weighed(self._losses(outputs, batch), weights, "loss") + self._added(weights)
                part = loss / count
            found = tape.gradient(part, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            if not self.keeps_rows:
                found = [tf.convert_to_tensor(one) for one in found]  # an embedding's names rows
            gradients = found if gradients is None else [tf.add_n(pair) for pair in zip(gradients, found, strict=True)]
            total += loss
        return total, gradients or []

    def _apply_all(self, gradients: Any) -> None:
        self.strategy.run(self._apply_one, args=(gradients,))

    def _apply_one(self, gradients: list[tf.Tensor]) -> None:
        """Keras' optimizer adds the gradients up over the devices, unless that is done (`sums`)."""
        self._update(zip(self._prepared(gradients), self.trainables, strict=True))

    def _prepared(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """One device's gradients, clipped and with its share of the weight decay. The norm to clip by is that of all devices' sum."""
        if self.clip_norm:
            summed = gradients if self.sums else self._summed(gradients)
            factor = self.clip_norm / tf.maximum(tf.linalg.global_norm(summed), self.clip_norm)
            gradients = [gradient * factor for gradient in gradients]
        if self.decay:
            share = self.decay / (1 if self.sums else self.devices)
            variables = [variable.value for variable in self.trainables]
            gradients = [g + share * v for g, v in zip(gradients, variables, strict=True)]
        return gradients

    def _summed(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        summed: list[tf.Tensor] = tf.distribute.get_replica_context().all_reduce(SUM, gradients)
        return summed

    def _measure_all(self, share: Any) -> dict[str, tf.Tensor]:
        sums = self.strategy.run(self._measure_one, args=(share,))
        return {name: self.strategy.reduce(SUM, value, axis=None) for name, value in sums.items()}

    def _measure_one(self, share: Any) -> dict[str, tf.Tensor]:
        batch, weights = share
        outputs = single(self.model(batch[0], training=False))
        values = {"loss": self._losses(outputs, batch), **self.task.metrics(outputs, batch)}
        return {name: self._weighed(value, weights, name) for name, value in values.items()}

    def _losses(self, outputs: Any, batch: Any) -> Any:
        """What the task's loss gives, times the weight of each sample where the data set gives one."""
        values = self.task.loss(outputs, batch)
        if len(batch) == 2:
            return values
        return tf.cast(values, tf.float32) * tf.cast(self.task.weights_for(values, batch), tf.float32)

    def _added(self, weights: tf.Tensor) -> tf.Tensor:
        """The share of the samples that count in what the layers add to the loss (regularisers, add_loss): the shares of all
        devices and portions make up the whole."""
        added = [tf.cast(one, tf.float32) for one in self.model.losses]
        return tf.add_n(added) * tf.reduce_sum(weights) if added else tf.zeros(())

    def _sum_all(self, values: Any) -> tf.Tensor:
        return self.strategy.reduce(SUM, self.strategy.run(tf.identity, args=(values,)), axis=None)

    # what surrounds them

    def _full_rate(self) -> float:
        """The learning rate that warm-up leads up to."""
        if (self.task.schedule or self.task.config.warmupSteps) and not hasattr(self.optimizer.learning_rate, "assign"):
            given = f"{self.task.title}: schedule" if self.task.schedule else "spec.trainer.config.warmupSteps"
            raise BadConfiguration(f"{given}: {self.task.title}'s optimizer has a schedule of its own; leave one of them out")
        return float(keras.ops.convert_to_numpy(self.optimizer.learning_rate))

    def _leaves_sums(self) -> bool:
        """Has Keras' optimizer take gradients that are added up already; False: it does that itself, in the midst of its update.

        There is no public way. An optimizer that wraps another one is left alone.
        """
        if not hasattr(self.optimizer, "_all_reduce_sum_gradients") or hasattr(self.optimizer, "inner_optimizer"):
            return False
        self.optimizer._all_reduce_sum_gradients = lambda pairs: pairs
        return True

    def _trainables(self) -> list[keras.Variable]:
        """What is trained, in the order of the gradients."""
        return list(self.model.trainable_variables)

    def _settle(self) -> None:
        """Gives every device what the first one keeps beside the weights (running averages, say), as a checkpoint has it: in training
        each keeps its own."""
        if not self._kept:
            return
        own = np.concatenate([np.ravel(variable.numpy()).astype(np.float32) for variable in self._kept])
        first = self._total(own if self.rank == 0 else np.zeros_like(own))
        place = 0
        for variable in self._kept:
            size = math.prod(variable.shape)
            variable.assign(first[place : place + size].reshape(variable.shape))
            place += size

    def _warm_up(self, step: int) -> None:
        if self.task.schedule or step < self.task.config.warmupSteps:
            self.optimizer.learning_rate.assign(self.full_rate * rate_share(self.task, step))

    def _build(self) -> None:
        """A model made of layers without an input shape gets its variables from a first call."""
        if not self.model.built:
            batch = read_batch(self.task, self.task.train, np.arange(1))
            self.model(tf.nest.map_structure(tf.convert_to_tensor, batch[0]))

    def _total(self, values: np.ndarray) -> np.ndarray:
        """The sum over all workers of float32 values, all of one shape. What is added up always has the same length, up to the longest:
        TensorFlow traces each length anew, which takes a tenth of a start."""
        if self.world == 1:
            return values
        padded = np.zeros(max(ADDED_AT_ONCE, values.size), dtype=np.float32)
        padded[: values.size] = values.ravel()
        own = self._local(lambda device: tf.constant(padded if device == 0 else np.zeros_like(padded)))
        with peers(self.rank):
            summed: np.ndarray = self._sum(own).numpy()
        return summed[: values.size].reshape(values.shape)

    def _local(self, value_of: Callable[[int], Any]) -> Any:
        """A value for each device of this worker, by its number on this worker."""
        numbers = iter(range(self.local_devices))
        return self.strategy.experimental_distribute_values_from_function(lambda _: value_of(next(numbers)))

    def _readings(self, data: Any, indices_of: Callable[[int], np.ndarray], steps: range) -> list[Reading]:
        """What each local device will read in each step, begun to be read."""
        readings = []
        for place, device in enumerate(self.strategy.extended.worker_devices, self.rank * self.local_devices):
            share: Share = lambda step, place=place: weighted_share(indices_of(step), self.devices, place)  # noqa: E731
            readings.append(Reading(self.task, data, share, spec=self.input, device=device))
            readings[-1].expect(steps)
        return readings

    def _take(self, readings: list[Reading]) -> tuple[list[Any], float, float]:
        """What each local device has read for the next step, the longest time in seconds that a worker waited for it, and how
        long this one did.

        All workers meet here, so that what one cannot read ends all of them, with one message.
        """
        shares, failure, own = self._taken(readings)
        return shares, self._heard(self._total(self._told(failure, own)), failure), own

    def _taken(self, readings: list[Reading]) -> tuple[list[Any], TrainerError | None, float]:
        """What each local device has read for the next step, or why one cannot, and the seconds that it took."""
        began = time.monotonic()
        try:
            return [reading.take() for reading in readings], None, time.monotonic() - began
        except TrainerError as error:
            return [], error, time.monotonic() - began

    def _told(self, failure: TrainerError | None, seconds: float) -> np.ndarray:
        """This worker's part of what all of them tell of their reading: float32 of shape (2, world), to be added up."""
        told = np.zeros((2, self.world), dtype=np.float32)
        told[:, self.rank] = seconds, failure is not None
        return told

    def _heard(self, told: np.ndarray, failure: TrainerError | None) -> float:
        """The longest time that a worker waited for its samples. Raises, in all workers, what one of them could not read."""
        waits, failures = told
        if failures.any():
            said = json.dumps([failure.code, str(failure)]) if failure else ""
            raise of_all(self, error_of(*json.loads(self.broadcast(said, source=int(failures.argmax())))))
        return float(waits.max())

    def _distributed(self, shares: list[Any], *, pieces: int) -> list[Any]:
        """The samples of each local device in at most `pieces` portions: [((inputs, targets), weights), ...]."""
        lengths = [len(weights) for _, weights in shares]
        pieces = min(pieces, *lengths)
        places = [portions(np.arange(length), pieces) for length in lengths]

        def portion(number: int, piece: int) -> Any:
            rows = slice(places[number][piece][0], places[number][piece][-1] + 1)
            return shares[number] if pieces == 1 else tf.nest.map_structure(lambda one: one[rows], shares[number])

        if self.local_devices == 1:
            return [portion(0, piece) for piece in range(pieces)]
        return [self._local(lambda number, piece=piece: portion(number, piece)) for piece in range(pieces)]

    def _weighed(self, values: Any, weights: tf.Tensor, name: str) -> tf.Tensor:
        """The sum over the samples that count, of a value per sample or of their mean."""
        values = tf.cast(values, tf.float32)
        if values.shape.rank == 0:
            return values * tf.reduce_sum(weights)
        if values.shape.rank != 1:
            raise UserError(
                f"{self.task.title}: {name} must have the shape (n,), a value per sample, or () for their mean; it has {values.shape}"
            )
        return tf.reduce_sum(values * weights)

    def _seed(self, step: int) -> None:
        """Random numbers are a function of (seed, step, rank); the layers' seed generators hold theirs in variables."""
        words = np.random.SeedSequence([self.task.config.seed, step, self.rank]).generate_state(2, np.uint32)
        random.seed(int(words[0]))
        np.random.seed(int(words[0]))
        for number, variable in enumerate(self._seeds):
            variable.assign(words + np.uint32(number))


def _any_length(rows: tf.Tensor) -> tf.TensorSpec:
    return tf.TensorSpec([None, *rows.shape[1:]], rows.dtype)


def _bytes(variable: keras.Variable) -> int:
    return math.prod(variable.shape) * tf.as_dtype(variable.dtype).size


def _optimizer(config: Config) -> keras.optimizers.Optimizer:
    if config.optimizer == "SGD":
        return keras.optimizers.SGD(config.learningRate, momentum=config.momentum)
    if config.optimizer == "Adam":
        return keras.optimizers.Adam(config.learningRate, epsilon=1e-8)
    return keras.optimizers.AdamW(config.learningRate, epsilon=1e-8, weight_decay=config.weightDecay)


OneDevice = partial(Synchronous, join=one_device)
Mirrored = partial(Synchronous, join=mirrored)
CentralStorage = partial(Synchronous, join=central_storage)
MultiWorkerMirrored = partial(Synchronous, join=join)
Tpu = partial(Synchronous, join=tpu.join)
