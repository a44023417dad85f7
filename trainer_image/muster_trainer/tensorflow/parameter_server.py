"""The chief of tf.distribute.ParameterServerStrategy. Workers and parameter servers run `server.serve`.

The chief schedules batches. Workers compute gradients and update the variables, which are on parameter servers. The training is
asynchronous, because each worker gets a batch as soon as it is idle. The staleness of a step is the number of updates by other workers
between the reading of the variables and the update.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, final

import keras
import numpy as np
import tensorflow as tf

from muster_contract.errors import BadConfiguration
from muster_contract.options import Loop
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.data import Order
from muster_trainer.host.waiting import BETWEEN_SECONDS, START_SECONDS, wait_for, within
from muster_trainer.tasks.batches import read_batch
from muster_trainer.tasks.module import Task
from muster_trainer.tensorflow import partitions
from muster_trainer.tensorflow.engine import KerasEngine
from muster_trainer.tensorflow.input import Reading, StepSamples
from muster_trainer.tensorflow.workers import SUM
from muster_trainer.tensorflow.world import Membership, cannot_listen, cluster_task, peers
from muster_trainer.training.engine import Engine, Part, StepOutcome

CONNECT_SECONDS = 120.0
PATH_SECONDS = 60.0
STEP_SECONDS = 15 * 60.0
"""The longest time of a batch, including the time in which a lost worker restarts."""
TABLE_BYTES = 256 << 20
BATCHES_PER_WORKER = 2
"""The number of batches that a worker has at a time: the one that it computes, and the next one."""
T = TypeVar("T")
HandOut = Callable[[], Any]
"""Schedules a batch for the next idle worker, and returns its RemoteValue."""


@final
class ParameterServer(KerasEngine, Engine):
    """The chief. It builds, measures and saves the model as on one device. A step is the next batch that a worker has finished."""

    sparse_gradients = True

    def __init__(self, task: Task, spec: TrainerSpec) -> None:
        # The chief reads and writes all files, because the folder of the checkpoint need not exist on a parameter server.
        super().__init__(task, spec, join=connect, io_device="/job:chief/replica:0/task:0/device:CPU:0")
        self.accumulation = spec.batch.accumulation_steps
        self.every_steps = spec.checkpoint.every_steps if spec.checkpoint else None
        self.skips = task.config.nanLoss == "Skip"
        self.worker_count = len(cluster_task().cluster["worker"])
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)
        self.handed_out: deque[tuple[Any, HandOut, float]] = deque()
        self.requested = {"stop": False, "save": False}
        with self.strategy.scope():
            self.updates_made = tf.Variable(tf.constant(0, tf.int64), name="updates")
        self._turn = tf.function(self._take_turn, reduce_retracing=True, autograph=False)
        self._turn_by_rows = tf.function(self._take_turn_by_rows, reduce_retracing=True, autograph=False)

    def _trained_variables(self) -> Sequence[keras.Variable]:
        partitions.adapt(self.model)
        return partitions.trainable_parts(self.model)

    def expect(self, order: Order, steps: range) -> None:
        self.order, self.next_step = order, steps.start
        shortest = min(order.size, order.size % order.batch or order.batch)
        self.pieces = max(1, min(self.accumulation, shortest // self.devices))
        self.tables = self._tables()
        if self.tables is None:
            self.readings = self._readings(self.task.train, order.batch_indices, steps)

    def _tables(self) -> Any:
        """A data set with all samples for each worker, if they are arrays of at most TABLE_BYTES. The chief then sends only the indices
        of a batch, and a worker that restarts gets a new data set. If it is None, the chief reads and sends the samples of batches."""
        data = self.task.train
        if not hasattr(data, "batch"):
            return None
        sample = read_batch(self.task, data, np.arange(1))
        if len(data) * sum(np.asarray(one).nbytes for one in tf.nest.flatten(sample)) > TABLE_BYTES:
            return None
        table = read_batch(self.task, data, np.arange(len(data)))
        return iter(self.coordinator.create_per_worker_dataset(lambda: tf.data.Dataset.from_tensors(table).repeat()))

    def step(self, indices: np.ndarray, *, step: int, stop: bool, save: bool, busy: bool) -> StepOutcome:
        self.requested = {"stop": self.requested["stop"] or stop, "save": self.requested["save"] or save}
        with peers(self.rank):
            limit = self.order.boundary(step, self.every_steps)
            self._hand_out(limit)
            result, again, waited = self.handed_out.popleft()
            loss, staleness = self._fetched(result, again, step)
        settled = not self.handed_out  # a checkpoint must have the reported steps and no others
        outcome = StepOutcome(
            loss=float(loss),
            stop=settled and self.requested["stop"],
            save=settled and self.requested["save"],
            busy=busy,
            staleness=int(staleness),
            input_seconds=waited,
        )
        if outcome.save:
            self.requested["save"] = False
        return outcome

    def _fetched(self, result: Any, again: HandOut, step: int) -> Any:
        """The result of a batch. If its worker was lost, another worker computes the batch again. Both may have updated the variables."""
        while True:
            try:
                return within(STEP_SECONDS, f"step {step + 1}", result.fetch)
            except tf.errors.UnavailableError as error:
                if "/job:worker" not in str(error) or "/job:ps" in str(error):
                    raise
                result = again()

    def _hand_out(self, limit: int) -> None:
        """Schedules batches before step `limit`, so that workers are busy. If a stop or a save is requested, only one batch at a time."""
        most = 1 if any(self.requested.values()) else BATCHES_PER_WORKER * self.worker_count
        while self.next_step < limit and len(self.handed_out) < most:
            self.check(self.order.batch_indices(self.next_step), step=self.next_step, parts=self.devices * self.pieces)
            self.updates.set_learning_rate(self.next_step)
            hand_out, waited = self._batch(self.next_step)
            self.handed_out.append((hand_out(), hand_out, waited))
            self.next_step += 1

    def _batch(self, step: int) -> tuple[HandOut, float]:
        """A function that schedules the batch of `step`, and the seconds that the chief waited for the samples."""
        if self.tables is not None:
            rows = self.tables, tf.constant(self.order.batch_indices(step))
            return lambda: self.coordinator.schedule(self._turn_by_rows, args=rows), 0.0
        samples = StepSamples.take(self.readings)
        waited = self.workers.read_together(samples)
        (share,) = samples.shares
        return lambda: self.coordinator.schedule(self._turn, args=share), waited

    def evaluate(self, batches: Iterable[np.ndarray]) -> Mapping[str, float]:
        return self._settled("evaluating", partial(super().evaluate, batches))

    def part_to_save(self, directory: Path, *, room: int) -> Part:
        return self._settled("saving", partial(super().part_to_save, directory, room=room))

    def load(self, directory: Path) -> None:
        self._settled("restoring", partial(super().load, directory))

    def _settled(self, doing: str, call: Callable[[], T]) -> T:
        """Waits until workers have finished all batches. Then runs `call`, in which the chief reads or writes the variables."""
        with peers(self.rank):
            within(STEP_SECONDS, doing, self.coordinator.join)
            return within(STEP_SECONDS, doing, call)

    # Workers run the functions below.

    def _take_turn(self, batch: Any, weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The mean loss of a batch, and its staleness."""
        before = self.updates_made.read_value()
        sums, gradients = self.strategy.run(self._compute, args=(batch, weights, before))
        total, weight = tf.unstack(self.strategy.reduce(SUM, sums, axis=None))
        loss = total / weight

        def update() -> tf.Tensor:
            with tf.control_dependencies(tf.nest.flatten(gradients, expand_composites=True)):
                others: tf.Tensor = self.updates_made.assign_add(1, read_value=True) - 1
            self.strategy.run(self.updates.apply, args=(gradients,))
            return others

        now = tf.cond(tf.math.is_finite(loss), update, lambda: before) if self.skips else update()
        return loss, now - before

    def _take_turn_by_rows(self, tables: Any, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The same, with the samples `indices` of the worker's own data set."""
        batch = tf.nest.map_structure(lambda table: tf.gather(table, indices), next(tables))
        return self._take_turn(batch, tf.ones(tf.shape(indices)))

    def _compute(self, batch: Any, weights: tf.Tensor, before: tf.Tensor) -> tuple[tf.Tensor, list[Any]]:
        """The sums of losses and weights of a batch, and its gradients. It reads the variables after `before` is computed."""
        parts, count = self.devices * self.pieces, tf.size(weights)
        first = int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)) * self.pieces
        with tf.control_dependencies([before]):
            portions = [(batch, weights)]
            if parts > 1:
                rows = [slice(count * part // parts, count * (part + 1) // parts) for part in range(first, first + self.pieces)]
                portions = [tf.nest.map_structure(lambda one, r=r: one[r], (batch, weights)) for r in rows]
            sums, gradients = self.device_step.gradients(portions, tf.reduce_sum(weights))
        if self.device_step.objective.is_weighted:
            weight = sums[1] if self.devices == 1 else self.updates.sum_over_devices([sums[1]])[0]
            gradients = self.device_step.by_weight(gradients, weight, tf.reduce_sum(weights))
        return sums, gradients

    def _measure_on_devices(self, share: Any) -> dict[str, tf.Tensor]:
        return self.device_step.metrics(share)

    def _readings(self, data: Any, indices_of: Callable[[int], np.ndarray], steps: range) -> list[Reading]:
        """Readings of whole batches, without a device, because the readers run in the process of the chief."""

        def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
            indices = indices_of(step)
            return indices, np.ones(len(indices), dtype=np.float32)

        reading = Reading(self.task, data, batch, spec=self.input)
        reading.expect(steps)
        return [reading]


def connect(spec: TrainerSpec) -> Membership:
    """Waits for all workers and parameter servers, and creates the chief's strategy. Raises PeerLost if one does not start in time."""
    task = cluster_task()
    cluster, role = task.cluster, task.role
    if role != "chief" or not cluster.get("worker") or not cluster.get("ps"):
        raise BadConfiguration(
            f"ParameterServer needs a chief, a worker and a ps; TF_CONFIG has {', '.join(cluster)} and makes this a {role}"
        )
    members = {f"{name} {index}": address for name in ("ps", "worker") for index, address in enumerate(cluster[name])}
    wait_for(members, START_SECONDS)

    # The train_step of Keras computes no gradients for the parts of a variable.
    partitioner = None if spec.options.loop is Loop.FIT else partitions.partitioner(len(cluster["ps"]))

    def make() -> tf.distribute.Strategy:
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        try:
            strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
        except tf.errors.UnknownError as error:
            raise cannot_listen(error, task.address) from error
        _wait_for_paths(cluster)
        return strategy

    with peers(0):
        return Membership(0, 1, within(CONNECT_SECONDS, "connecting to workers and parameter servers", make))


def _wait_for_paths(cluster: Mapping[str, list[str]]) -> None:
    """Waits until each worker reaches each parameter server. After a parameter server was lost, the connection of a worker to it fails
    until gRPC retries, which takes a second or more."""
    limit = time.monotonic() + PATH_SECONDS
    variables = []
    for server in range(len(cluster["ps"])):
        with tf.device(f"/job:ps/task:{server}"):
            variables.append(tf.Variable(tf.constant(0)))
    read = tf.function(lambda: [variable.read_value() for variable in variables], autograph=False)
    for worker in range(len(cluster["worker"])):
        while not _reads(f"/job:worker/task:{worker}", read, last=time.monotonic() > limit):
            time.sleep(BETWEEN_SECONDS)


def _reads(worker: str, read: Callable[[], list[tf.Tensor]], *, last: bool) -> bool:
    try:
        with tf.device(worker):
            read()
    except tf.errors.UnavailableError as error:
        if last or "/job:ps" not in str(error):
            raise
        return False
    return True
