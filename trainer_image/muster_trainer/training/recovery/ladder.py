"""The ladder: which state training continues from, and who saves a state that is about to be lost."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Protocol

from muster_contract.errors import PeerLost
from muster_contract.events import Activity, ResumeSource, WholeState
from muster_contract.notices import NoticeReason
from muster_trainer.training.checkpoints import Checkpoints
from muster_trainer.training.recovery.memory import Memory
from muster_trainer.training.recovery.storage import Storage
from muster_trainer.training.recovery.survivors import Survivors
from muster_trainer.training.resume_point import ResumePoint
from muster_trainer.training.run import Run


class Rung(Protocol):
    """A place that may have the state. Every rank calls `offer` and `restore` in the same order."""

    source: ResumeSource

    def offer(self) -> ResumePoint | None:
        """The newest step that this rung can restore, the same on all ranks; None if it has none."""

    def restore(self, point: ResumePoint) -> None:
        """Gives this process the state of an offer. While a state is overwritten, `run.done` is None, so that nothing saves a mixture."""


class Ladder:
    """Survivors, Memory, Storage: of the newest states, the one of the first rung counts. A lost peer is answered in the same order."""

    def __init__(self, run: Run, memory: Memory, checkpoints: Checkpoints) -> None:
        self._run, self._memory, self._checkpoints = run, memory, checkpoints
        self._survivors = Survivors(run, self.save_without_peers)
        self._storage = Storage(run, checkpoints, memory)
        self._is_new = True

    def offers(self) -> list[ResumePoint]:
        """The states in the memory of this world."""
        rungs: tuple[Rung, ...] = (self._survivors, self._memory)
        return [offer for rung in rungs if (offer := rung.offer()) is not None]

    def join(self) -> None:
        """Joins the next world, if this process has survived the one before."""
        if not self._is_new:
            self._run.events.phase(Activity.STARTING)
            self._report_whole_state()
            self._survivors.join(self._checkpoints.enter_attempt)

    def resume(self) -> ResumePoint:
        """Agrees with all ranks on the state to continue from, and restores it."""
        run = self._run
        run.events.phase(Activity.RESTORING)
        in_memory = max(self.offers(), key=lambda offer: offer.step, default=None)
        began = time.monotonic()
        point = self._storage.newest(in_memory)
        self._checkpoints.start(point.step, point.storage_error, waited=time.monotonic() - began)
        if run.engine.rank == 0:
            self._report_skipped(point)
        self.restore(point)
        if run.engine.rank == 0:
            self._report(point)
        if self._is_new:
            self._report_whole_state()
        return point

    def restore(self, point: ResumePoint) -> None:
        rungs: tuple[Rung | Storage, ...] = (self._survivors, self._memory, self._storage)
        for rung in rungs:
            if rung.source is point.source:
                rung.restore(point)
        self._memory.start(point.step)
        if self._run.last is not None and self._run.last.step != point.step:
            self._run.last = None  # this process did that step in the previous world only

    def goes_on_after(self, error: PeerLost) -> bool:
        """Keeps the state after the last step, because a peer is lost. Returns whether this process goes on in the next world."""
        if self._survivors.keep(error):
            self._is_new = False
            return True
        self.save_without_peers()
        return False

    def save_without_peers(self) -> None:
        """Saves the state after the last step in memory, or else in the storage."""
        if not self._memory.save_without_peers():
            self._storage.save_without_peers()

    # reports

    def _report_whole_state(self) -> None:
        if self._run.engine.rescues:
            self._run.events.emit(WholeState(waits=self._survivors.may_wait))

    def _report_skipped(self, point: ResumePoint) -> None:
        """Sends notices about a snapshot or a checkpoint that could not be used."""
        for message in point.warnings:
            self._run.warn(NoticeReason.CHECKPOINT_DAMAGED, message)
        self._memory.report_unused(point)

    def _report(self, point: ResumePoint) -> None:
        run, steps = self._run, self._survivors.steps
        survivors = steps.survivors if steps else 0
        run.events.emit(replace(point.event(), survivors=survivors))
        start = f"resumed from {point.path}" if point.path else "starting at step 0"
        if point.source is ResumeSource.SURVIVORS and steps:
            start = f"{survivors} of {len(steps.steps)} processes go on at step {point.step}"
        if point.source is ResumeSource.MEMORY:
            start = f"resumed at step {point.step} from the memory of the replicas"
            if run.last is not None:
                run.events.emit(run.last)  # the attempt of the step may have ended before it was reported
        run.events.say(f"{run.task.title}: {start}, {run.total} steps, {run.engine.devices} device(s)")
