"""tf.distribute.ParameterServerStrategy: the chief hands out batches, workers compute gradients and update the variables, which
parameter servers hold.

It is asynchronous: each worker takes a batch of its own as soon as it is free. How many updates of others lie between reading
the variables and updating them is the staleness of a step. This module is the chief; the others run `server.serve`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from muster_trainer.contract import BadConfiguration, TrainerSpec
from muster_trainer.data import Order
from muster_trainer.engine import Part, StepOutcome
from muster_trainer.tasks.batches import read_batch
from muster_trainer.tasks.module import Task
from muster_trainer.tensorflow import partitions
from muster_trainer.tensorflow.input import Reading
from muster_trainer.tensorflow.synchronous import SUM, Synchronous
from muster_trainer.tensorflow.world import Membership, peers, place, refuse_logical_devices
from muster_trainer.waiting import BETWEEN_SECONDS, START_SECONDS, wait_for, within

CONNECT_SECONDS = 120.0
PATH_SECONDS = 60.0
STEP_SECONDS = 15 * 60.0
"""The longest that a batch may take, with the time in which a lost worker comes back."""
TABLE_BYTES = 256 << 20
BATCHES_PER_WORKER = 2
"""How many are handed out at a time: one to compute, and one that lies ready."""
HandOut = Callable[[], Any]
"""Gives a batch to the worker that is free next; gives the result to come."""


class ParameterServer(Synchronous):
    """The chief. Making, measuring and saving a model is as on one device; a step is not: it is the next batch that is through."""

    def __init__(self, task: Task, spec: TrainerSpec) -> None:
        super().__init__(task, spec, join=connect)
        self.every_steps = spec.checkpoint.every_steps if spec.checkpoint else None
        self.local_devices = 1  # the chief's, for evaluation; `devices` are those of a worker
        self.workers = len(place().cluster["worker"])
        self.keeps_rows = not (self.clip_norm or self.decay)
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)
        self.handed_out: deque[tuple[Any, HandOut, float]] = deque()
        self.asked = {"stop": False, "save": False}
        # The chief does it all: the folder of the checkpoint need not be there on a parameter server.
        self.host = "/job:chief/replica:0/task:0/device:CPU:0"
        self.files = tf.train.CheckpointOptions(experimental_io_device=self.host)
        with self.strategy.scope():
            self.updates = tf.Variable(0, dtype=tf.int64, name="updates")
        self._turn = tf.function(self._take_turn, reduce_retracing=True, autograph=False)
        self._turn_by_rows = tf.function(self._take_turn_by_rows, reduce_retracing=True, autograph=False)

    def _trainables(self) -> list[Any]:
        partitions.adapt(self.model)
        return partitions.trainable_parts(self.model)

    def expect(self, order: Order, steps: range) -> None:
        self.order, self.next_step = order, steps.start
        shortest = min(order.size, order.size % order.batch or order.batch)
        self.pieces = max(1, min(self.accumulation, shortest // self.devices))
        self.tables = self._tables()
        if self.tables is None:
            super().expect(order, steps)

    def _tables(self) -> Any:
        """A data set for each worker that gives all samples, where these are arrays of no more than TABLE_BYTES: then a batch is
        sent as the numbers of its samples. A worker that comes back gets its own anew. None: the chief reads and sends batches."""
        data = self.task.train
        if not hasattr(data, "batch"):
            return None
        sample = read_batch(self.task, data, np.arange(1))
        if len(data) * sum(np.asarray(one).nbytes for one in tf.nest.flatten(sample)) > TABLE_BYTES:
            return None
        table = read_batch(self.task, data, np.arange(len(data)))
        return iter(self.coordinator.create_per_worker_dataset(lambda: tf.data.Dataset.from_tensors(table).repeat()))

    def step(self, indices: np.ndarray, *, step: int, stop: bool, save: bool, busy: bool) -> StepOutcome:
        self.asked = {"stop": self.asked["stop"] or stop, "save": self.asked["save"] or save}
        with peers(self.rank):
            self._hand_out(self.order.boundary(step, self.every_steps))
            result, again, waited = self.handed_out.popleft()
            loss, staleness = self._fetched(result, again, step)
        settled = not self.handed_out  # a checkpoint has just the steps that were reported
        outcome = StepOutcome(
            loss=float(loss),
            stop=settled and self.asked["stop"],
            save=settled and self.asked["save"],
            busy=busy,
            staleness=int(staleness),
            input_seconds=waited,
        )
        if outcome.save:
            self.asked["save"] = False
        return outcome

    def _fetched(self, result: Any, again: HandOut, step: int) -> Any:
        """What came of the batch. Where that was lost with its worker, another computes the batch: it may have been used once already."""
        while True:
            try:
                return within(STEP_SECONDS, f"step {step + 1}", result.fetch)
            except tf.errors.UnavailableError as error:
                if "/job:worker" not in str(error) or "/job:ps" in str(error):
                    raise
                result = again()

    def _hand_out(self, limit: int) -> None:
        """Keeps the workers busy with the batches before step `limit`, unless a checkpoint is asked for."""
        most = 1 if any(self.asked.values()) else BATCHES_PER_WORKER * self.workers
        while self.next_step < limit and len(self.handed_out) < most:
            self._warm_up(self.next_step)
            hand_out, waited = self._batch(self.next_step)
            self.handed_out.append((hand_out(), hand_out, waited))
            self.next_step += 1

    def _batch(self, step: int) -> tuple[HandOut, float]:
        """What hands out the batch of `step`, and how long the chief waited for its samples."""
        if self.tables is not None:
            rows = self.tables, tf.constant(self.order.batch_indices(step))
            return lambda: self.coordinator.schedule(self._turn_by_rows, args=rows), 0.0
        (share,), waited, _ = self._take(self.readings)
        return lambda: self.coordinator.schedule(self._turn, args=share), waited

    def evaluate(self, batches: Iterable[np.ndarray]) -> Mapping[str, float]:
        return self._settled("evaluating", lambda: super(ParameterServer, self).evaluate(batches))

    def snapshot(self, directory: Path, *, room: int) -> Part:
        return self._settled("saving", lambda: super(ParameterServer, self).snapshot(directory, room=room))

    def load(self, directory: Path) -> None:
        self._settled("restoring", lambda: super(ParameterServer, self).load(directory))

    def _settled(self, doing: str, call: Callable[[], Any]) -> Any:
        """Between two steps, when nothing is handed out: the chief itself reads and writes the variables."""
        with peers(self.rank):
            within(STEP_SECONDS, doing, self.coordinator.join)
            return within(STEP_SECONDS, doing, call)

    # what a worker computes

    def _take_turn(self, batch: Any, weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The mean loss of a batch, and its staleness. A lost worker's batch is another worker's turn."""
        before = self.updates.read_value()
        losses, gradients = self.strategy.run(self._compute, args=(batch, weights, before))
        loss = self.strategy.reduce(SUM, losses, axis=None)

        def update() -> tf.Tensor:
            with tf.control_dependencies(tf.nest.flatten(gradients, expand_composites=True)):
                others = self.updates.assign_add(1, read_value=True) - 1
            self.strategy.run(self._apply_one, args=(gradients,))
            return others

        now = tf.cond(tf.math.is_finite(loss), update, lambda: before) if self.skips else update()
        return loss / tf.reduce_sum(weights), now - before

    def _take_turn_by_rows(self, tables: Any, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The same, with the samples `indices` of the worker's own data set."""
        batch = tf.nest.map_structure(lambda table: tf.gather(table, indices), next(tables))
        return self._take_turn(batch, tf.ones(tf.shape(indices)))

    def _compute(self, batch: Any, weights: tf.Tensor, before: tf.Tensor) -> tuple[tf.Tensor, list[Any]]:
        """One device's part, with the variables as they are once `before` is known."""
        parts, count = self.devices * self.pieces, tf.size(weights)
        first = int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)) * self.pieces
        with tf.control_dependencies([before]):
            portions = [self._rows((batch, weights), count * part // parts, count * (part + 1) // parts) for part in range(parts)]
            return self._gradients_one(portions[first : first + self.pieces], tf.reduce_sum(weights))

    def _rows(self, nest: Any, first: tf.Tensor, end: tf.Tensor) -> Any:
        return nest if self.devices * self.pieces == 1 else tf.nest.map_structure(lambda one: one[first:end], nest)

    def _measure_all(self, share: Any) -> dict[str, tf.Tensor]:
        return self._measure_one(share)

    def _readings(self, data: Any, indices_of: Callable[[int], np.ndarray], steps: range) -> list[Reading]:
        """Whole batches: the chief reads, for what reads lives in this process."""

        def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
            indices = indices_of(step)
            return indices, np.ones(len(indices), dtype=np.float32)

        reading = Reading(self.task, data, batch, spec=self.input)
        reading.expect(steps)
        return [reading]


def connect(spec: TrainerSpec) -> Membership:
    """The chief's strategy, once all workers and parameter servers are up. Raises PeerLost where they do not come."""
    cluster, role, _ = place()
    if role != "chief" or not cluster.get("worker") or not cluster.get("ps"):
        raise BadConfiguration(
            f"ParameterServer needs a chief, a worker and a ps; TF_CONFIG has {', '.join(cluster)} and makes this a {role}"
        )
    refuse_logical_devices(spec)
    members = {f"{name} {index}": address for name in ("ps", "worker") for index, address in enumerate(cluster[name])}
    wait_for(members, START_SECONDS)

    # Keras' own train_step takes no gradients of a variable in parts.
    partitioner = None if spec.options.get("loop") == "Fit" else partitions.partitioner(len(cluster["ps"]))

    def make() -> tf.distribute.Strategy:
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
        _wait_for_paths(cluster)
        return strategy

    with peers(0):
        return Membership(0, 1, within(CONNECT_SECONDS, "connecting to workers and parameter servers", make))


def _wait_for_paths(cluster: Mapping[str, list[str]]) -> None:
    """Waits until each worker reaches each parameter server. A worker that outlived one still knows its address as one where
    nobody listens, and refuses what needs the successor until gRPC lets it try again, a second and more after the last time."""
    limit = time.monotonic() + PATH_SECONDS
    variables = []
    for server in range(len(cluster["ps"])):
        with tf.device(f"/job:ps/task:{server}"):
            variables.append(tf.Variable(0))
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
