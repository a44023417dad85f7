"""Snapshots of PyTorch training in the memory of replicas. Taken between two steps, and sent to other replicas during the next steps.

A second thread copies the state of its rank while the next step computes its gradients. The main thread waits for that before its update,
and helps. The second thread then computes the checksum, exchanges copies with other ranks, and waits until all ranks have done so; then
the snapshot is complete. It uses a process group of its own, so its messages do not mix with those of the training. The next snapshot waits
until the previous one is complete, and overwrites the one before that.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import astuple, replace
from typing import Any

import torch
import torch.distributed as dist

from muster_contract.environment import RESCUE_SECONDS, ReplicaEnvironment
from muster_contract.errors import PeerLost
from muster_contract.notices import NoticeReason
from muster_contract.trainer_spec import MemorySpec, TrainerSpec
from muster_contract.wire import decode, encode
from muster_trainer.host.events import Events
from muster_trainer.host.memory import room_for_snapshots
from muster_trainer.host.priority import yield_to_steps
from muster_trainer.pytorch import packing
from muster_trainer.pytorch.parallel import ParallelModel
from muster_trainer.pytorch.state import Groups
from muster_trainer.pytorch.world import TIMEOUT, World, detect_peer_loss
from muster_trainer.snapshots.arena import HEADER_BYTES, Arena, FilledSlot, Header, layout, pack, unpack
from muster_trainer.snapshots.checksum import checksum, is_intact
from muster_trainer.snapshots.choice import CompleteSnapshot, choose, generation_of, identity_of, newest_step
from muster_trainer.snapshots.interval import Cost, StepsBetween
from muster_trainer.snapshots.placement import Place, Placement, place
from muster_trainer.snapshots.slots import Slots, too_small

_HEADER, _PAYLOAD = 0, 1
"""Tags of messages."""
_STEPS_BETWEEN_EMPTYINGS = 10
_CLOCK_OF_THREAD = 6
"""Linux: the kind of a clock that has the id of a thread in its other bits (CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED)."""


class Snapshots:
    """The snapshots of one rank in one attempt. Every rank calls the same methods in the same order, except `store_alone`.

    `cut` is the cut of a pipeline in the newest snapshot of any rank. See `muster_trainer.training.engine.PeersMemory`.
    """

    def __init__(
        self, arena: Arena, env: ReplicaEnvironment, spec: TrainerSpec, world: World, events: Events, places: Sequence[Place]
    ) -> None:
        assert spec.snapshots is not None
        self._spec: MemorySpec = spec.snapshots
        self._arena, self._env, self._world, self._events, self._places = arena, env, world, events, places
        self._identity = identity_of(spec, world.size)
        self._is_sized = spec.snapshots.size_mib is not None
        self._slots = Slots(arena, job=env.job_uid, attempt=env.attempt, identity=self._identity)
        self._flight: Future[list[Cost]] | None = None
        self._copying: packing.Copying | None = None
        self._blocked = 0.0
        self._thread = ThreadPoolExecutor(1, "snapshot", initializer=yield_to_steps)
        self.is_on = True
        self._failed = False
        self._own_is_complete = threading.Event()
        self._gather_filled_slots()
        self._has_room = True if self._filled_slots[world.rank] else None
        self._needs_step = not self._is_sized and not all(self._filled_slots)

    @classmethod
    def open(cls, spec: TrainerSpec, world: World) -> Snapshots | None:
        """The snapshots of this rank. None if the job has none in memory, or if a rank has no memory for them."""
        if spec.snapshots is None:
            return None
        env, events = ReplicaEnvironment.from_environment(os.environ), Events.from_environment(os.environ, world.rank)
        arena = Arena.from_environment(os.environ)
        own = Place(pod=env.pod_uid, node=env.node_name or "", memory=arena.size if arena else 0)
        places = [decode(Place, json.loads(text)) for text in world.gather(json.dumps(encode(own)))]
        if arena is None or not all(each.memory for each in places):
            if world.rank == 0:
                events.notice(
                    NoticeReason.MEMORY_UNUSED, "no snapshots are kept in memory: the supervisor of a replica could not reserve the memory"
                )
            return None
        return cls(arena, env, spec, world, events, places)

    def _gather_filled_slots(self) -> None:
        own = [[each.slot, encode(each.header)] for each in self._slots.filled_slots()]
        self._filled_slots = [
            [FilledSlot(slot, decode(Header, header)) for slot, header in json.loads(text)] for text in self._world.gather(json.dumps(own))
        ]
        headers = [each.header for of_rank in self._filled_slots for each in of_rank]
        self.cut: tuple[int, ...] = max(headers, key=generation_of).cut if headers else ()

    def bind(self, parallel: ParallelModel, initial_numbers: Groups, *, settle: Callable[[], bool]) -> None:
        """Sets the part of the model that is in the snapshots of this rank. Decides where copies go. `settle` makes the state that after
        the last step, without the other ranks, and returns whether it could."""
        self._settle = settle
        self._parallel, self._initial_numbers = parallel, initial_numbers
        self._cut: tuple[int, ...] = parallel.cut
        # A snapshot that empties a pipeline changes its losses, and these must not depend on the measured cost of snapshots.
        chosen = _STEPS_BETWEEN_EMPTYINGS if parallel.is_emptied_between_steps else None
        self.between = StepsBetween(self._spec.every_steps or chosen)
        self._shard = packing.shard_of(parallel.module)
        self._shards = self._world.gather(self._shard)
        before = _threads()
        with detect_peer_loss():
            self._group: Any = dist.new_group(backend="gloo", timeout=TIMEOUT)
        self._senders = sorted(_threads() - before)
        self._placement: Placement = place(self._places, self._shards, copies=self._spec.copies)
        self.copies = self._placement.holders - 1

    # resume

    def newest(self) -> CompleteSnapshot | None:
        """The newest complete snapshot, whose checksums have been verified. The result is the same on all ranks."""
        while (snapshot := choose(self._filled_slots, self._shards)) is not None:
            damaged = self._world.gather(json.dumps(self._damaged(snapshot)))
            if not any(map(json.loads, damaged)):
                return snapshot
            for rank, text in enumerate(damaged):
                slots = json.loads(text)
                self._filled_slots[rank] = [each for each in self._filled_slots[rank] if each.slot not in slots]
        return None

    @property
    def newest_part(self) -> int:
        """The newest step of which any rank has a part."""
        return newest_step(self._filled_slots)

    def _damaged(self, snapshot: CompleteSnapshot) -> list[int]:
        slots = {slot for rank, slot in snapshot.sources if rank == self._world.rank}
        return [slot for slot in slots if not is_intact(self._arena, slot)]

    def restore(self, snapshot: CompleteSnapshot) -> None:
        """Restores the snapshot. A rank without its shard gets it from a rank that has it.

        Raises BadConfiguration if it does not fit."""
        rank = self._world.rank
        sent: list[Any] = [
            dist.isend(_tensor(self._arena.payload(slot, snapshot.headers[receiver].size)), receiver, group=self._group, tag=_PAYLOAD)
            for receiver, (sender, slot) in enumerate(snapshot.sources)
            if sender == rank != receiver
        ]
        sender, slot = snapshot.sources[rank]
        header = snapshot.headers[rank]
        if sender == rank:
            content = self._arena.payload(slot, header.size)
        else:
            buffer = torch.empty(header.size, dtype=torch.uint8)
            with detect_peer_loss():
                dist.recv(buffer, sender, group=self._group, tag=_PAYLOAD)
            content = buffer.numpy().data
            if checksum(content) != header.checksum:
                raise PeerLost(f"the snapshot of step {snapshot.step} from rank {sender} arrived damaged")
        packing.unpack(content, self._parallel.module, self._parallel.stored_optimizer)
        with detect_peer_loss():
            for each in sent:
                each.wait()
        self._slots.protected = snapshot.generation

    def start(self, step: int) -> None:
        """Lays out the memory for the snapshots of this attempt, which begins after `step`. Call it after `restore`."""
        self.between.start(step)
        slots = self._placement.slots
        stride = min(layout(each.memory, slots=slots) for each in self._places)
        if stride <= HEADER_BYTES:
            self.is_on = False
            self._report_too_small(0)
            return
        self._arena.format(slots=slots, stride=stride)
        if self._world.rank == 0 and self.copies < self._spec.copies and not self._spec.auto:
            self._events.notice(
                NoticeReason.MEMORY_UNUSED,
                f"snapshots have {self.copies} copies and not {self._spec.copies}: there are too few replicas",
            )

    # snapshots

    def begin(self, step: int, event: str | None, on_complete: Callable[[int | None], object]) -> None:
        """Takes a snapshot after `step`, once the previous one is complete. Calls `on_complete` with the bytes that snapshots take in all
        replicas, in another thread; None if snapshots do not fit."""
        began = time.monotonic()
        self.finish()
        self.between.start(step)
        if not self.is_on or (self._needs_step and not self.between.step_seconds):
            on_complete(None)  # before the first step it is not known how much memory the training needs
            return
        parallel = self._parallel
        parallel.finish_updates()
        if not parallel.layout.holds_whole_model:
            with detect_peer_loss():
                parallel.sync_buffers()
        packed = self._packed() if self._world.rank in self._placement.keepers else None
        fits = packed is None or self._fits(packed.size)
        slot = self._slots.free()
        header = self._header(step, event, packed.size if packed else 0)
        if packed and fits:
            self._arena.clear(slot)
            buffers = {f"model.{name}" for name, _ in parallel.module.named_buffers()}  # passes change them
            self._copying = packed.begin(self._arena.payload(slot, packed.size), now=buffers)
        if parallel.updates_within_passes or parallel.context.device.type != "cpu":
            self._finish_copying()
        is_stored = packed is not None and fits
        self._own_is_complete.clear()
        self._blocked += time.monotonic() - began
        self._flight = self._thread.submit(self._deliver, header, slot if is_stored else None, fits, self._copying, on_complete)

    def before_update(self) -> None:
        """Waits until the state of the last step is copied. Call it before the state changes."""
        if self._copying is not None:
            began = time.monotonic()
            self._finish_copying()
            self._blocked += time.monotonic() - began

    def _finish_copying(self) -> None:
        copying, self._copying = self._copying, None
        if copying is not None:
            copying.finish()

    def finish(self) -> None:
        """Waits until the snapshot under way is complete."""
        flight, self._flight = self._flight, None
        if flight is not None:
            before = self.between.steps
            self.between.measure(flight.result())
            if self._world.rank == 0 and not before / 2 < self.between.steps < 2 * before:
                self._events.say(f"snapshots in memory: every {self.between.steps} steps from now on, because of their cost")
        if self._failed:
            self.is_on = False

    @property
    def are_of_use_alone(self) -> bool:
        """Whether ranks that store their parts without the others may have all of the state: each part is on two ranks or more."""
        if self._parallel.updates_within_passes:
            return False
        return self._parallel.layout.holds_whole_model or min(Counter(self._shards).values()) > 1

    def store_alone(self, step: int, event: str | None) -> bool:
        """Stores this rank's part of the state after `step`, without the other ranks. Returns whether this rank has it in memory.

        A rank with the whole state may overwrite its older snapshot, because its newer one is whole. A part overwrites no snapshot that
        other ranks may need.
        """
        if not self.is_on or not self.are_of_use_alone:
            return False
        if self._flight is not None and not self._own_is_complete.wait(RESCUE_SECONDS / 2):
            return False
        own = [self._slots.generation(slot) for slot in (0, 1)]
        if (self._env.attempt, step) in own:
            return True
        if not self._parallel.layout.holds_whole_model and self._slots.is_newest_unconfirmed:
            return False  # one of the two may be the newest complete snapshot, and this rank does not know which
        if not self._settle():
            return False
        packed = self._packed()
        if packed.size > self._arena.room:
            return False
        slot = own.index(min(own))
        self._arena.clear(slot)
        content = self._arena.payload(slot, packed.size)
        packed.write(content)
        self._arena.complete(slot, replace(self._header(step, event, packed.size), checksum=checksum(content)))
        return True

    def _fits(self, size: int) -> bool:
        """Whether snapshots of this size fit into the memory. If the job does not name its size, they must fit into what the training
        leaves free after its first step. Snapshots of an earlier attempt have taken their memory already."""
        if self._has_room is None and not self._is_sized:
            pods = {each.pod for each in self._places if each.node == self._places[self._world.rank].node}
            self._has_room = self._placement.slots * size <= room_for_snapshots(os.environ, pods=len(pods))
        return self._has_room is not False and size <= self._arena.room

    def _packed(self) -> packing.Packed:
        return packing.Packed.of(self._parallel.module, self._parallel.stored_optimizer, self._initial_numbers)

    def _header(self, step: int, event: str | None, size: int) -> Header:
        job, attempt = self._env.job_uid, self._env.attempt
        return Header(job, attempt, step, self._shard, self._identity, size, 0, event=event, cut=self._cut)

    # beside the training

    def _deliver(
        self, header: Header, slot: int | None, fits: bool, copying: packing.Copying | None, on_complete: Callable[[int | None], object]
    ) -> list[Cost]:
        """Completes the own snapshot, and exchanges copies. If it does not fit on some rank, all ranks turn snapshots off. Returns the cost
        on each rank."""
        began, worked = time.monotonic(), self._processor_seconds()
        with detect_peer_loss():
            content = memoryview(b"")
            if slot is not None:
                if copying is not None:
                    copying.finish()
                content = self._arena.payload(slot, header.size)
                header = replace(header, checksum=checksum(content))
                self._arena.complete(slot, header)
            self._own_is_complete.set()
            messages = self._send(header if slot is not None else replace(header, size=0), content)
            used_bytes = 2 * header.size if slot is not None else 0
            for stream, sender in enumerate(self._placement.received_by(self._world.rank), start=1):
                used_bytes += 2 * self._receive(sender, stream)
            for _, work in messages:
                work.wait()
            is_beside = self._parallel.context.device.type == "cpu"  # other devices compute without the processors
            beside = self._processor_seconds() - worked if is_beside else 0.0
            blocked, self._blocked = self._blocked, 0.0
            cost = Cost(blocked, beside, time.monotonic() - began, self.between.step_seconds)
            of_all = self._gathered([0 if fits else 1, used_bytes, header.size, *astuple(cost)])
        self._failed = any(failed for failed, *_ in of_all)
        if self._failed:
            self._report_too_small(int(max(size for _, _, size, *_ in of_all)))
        else:
            self._slots.protected = generation_of(header)
        on_complete(None if self._failed else int(sum(used_bytes for _, used_bytes, *_ in of_all)))
        return [Cost(*numbers) for _, _, _, *numbers in of_all]

    def _processor_seconds(self) -> float:
        """The processor seconds of this thread, and of the threads that send."""
        return time.thread_time() + sum(map(_seconds_of_thread, self._senders))

    def _send(self, header: Header, content: memoryview) -> list[tuple[torch.Tensor, Any]]:
        """Begins to send. Returns the tensors and their messages, because Gloo needs the tensors until they are sent."""
        messages = []
        block = pack(header).ljust(HEADER_BYTES, b"\0")
        for receiver in self._placement.sent_by(self._world.rank):
            for tag, tensor in ((_HEADER, _tensor(memoryview(bytearray(block)))), (_PAYLOAD, _tensor(content))):
                if tensor.numel():
                    messages.append((tensor, dist.isend(tensor, receiver, group=self._group, tag=tag)))
        return messages

    def _receive(self, sender: int, stream: int) -> int:
        """Returns the bytes of the copy."""
        block = torch.empty(HEADER_BYTES, dtype=torch.uint8)
        dist.recv(block, sender, group=self._group, tag=_HEADER)
        header = unpack(block.numpy().tobytes(), Header)
        if not isinstance(header, Header) or header.size > self._arena.room:
            raise PeerLost(f"rank {sender} sent no header of a snapshot")
        if header.size:
            slot = self._slots.free(stream)
            self._arena.clear(slot)
            dist.recv(_tensor(self._arena.payload(slot, header.size)), sender, group=self._group, tag=_PAYLOAD)
            self._arena.complete(slot, header)
        return header.size

    def _gathered(self, numbers: Sequence[float]) -> list[list[float]]:
        """The numbers of all ranks."""
        own = torch.tensor(numbers, dtype=torch.float64)
        of_all = [torch.empty_like(own) for _ in range(self._world.size)]
        dist.all_gather(of_all, own, group=self._group)
        return [each.tolist() for each in of_all]

    def _report_too_small(self, needed: int) -> None:
        if self._world.rank == 0:
            processes = max(sum(each.pod == place.pod for each in self._places) for place in self._places)
            message = too_small(self._spec.size_mib, needed=needed, slots=self._placement.slots, processes=processes)
            self._events.notice(NoticeReason.MEMORY_UNUSED, message)


def _threads() -> set[int]:
    """The ids of the threads of this process. Only Linux lists them."""
    with suppress(OSError):
        return set(map(int, os.listdir("/proc/self/task")))
    return set()


def _seconds_of_thread(thread: int) -> float:
    """The processor seconds of a thread of this process. 0 if it has ended."""
    with suppress(OSError):
        return time.clock_gettime((~thread << 3) | _CLOCK_OF_THREAD)
    return 0.0


def _tensor(content: memoryview) -> torch.Tensor:
    return torch.frombuffer(content, dtype=torch.uint8) if len(content) else torch.empty(0, dtype=torch.uint8)
