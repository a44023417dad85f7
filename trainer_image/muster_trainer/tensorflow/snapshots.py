"""Snapshots of ParameterServer training in the memory of the chief's replica.

The chief reads all variables from the parameter servers while no batch is scheduled. A second thread copies them into the memory. The loss
of a parameter server, or of the chief's process, then costs few steps or none. The chief's memory is the only copy of the variables,
because the servers exchange no snapshots.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from muster_contract.environment import ReplicaEnvironment
from muster_contract.errors import BadConfiguration
from muster_contract.notices import NoticeReason
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.host.events import Events
from muster_trainer.host.priority import yield_to_steps
from muster_trainer.snapshots.arena import HEADER_BYTES, Arena, Header, layout
from muster_trainer.snapshots.checksum import checksum, is_intact
from muster_trainer.snapshots.choice import CompleteSnapshot, choose, generation_of, identity_of, newest_step
from muster_trainer.snapshots.interval import Cost, StepsBetween
from muster_trainer.snapshots.payload import pack_list, starts_of, unpack_list
from muster_trainer.snapshots.slots import Slots, too_small
from muster_trainer.tensorflow.state import Table

SLOTS = 2


class ChiefMemory:
    """Implements `muster_trainer.training.engine.PeersMemory`.

    `read` returns a copy of all variables, and `write` sets them. Before each snapshot, the workers finish their `in_flight` batches, and
    no new ones are scheduled.
    """

    copies = 1

    def __init__(
        self, arena: Arena, spec: TrainerSpec, *, in_flight: int, read: Callable[[], Table], write: Callable[[Table], object]
    ) -> None:
        assert spec.snapshots is not None
        self._env = ReplicaEnvironment.from_environment(os.environ)
        self._events = Events.from_environment(os.environ, 0)
        self._arena, self._spec, self._read, self._write = arena, spec.snapshots, read, write
        self._identity = identity_of(spec, 1)
        self._slots = Slots(arena, job=self._env.job_uid, attempt=self._env.attempt, identity=self._identity)
        self.between = StepsBetween(spec.snapshots.every_steps, drained=in_flight)
        self.is_on = True
        self._flight: Future[Cost] | None = None
        self._thread = ThreadPoolExecutor(1, "snapshot", initializer=yield_to_steps)
        self._filled_slots = self._slots.filled_slots()

    @classmethod
    def open(cls, spec: TrainerSpec, *, in_flight: int, read: Callable[[], Table], write: Callable[[Table], object]) -> ChiefMemory | None:
        """The memory of this process. None if the job has no snapshots in memory, or if the supervisor has no memory for them."""
        if spec.snapshots is None:
            return None
        arena = Arena.from_environment(os.environ)
        if arena is None:
            message = "no snapshots are kept in memory: the supervisor of the chief could not reserve the memory"
            Events.from_environment(os.environ, 0).notice(NoticeReason.MEMORY_UNUSED, message)
            return None
        return cls(arena, spec, in_flight=in_flight, read=read, write=write)

    # resume

    @property
    def newest_part(self) -> int:
        return newest_step([self._filled_slots])

    def newest(self) -> CompleteSnapshot | None:
        while (snapshot := choose([self._filled_slots], [""])) is not None:
            ((_, slot),) = snapshot.sources
            if is_intact(self._arena, slot):
                return snapshot
            self._filled_slots = [each for each in self._filled_slots if each.slot != slot]
        return None

    def restore(self, snapshot: CompleteSnapshot) -> None:
        ((_, slot),) = snapshot.sources
        (header,) = snapshot.headers
        self._write(unpack(self._arena.payload(slot, header.size)))
        self._slots.protected = snapshot.generation

    def start(self, step: int) -> None:
        self.between.start(step)
        stride = layout(self._arena.size, slots=SLOTS)
        if stride <= HEADER_BYTES:
            self._turn_off(0)
            return
        self._arena.format(slots=SLOTS, stride=stride)

    # snapshots

    def begin(self, step: int, event: str | None, on_complete: Callable[[int | None], object]) -> None:
        began = time.monotonic()
        self.land()
        self.between.start(step)
        if not self.is_on:
            on_complete(None)
            return
        packed = Packed(self._read())
        header = Header(self._env.job_uid, self._env.attempt, step, "", self._identity, packed.size, 0, event=event)
        if packed.size > self._arena.room:
            self._turn_off(packed.size)
            on_complete(None)
            return
        blocked = time.monotonic() - began
        self._flight = self._thread.submit(self._deliver, packed, header, blocked, on_complete)

    def land(self) -> None:
        flight, self._flight = self._flight, None
        if flight is not None:
            self.between.measure([flight.result()])

    def store_alone(self, step: int, event: str | None) -> bool:
        """Returns False, because the chief cannot read the variables without the servers."""
        return False

    def _deliver(self, packed: Packed, header: Header, blocked: float, on_complete: Callable[[int | None], object]) -> Cost:
        began, worked = time.monotonic(), time.thread_time()
        slot = self._slots.free()
        self._arena.clear(slot)
        content = self._arena.payload(slot, header.size)
        packed.write(content)
        self._arena.complete(slot, replace(header, checksum=checksum(content)))
        self._slots.protected = generation_of(header)
        on_complete(SLOTS * header.size)
        return Cost(blocked, time.thread_time() - worked, time.monotonic() - began, self.between.step_seconds)

    def _turn_off(self, needed: int) -> None:
        self.is_on = False
        self._events.notice(NoticeReason.MEMORY_UNUSED, too_small(self._spec.size_mib, needed=needed, slots=SLOTS))


class Packed:
    """Variables to be written as a block of bytes. `size` is the size of the block."""

    def __init__(self, table: Table) -> None:
        self._parts: list[np.ndarray] = []
        entries = []
        for (key, piece), value in table.items():
            if value.dtype == tf.string:
                texts = list(tf.reshape(value, [-1]).numpy())  # reshaped, because NumPy drops null bytes at the end of a scalar text
                lengths = [len(text) for text in texts]
                part = np.frombuffer(b"".join(texts), dtype=np.uint8)
            else:
                lengths = []
                part = np.ascontiguousarray(value.numpy()).reshape(-1).view(np.uint8)
            entries.append([key, piece, value.dtype.name, list(value.shape), part.nbytes, lengths])
            self._parts.append(part)
        self._listed = pack_list(entries)
        *self._starts, self.size = starts_of((part.nbytes for part in self._parts), after=len(self._listed))

    def write(self, content: memoryview) -> None:
        """Writes the block to `content`."""
        content[: len(self._listed)] = self._listed
        target = np.frombuffer(content, dtype=np.uint8)
        for part, start in zip(self._parts, self._starts, strict=True):
            target[start : start + part.nbytes] = part


def unpack(content: memoryview) -> Table:
    """The variables in a block of `Packed.write`. Raises BadConfiguration if it is damaged."""
    try:
        entries, length = unpack_list(content)
        *starts, end = starts_of((entry[4] for entry in entries), after=length)
        if end != len(content):
            raise ValueError(f"it has {len(content)} bytes, and its variables need {end}")
        return dict(_tensor(content[start : start + entry[4]], entry) for entry, start in zip(entries, starts, strict=True))
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise BadConfiguration(f"a snapshot in memory does not fit this job: {error}") from error


def _tensor(part: memoryview, entry: Any) -> tuple[tuple[str, str], tf.Tensor]:
    key, piece, dtype, shape, _, lengths = entry
    kind = tf.as_dtype(dtype)
    if kind == tf.string:
        value = tf.reshape(tf.constant(list(_texts(bytes(part), lengths)), dtype=tf.string), shape)
    else:
        value = tf.constant(np.frombuffer(bytes(part), dtype=kind.as_numpy_dtype).reshape(shape), dtype=kind)
    return (key, piece), value


def _texts(content: bytes, lengths: list[int]) -> Iterator[bytes]:
    start = 0
    for length in lengths:
        yield content[start : start + length]
        start += length
