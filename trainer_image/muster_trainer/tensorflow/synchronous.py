"""The synchronous strategies of tf.distribute, with a Keras 3 model and a loop of our own.

Keras 3's `fit` cannot run under MultiWorkerMirroredStrategy (keras-team/keras#20585).
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from muster_trainer.contract import BadConfiguration, StorageUnavailable, TrainerSpec, UserError
from muster_trainer.data import portions, weighted_share
from muster_trainer.engine import StepOutcome, scaled_learning_rate
from muster_trainer.tasks.batches import read_batch
from muster_trainer.tasks.config import Config
from muster_trainer.tasks.module import Task
from muster_trainer.tensorflow.machine import central_storage, mirrored, one_device, prepare
from muster_trainer.tensorflow.world import Membership, join, one_line, peers

SUM = tf.distribute.ReduceOp.SUM
PREFIX = "state"
_STORAGE_ERRORS = (
    tf.errors.ResourceExhaustedError,
    tf.errors.PermissionDeniedError,
    tf.errors.NotFoundError,
    tf.errors.FailedPreconditionError,
    OSError,
)


class Synchronous:
    """One worker, for all its devices. `join` makes the strategy once the devices are set up; it may wait for other workers."""

    def __init__(self, task: Task, spec: TrainerSpec, *, join: Callable[[TrainerSpec], Membership]) -> None:
        self.task = task
        self.accumulation = spec.batch.accumulation_steps
        prepare(spec, deterministic=task.config.deterministic)
        self.rank, self.world, self.strategy = join(spec)
        self.devices = self.strategy.num_replicas_in_sync
        self.local_devices = self.devices // self.world
        self.learning_rate = scaled_learning_rate(spec, task.config.learningRate, devices=self.devices)
        keras.utils.set_random_seed(task.config.seed % 2**32)
        config = task.config.replaced(learningRate=self.learning_rate)
        with peers(self.rank), self.strategy.scope():
            self.model = task.build_model(task.config)
            if not isinstance(self.model, keras.Model):
                kind = type(self.model).__name__
                raise UserError(f"{task.title}: build_model must give a keras.Model; it gave {kind}")
            self._build()
            self.optimizer = task.optimizer(self.model, config) if task.optimizer else _optimizer(config)
            self.optimizer.build(self.model.trainable_variables)
        self.decay = 0.0 if task.optimizer or config.optimizer == "AdamW" else config.weightDecay
        self.checkpoint = tf.train.Checkpoint(model=self.model, optimizer=self.optimizer)
        self._seeds = [v for v in self.model.non_trainable_variables if v.path.endswith("seed_generator_state")]
        self.clip_norm = task.config.gradientClipNorm
        self.skips = task.config.nanLoss == "Skip"
        # Batches differ in size only at the end of an epoch; relaxed shapes keep that from being a trace of its own.
        self._train = tf.function(self._train_all, reduce_retracing=True, autograph=False)
        self._apply = tf.function(self._apply_all, autograph=False)
        self._measure = tf.function(self._measure_all, reduce_retracing=True, autograph=False)
        self._sum = tf.function(self._sum_all, reduce_retracing=True, autograph=False)

    def fingerprint(self) -> Mapping[str, Any]:
        devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")[:1]
        return {
            "framework": "tensorflow",
            "version": tf.__version__,
            "libraries": {"keras": keras.__version__, "numpy": np.__version__},
            "devices": [device.device_type.lower() for device in devices],
            "threads": tf.config.threading.get_intra_op_parallelism_threads(),
        }

    def broadcast(self, text: str) -> str:
        if self.world == 1:
            return text
        content = np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)
        length = int(self._total(np.array([len(content) if self.rank == 0 else 0], dtype=np.int32))[0])
        padded = np.zeros(max(length, 1), dtype=np.int32)
        if self.rank == 0:
            padded[: len(content)] = content
        return self._total(padded)[:length].astype(np.uint8).tobytes().decode()

    def step(self, indices: np.ndarray, *, step: int, stop: bool, save: bool) -> StepOutcome:
        self._seed(step)
        votes = tf.constant([stop, save], dtype=tf.float32) / self.local_devices
        batches = self._distributed(self.task.train, indices, pieces=self.accumulation)
        with peers(self.rank):
            loss_sum, votes, gradients = self._train(batches, tf.constant(len(indices), dtype=tf.float32), votes)
            if gradients and np.isfinite(loss_sum.numpy()):
                self._apply(gradients)
        stops, saves = votes.numpy().tolist()
        return StepOutcome(loss=float(loss_sum.numpy()) / len(indices), stop=stops > 0, save=saves > 0)

    def evaluate(self, batches: Iterable[np.ndarray]) -> Mapping[str, float]:
        sums: dict[str, float] = {}
        count = 0
        for indices in batches:
            count += len(indices)
            (share,) = self._distributed(self.task.test, indices, pieces=1)
            with peers(self.rank):
                values = self._measure(share)
            for name, value in values.items():
                sums[name] = sums.get(name, 0.0) + float(value.numpy())
        return {name: value / count for name, value in sums.items()}

    def save(self, directory: Path) -> None:
        """Every worker must write, since reading mirrored variables is collective; only the chief's files are kept."""
        scratch = None if self.rank == 0 else Path(tempfile.mkdtemp(prefix="muster-"))
        try:
            with peers(self.rank):
                self.checkpoint.write(str((scratch or directory) / PREFIX))
        except _STORAGE_ERRORS as error:
            raise StorageUnavailable(f"checkpoint storage {scratch or directory}: {one_line(error)}") from error
        finally:
            if scratch is not None:
                shutil.rmtree(scratch, ignore_errors=True)

    def load(self, directory: Path) -> None:
        try:
            self.checkpoint.read(str(directory / PREFIX)).assert_consumed()
        except (AssertionError, ValueError, tf.errors.InvalidArgumentError) as error:
            raise BadConfiguration(
                f"checkpoint {directory} does not fit the model or optimizer of this job: {one_line(error)}. "
                "Put them back as they were, or write `resume: Never` or another checkpoint.name to start over"
            ) from error
        except _STORAGE_ERRORS as error:
            raise StorageUnavailable(f"checkpoint storage {directory}: {one_line(error)}") from error

    def close(self) -> None:
        """Nothing to do: the cluster ends with its processes."""

    # the functions that TensorFlow traces

    def _train_all(self, batches: Any, count: tf.Tensor, votes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, Any]:
        """The loss, the votes, and the gradients of each device where it is left to the caller to apply them (nanLoss: Skip)."""
        losses, gradients = self.strategy.run(self._gradients_one, args=(batches, count))
        if not self.skips:
            self._apply_all(gradients)
        votes = self.strategy.run(tf.identity, args=(votes,))
        sums = self.strategy.reduce(SUM, losses, axis=None), self.strategy.reduce(SUM, votes, axis=None)
        return *sums, gradients if self.skips else ()

    def _gradients_one(self, batches: Any, count: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """One device's part: gradients of the sum over its samples, by the number of samples in the whole step."""
        variables = [variable.value for variable in self.model.trainable_variables]
        gradients: list[Any] | None = None
        total = tf.zeros(())
        for batch, weights in batches:
            with tf.GradientTape() as tape:
                outputs = self.model(batch[0], training=True)
                loss = self._weighed(self.task.loss(outputs, batch), weights, "loss")
            found = tape.gradient(loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            gradients = found if gradients is None else [a + b for a, b in zip(gradients, found, strict=True)]
            total += loss
        return total, [gradient / count for gradient in gradients or []]

    def _apply_all(self, gradients: Any) -> None:
        self.strategy.run(self._apply_one, args=(gradients,))

    def _apply_one(self, gradients: list[tf.Tensor]) -> None:
        """Keras' optimizer adds the gradients up over the devices. The norm to clip by is that of their sum."""
        if self.clip_norm:
            summed = tf.distribute.get_replica_context().all_reduce(SUM, gradients)
            factor = self.clip_norm / tf.maximum(tf.linalg.global_norm(summed), self.clip_norm)
            gradients = [gradient * factor for gradient in gradients]
        if self.decay:
            share = self.decay / self.devices
            variables = [variable.value for variable in self.model.trainable_variables]
            gradients = [g + share * v for g, v in zip(gradients, variables, strict=True)]
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))

    def _measure_all(self, share: Any) -> dict[str, tf.Tensor]:
        sums = self.strategy.run(self._measure_one, args=(share,))
        return {name: self.strategy.reduce(SUM, value, axis=None) for name, value in sums.items()}

    def _measure_one(self, share: Any) -> dict[str, tf.Tensor]:
        batch, weights = share
        outputs = self.model(batch[0], training=False)
        values = {"loss": self.task.loss(outputs, batch), **self.task.metrics(outputs, batch)}
        return {name: self._weighed(value, weights, name) for name, value in values.items()}

    def _sum_all(self, values: Any) -> tf.Tensor:
        return self.strategy.reduce(SUM, self.strategy.run(tf.identity, args=(values,)), axis=None)

    # what surrounds them

    def _build(self) -> None:
        """A model made of layers without an input shape gets its variables from a first call."""
        if not self.model.built:
            batch = read_batch(self.task, self.task.train, np.arange(1))
            self.model(tf.nest.map_structure(tf.convert_to_tensor, batch[0]))

    def _total(self, values: np.ndarray) -> np.ndarray:
        """The sum over all workers."""
        own = self._local(lambda device: tf.constant(values if device == 0 else np.zeros_like(values)))
        with peers(self.rank):
            return self._sum(own).numpy()

    def _local(self, value_of: Callable[[int], Any]) -> Any:
        """A value for each device of this worker, by its number on this worker."""
        numbers = iter(range(self.local_devices))
        return self.strategy.experimental_distribute_values_from_function(lambda _: value_of(next(numbers)))

    def _distributed(self, data: Any, indices: np.ndarray, *, pieces: int) -> list[Any]:
        """The samples of each local device in at most `pieces` portions: [((inputs, targets), weights), ...]."""
        first = self.rank * self.local_devices
        shares = [weighted_share(indices, self.devices, first + number) for number in range(self.local_devices)]
        pieces = min(pieces, min(len(share) for share, _ in shares))
        places = [portions(np.arange(len(share)), pieces) for share, _ in shares]

        def portion(number: int, piece: int) -> Any:
            share, weights = shares[number]
            place = places[number][piece]
            batch = read_batch(self.task, data, share[place])
            return tf.nest.map_structure(tf.convert_to_tensor, batch), tf.constant(weights[place])

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
