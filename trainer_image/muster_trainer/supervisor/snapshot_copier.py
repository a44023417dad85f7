"""Copies the newest snapshots of the world into the memory of a spare, from a thread, until the spare joins the world."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress

from muster_contract.reports import SnapshotSource
from muster_trainer.snapshots.arena import Arena
from muster_trainer.snapshots.choice import generation_of
from muster_trainer.snapshots.copies import plan_copies
from muster_trainer.snapshots.interval import MOST
from muster_trainer.snapshots.transfer import Offer

LEAST_PAUSE = 1.0
"""Seconds between two copies."""


class SnapshotCopier:
    """The thread, from `start` to `stop`. It copies for at most the share `MOST` of the time, because it uses the network of the training.

    Args:
        arenas: the memory of each process of the spare.
        sources: returns the replicas of the world.
        job: the uid of the job.
        spare: the index of the spare.
        say: called when there are more parts of one snapshot in the memory than before.
    """

    def __init__(
        self,
        arenas: Sequence[Arena],
        sources: Callable[[], Sequence[SnapshotSource]],
        *,
        job: str,
        spare: int,
        say: Callable[[str], None],
    ) -> None:
        self._arenas, self._sources, self._job, self._spare, self._say = arenas, sources, job, spare, say
        self._stopped = threading.Event()
        self._busy = 0.0
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._offers: list[Offer] = []
        self._thread = threading.Thread(target=self._run, name="snapshot copies", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when nothing is written to the memory any more. Does not wait for a replica that does not answer, because the next world
        waits for this spare."""
        self._stopped.set()
        with self._lock:
            for offer in self._offers:
                offer.interrupt()
        with self._writing:
            return

    def _run(self) -> None:
        pause, most = LEAST_PAUSE, 0
        while not self._stopped.wait(pause):
            self._busy = 0.0
            for position, arena in enumerate(self._arenas):
                with suppress(OSError, ValueError):  # a replica of the world may end at any time
                    self._copy(position, arena)
            pause = max(LEAST_PAUSE, self._busy / MOST)
            parts, step = max(map(_newest, self._arenas), default=(0, 0))
            if parts > most:
                most = parts
                self._say(f"this spare has the snapshot of step {step} in its memory (parts: {parts}), and goes on to copy newer ones")

    def _copy(self, position: int, arena: Arena) -> None:
        """Copies the parts that the memory of one process lacks. Raises OSError if a replica ends."""
        with ExitStack() as stack:
            offers = [offer for source in self._sources() if (offer := self._connect(source, position, stack)) is not None]
            held = list(arena.filled_slots())
            plan = plan_copies([each.filled_slots for each in offers], held, job=self._job, size=arena.size, spare=self._spare)
            with self._writing:
                if plan is None or self._stopped.is_set():
                    return
                began = time.monotonic()
                arena.format(slots=plan.slots, stride=plan.stride)
                for copy in plan.copies:
                    arena.clear(copy.into)
                    room = arena.payload(copy.into, copy.header.size)
                    if offers[copy.source].fetch(copy.slot, room, until=self._stopped.is_set):
                        arena.complete(copy.into, copy.header)
                self._busy += time.monotonic() - began

    def _connect(self, source: SnapshotSource, position: int, stack: ExitStack) -> Offer | None:
        """The snapshots of a replica; None if it cannot be reached."""
        if self._stopped.is_set():
            return None
        try:
            offer = stack.enter_context(closing(Offer(source, position)))
        except (OSError, ValueError):
            return None
        with self._lock:
            self._offers.append(offer)
        stack.callback(self._disconnected, offer)
        return offer

    def _disconnected(self, offer: Offer) -> None:
        with self._lock:
            self._offers.remove(offer)


def _newest(arena: Arena) -> tuple[int, int]:
    """The number of parts of the newest snapshot in the memory, and its step."""
    generations = [generation_of(each.header) for each in arena.filled_slots()]
    newest = max(generations, default=(0, 0))
    return generations.count(newest), newest[1]
