"""Saving while the training goes on: at most one checkpoint is in flight, and it counts once every rank has written its part.

All that ranks must do together is done between two steps, by the threads that train: a snapshot is taken; when no rank is busy
any more, rank 0 learns what all have written, and commits; when it has, all learn that. Files are written by a thread beside,
which makes no collective. A process that ends leaves a save in flight as it is: without its marker it does not exist.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from muster_trainer.agreement import agree, gather
from muster_trainer.checkpoint import Manifest, Store, files
from muster_trainer.contract import StorageUnavailable
from muster_trainer.engine import Engine, Part
from muster_trainer.events import Events
from muster_trainer.memory import spare_bytes
from muster_trainer.objects import Place, place_of

_NICENESS = 10
"""Of the thread that writes: the steps go first."""


@dataclass
class _Flight:
    """`work` is what this rank does for it: first its part, then, on rank 0, the commit. `blocked` is how many seconds training has
    waited for it."""

    manifest: Manifest
    directory: Place
    workplace: Path
    part: Part
    began: float
    work: Future[Any]
    written: bool = False
    blocked: float = 0.0


class Saver:
    """The checkpoints of one attempt. Every rank calls the same methods in the same order, but for `busy`.

    `step` and `path` are those of the newest commit, or of what the attempt resumed from; `reached` is when training was there, and
    `seconds` what rank 0 would take for all of what has been written. `began` is when the newest save began.
    Raises StorageUnavailable, on every rank, for a save that failed.
    """

    def __init__(self, store: Store, engine: Engine, events: Events) -> None:
        self.store, self.engine, self.events = store, engine, events
        self.step: int | None = None
        self.path: Place | None = None
        self.began = time.monotonic()
        self.seconds = self._own_seconds = 0.0
        self.reached = self.began
        self._flight: _Flight | None = None
        self._since = self.began
        self._thread = ThreadPoolExecutor(1, "save", initializer=_yield_to_steps)

    @property
    def in_flight(self) -> bool:
        return self._flight is not None

    @property
    def busy(self) -> bool:
        """Whether this rank still works for the save in flight."""
        return self._flight is not None and not self._flight.work.done()

    def begin(self, manifest: Manifest) -> None:
        """Takes a snapshot, which is written while training goes on. Waits for the save before this one.

        A rank that has no memory for a copy waits until its part is written; the others meet it in the next step.
        """
        with self._blocking("Saving", "Training"):
            self._land()
            flight = self._take_off(manifest, room=spare_bytes())
            if not flight.part.copied:
                wait([flight.work])

    def save(self, manifest: Manifest) -> None:
        """Saves what is not saved yet, at once: it is written as it lies there, without a copy.

        Where the save in flight has failed, this one tells whether the storage is at fault for good.
        """
        stopping = manifest.reason == "Stop"
        with self._blocking("Stopping" if stopping else "Saving", "Stopping" if stopping else "Training"):
            with suppress(StorageUnavailable):
                self._land()
            if self.step != manifest.step:
                self._take_off(manifest, room=0)
                self._land()

    def rescue(self, manifest: Manifest) -> None:
        """By rank 0 alone, when its peers are gone: saves the state as the last step left it, where the engine has all of it. A save that
        was in flight counts no more."""
        if self._flight is not None:
            wait([self._flight.work])
            files.leave(self._flight.workplace, self._flight.directory)
        self._since = began = time.monotonic()
        directory = self.store.begin(manifest.step)
        workplace = files.workplace(directory)
        try:
            part = self.engine.rescue(workplace)
            if part is not None:
                flight = _Flight(manifest, directory, workplace, part, began, Future())
                self._committed(flight, self._commit(flight, [self._write(part, workplace, directory)]))
        finally:
            files.leave(workplace, directory)
            if self.path != directory:
                self.store.abandon(directory)

    def advance(self) -> None:
        """Goes on with the save in flight, if there is one. At a step at which no rank is busy."""
        if self._flight is not None:
            with self._blocking():
                self._advance(self._flight)

    def _take_off(self, manifest: Manifest, *, room: int) -> _Flight:
        self._since = self.began = time.monotonic()
        directory = place_of(agree(self.engine, lambda: str(self.store.begin(manifest.step))))
        workplace = files.workplace(directory)
        part = self.engine.snapshot(workplace, room=room)
        work = self._thread.submit(self._write, part, workplace, directory)
        self._flight = _Flight(manifest, directory, workplace, part, self.began, work)
        return self._flight

    def _land(self) -> None:
        while self._flight is not None:
            wait([self._flight.work])
            self._advance(self._flight)

    def _advance(self, flight: _Flight) -> None:
        try:
            if flight.written:
                size = agree(self.engine, flight.work.result)
                files.leave(flight.workplace, flight.directory)
                self._committed(flight, size)
                return
            parts = gather(self.engine, flight.work.result)
        except BaseException:
            self._flight = None
            files.leave(flight.workplace, flight.directory)
            if self.engine.rank == 0:
                self.store.abandon(flight.directory)
            raise
        flight.written = True
        if self.engine.rank == 0:
            flight.work = self._thread.submit(self._commit, flight, parts)

    def _committed(self, flight: _Flight, size: int) -> None:
        self._flight = None
        self.step, self.path = flight.manifest.step, flight.directory
        if self.engine.rank == 0:
            now, reason = time.monotonic(), flight.manifest.reason
            seconds, blocked = now - flight.began, flight.blocked + now - self._since
            self.reached = flight.began
            times = {"seconds": seconds, "blockedSeconds": blocked}
            self.events.emit("commit", step=self.step, path=self.path.name, **times, bytes=size, reason=reason)
            self.events.say(f"saved step {self.step} in {seconds:.2f} s ({reason}); training waited {blocked:.2f} s for it")

    @contextmanager
    def _blocking(self, during: str | None = None, after: str | None = None) -> Iterator[None]:
        """Training waits; the phases are told, where there are some."""
        self._since = time.monotonic()
        if during:
            self.events.emit("phase", phase=during)
        yield
        if self._flight is not None:
            self._flight.blocked += time.monotonic() - self._since
        if after:
            self.events.emit("phase", phase=after)

    # beside the training

    def _write(self, part: Part, workplace: Path, directory: Place) -> list[Any]:
        began = time.monotonic()
        names, told = part.write()
        written = self.store.flush(workplace, names, directory)
        self._own_seconds = time.monotonic() - began
        return [written, told]

    def _commit(self, flight: _Flight, parts: list[Any]) -> int:
        with files.storage(flight.directory):
            names = flight.part.finish([told for _, told in parts])
        listing = self.store.flush(flight.workplace, names, flight.directory)
        for written, _ in parts:
            listing |= written
        self.seconds = self._own_seconds * sum(bool(written) for written, _ in parts)
        commit, size = self.store.commit(flight.directory, replace(flight.manifest, files=listing))
        if flight.manifest.reason not in ("Stop", "PeerLost"):  # somebody waits for the end
            self.store.retain(commit)
        return size


def _yield_to_steps() -> None:
    """Linux counts niceness by thread; elsewhere the system decides."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
