"""The third rung: checkpoints."""

from __future__ import annotations

from muster_contract.environment import RESCUE_SECONDS
from muster_contract.errors import TrainerError
from muster_contract.events import Activity, CommitReason, ResumeSource
from muster_contract.notices import NoticeReason
from muster_trainer.checkpoint import read_back
from muster_trainer.tasks.module import describe
from muster_trainer.training.checkpoints import Checkpoints
from muster_trainer.training.recovery.memory import Memory
from muster_trainer.training.resume_point import ResumePoint, agree_on_resume_point, choose_and_register
from muster_trainer.training.run import Run


class Storage:
    """The checkpoints of the job, and the rescue of a rank that has lost its peers."""

    source = ResumeSource.STORAGE

    def __init__(self, run: Run, checkpoints: Checkpoints, memory: Memory) -> None:
        self._run, self._checkpoints, self._memory = run, checkpoints, memory

    def newest(self, other: ResumePoint | None) -> ResumePoint:
        """The newest commit, or the offer of another rung if that is as new, or the beginning. Rank 0 decides, and registers the attempt at
        that step, so that no older attempt may commit."""
        return agree_on_resume_point(self._run.engine, lambda: self._choose(other))

    def _choose(self, other: ResumePoint | None) -> ResumePoint:
        run, saver = self._run, self._checkpoints.saver
        if saver is None or run.spec.checkpoint is None:
            return other or ResumePoint()
        return choose_and_register(run.spec.checkpoint, saver.store, other, run.identity)

    def restore(self, point: ResumePoint) -> None:
        saver = self._checkpoints.saver
        assert saver is not None
        assert point.location is not None
        saver.step, saver.path = point.step, point.location
        self._run.done = None
        with read_back(point.location) as folder:
            self._run.engine.load(folder)

    def save_without_peers(self) -> bool:
        """Saves the steps since the newest commit, if this rank has the whole state, and time to write it."""
        run, saver, done = self._run, self._checkpoints.saver, self._run.done
        is_in_time = saver is not None and run.engine.rescues and saver.seconds <= RESCUE_SECONDS
        is_saved = saver is not None and done in (saver.step or 0, self._checkpoints.saved_before)
        is_of_use = is_in_time and done is not None and not is_saved
        if run.engine.rank and run.last is not None and (is_of_use or not self._memory.delays_events):
            run.events.emit(run.last)  # rank 0 may have ended before it could report this step
        if saver is None or done is None or not is_of_use:
            return False
        run.events.phase(Activity.STOPPING)
        try:
            saver.rescue(run.manifest(done, CommitReason.PEER_LOST))
        except Exception as error:  # noqa: BLE001 (the attempt ends because of the lost peers)
            cause = str(error) if isinstance(error, TrainerError) else describe(error)
            run.events.notice(NoticeReason.RESCUE_FAILED, f"the peers are gone, and step {done} could not be saved: {cause}")
        return True
