"""Saving beside the training. At most one save is in flight, and it is committed once every rank has written its part.

The main threads do all collectives, between two steps. First every rank copies its part of the state. When no rank is busy any more,
rank 0 gathers the lists of written files and commits. When it is done, it broadcasts the result. A second thread writes the files, and
uses no collectives. If a process ends, a save in flight has no marker and does not count.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from muster_contract.environment import RESCUE_SECONDS
from muster_contract.errors import StorageUnavailable
from muster_contract.events import Activity, Commit, CommitReason
from muster_trainer.checkpoint import Manifest, Store, files
from muster_trainer.checkpoint.objects import Location, location_of
from muster_trainer.checkpoint.rescue import rescue
from muster_trainer.host.events import Events
from muster_trainer.host.memory import spare_bytes
from muster_trainer.host.priority import yield_to_steps
from muster_trainer.training.agreement import agree, gather
from muster_trainer.training.engine import Engine, Part
from muster_trainer.training.interval import SaveInterval


@dataclass
class _PendingSave:
    """A save in flight. `work` is the task of this rank: first writing its part, then, on rank 0, the commit. `blocked` is the time in
    seconds for which training has waited."""

    manifest: Manifest
    directory: Location
    staging: Path
    part: Part
    began: float
    work: Future[Any]
    written: bool = False
    blocked: float = 0.0


class Saver:
    """The checkpoints of one attempt. Every rank calls the same methods in the same order, but for `busy`.

    `step` and `path` are those of the newest commit, or of the one that the attempt resumed from. `seconds` is the time that one rank
    needs to write all parts. `began` is the start of the newest save. `interval` says how long after it the next one is due. If a save
    fails, every rank raises StorageUnavailable.
    """

    def __init__(self, store: Store, engine: Engine, events: Events, interval: SaveInterval) -> None:
        self.store, self.engine, self.events, self.interval = store, engine, events, interval
        self.step: int | None = None
        self.path: Location | None = None
        self.began = time.monotonic()
        self.seconds = self._own_seconds = 0.0
        self._pending: _PendingSave | None = None
        self._since = self.began
        self._thread = ThreadPoolExecutor(1, "save", initializer=yield_to_steps)

    @property
    def in_flight(self) -> bool:
        return self._pending is not None

    @property
    def busy(self) -> bool:
        """Whether this rank still works for the save in flight."""
        return self._pending is not None and not self._pending.work.done()

    def begin(self, manifest: Manifest) -> None:
        """Copies the state, and writes the copy while training continues. First waits for the previous save.

        A rank without memory for a copy waits until its part is written. The others then wait for it in the next step.
        """
        with self._blocking(Activity.SAVING, Activity.TRAINING):
            self._finish()
            pending = self._start(manifest, room=spare_bytes())
            if not pending.part.copied:
                wait([pending.work])

    def save(self, manifest: Manifest) -> None:
        """Saves the current step at once, without a copy, unless it is saved already.

        If the save in flight has failed, this one shows whether the storage still fails.
        """
        is_stopping = manifest.reason is CommitReason.STOP
        during, after = (Activity.STOPPING, Activity.STOPPING) if is_stopping else (Activity.SAVING, Activity.TRAINING)
        with self._blocking(during, after):
            with suppress(StorageUnavailable):
                self._finish()
            if self.step != manifest.step:
                self._start(manifest, room=0)
                self._finish()

    def rescue(self, manifest: Manifest) -> None:
        """This rank saves the state after the last step by itself, because its peers are gone. Does nothing if the engine does not have
        the whole state. A save in flight is abandoned."""
        self._abandon_save()
        self._since = began = time.monotonic()

        def commit(directory: Location, staging: Path, part: Part) -> None:
            pending = _PendingSave(manifest, directory, staging, part, began, Future())
            size, _ = self._commit(pending, [self._write(part, staging, directory)])
            self._committed(pending)
            self._report(pending, size)

        saved = rescue(self.store, manifest.step, seconds=self.seconds, stage=self.engine.rescue, commit=commit)
        if saved is not None:
            self.step, self.path = manifest.step, saved

    def _abandon_save(self) -> None:
        """Waits for the end of the save in flight, and removes what it has staged. Raises StorageUnavailable if it does not end."""
        if self._pending is not None:
            if wait([self._pending.work], RESCUE_SECONDS).not_done:
                raise StorageUnavailable(f"checkpoint storage {self._pending.directory}: a save does not end")
            files.remove_staging(self._pending.staging, self._pending.directory)

    def break_off(self) -> None:
        """Leaves the save in flight to its thread, because the world is gone. What it has written is removed when it ends."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.work.add_done_callback(lambda _: files.remove_staging(pending.staging, pending.directory))

    def advance(self) -> None:
        """Continues the save in flight, if there is one. Call it at a step at which no rank is busy."""
        if self._pending is not None:
            with self._blocking():
                self._advance(self._pending)

    def _start(self, manifest: Manifest, *, room: int) -> _PendingSave:
        self._since = self.began = time.monotonic()
        directory = location_of(agree(self.engine, lambda: str(self.store.begin(manifest.step))))
        staging = files.staging_folder(directory)
        part = self.engine.part_to_save(staging, room=room)
        work = self._thread.submit(self._write, part, staging, directory)
        self._pending = _PendingSave(manifest, directory, staging, part, self.began, work)
        return self._pending

    def _finish(self) -> None:
        while self._pending is not None:
            wait([self._pending.work])
            self._advance(self._pending)

    def _advance(self, pending: _PendingSave) -> None:
        try:
            if pending.written:
                size, self.seconds = agree(self.engine, pending.work.result)
                files.remove_staging(pending.staging, pending.directory)
                self._committed(pending)
                if self.engine.rank == 0:
                    self._report(pending, size)
                return
            parts = gather(self.engine, pending.work.result)
        except BaseException:
            self._pending = None
            files.remove_staging(pending.staging, pending.directory)
            if self.engine.rank == 0:
                self.store.abandon(pending.directory)
            raise
        pending.written = True
        if self.engine.rank == 0:
            pending.work = self._thread.submit(self._commit, pending, parts)

    def _committed(self, pending: _PendingSave) -> None:
        self._pending = None
        self.step, self.path = pending.manifest.step, pending.directory

    def _report(self, pending: _PendingSave, size: int) -> None:
        now, reason = time.monotonic(), pending.manifest.reason
        seconds, blocked = now - pending.began, pending.blocked + now - self._since
        commit = Commit(step=pending.manifest.step, path=pending.directory.name, bytes=size, reason=reason)
        interval = self.interval.measure(seconds=seconds, blocked=blocked)
        self.events.emit(replace(commit, seconds=seconds, blocked_seconds=blocked, interval_seconds=interval))
        self.events.say(f"saved step {self.step} in {seconds:.2f} s ({reason}); training waited {blocked:.2f} s for it")

    @contextmanager
    def _blocking(self, during: Activity | None = None, after: Activity | None = None) -> Iterator[None]:
        """Training waits inside. Sends the phases `during` and `after`, if given."""
        self._since = time.monotonic()
        if during:
            self.events.phase(during)
        yield
        if self._pending is not None:
            self._pending.blocked += time.monotonic() - self._since
        if after:
            self.events.phase(after)

    # beside the training

    def _write(self, part: Part, staging: Path, directory: Location) -> list[Any]:
        began = time.monotonic()
        names, details = part.write()
        written = self.store.flush(staging, names, directory)
        self._own_seconds = time.monotonic() - began
        return [written, details]

    def _commit(self, pending: _PendingSave, parts: list[Any]) -> tuple[int, float]:
        """Returns the bytes of the checkpoint, and the seconds that one rank needs to write all of it."""
        with files.storage(pending.directory):
            names = pending.part.finish([details for _, details in parts])
        listing = self.store.flush(pending.staging, names, pending.directory)
        for written, _ in parts:
            listing |= written
        commit, size = self.store.commit(pending.directory, replace(pending.manifest, files=listing))
        if not pending.manifest.reason.is_urgent:
            self.store.retain(commit)
        return size, self._own_seconds * sum(bool(written) for written, _ in parts)
