"""The second rung: snapshots in the memory of the replicas."""

from __future__ import annotations

import json

from muster_contract.events import Activity, Event, ResumeSource, Snapshot, Step, decode_event, encode_event
from muster_contract.notices import NoticeReason
from muster_trainer.snapshots.choice import CompleteSnapshot
from muster_trainer.training.resume_point import ResumePoint
from muster_trainer.training.run import Run


class Memory:
    """The snapshots of this process. Without snapshots in memory, it has none and takes none."""

    source = ResumeSource.MEMORY

    def __init__(self, run: Run) -> None:
        self._run, self._peers = run, run.engine.memory
        self._offered: CompleteSnapshot | None = None

    # the rung

    def offer(self) -> ResumePoint | None:
        self._offered = self._peers.newest() if self._peers else None
        return None if self._offered is None else ResumePoint(step=self._offered.step, source=self.source)

    def restore(self, point: ResumePoint) -> None:
        assert self._peers is not None
        assert self._offered is not None
        self._peers.restore(self._offered)
        self._run.last = step_of(self._offered)

    def save_without_peers(self) -> bool:
        run = self._run
        if self._peers is None or run.done is None or not self._peers.store_alone(run.done, self._event()):
            return False
        run.events.phase(Activity.STOPPING)
        if run.last is not None:
            run.events.emit(run.last)  # rank 0 may have ended before it could report this step
        return True

    # snapshots

    @property
    def delays_events(self) -> bool:
        """Whether a step is reported only when its snapshot is complete, so that no reported step is lost."""
        return self._peers is not None and self._peers.is_on and self._peers.between.fixed == 1

    def start(self, step: int) -> None:
        """Prepares for snapshots of a training that begins after `step`."""
        if self._peers:
            self._peers.start(step)

    def add_step(self, seconds: float) -> None:
        """Adds the duration of a step."""
        if self._peers:
            self._peers.between.add_step(seconds)

    def snapshot(self, done: int) -> None:
        """Takes a snapshot if one is due."""
        if self._peers and self._peers.between.is_due(done):
            self._begin(done, self._run.last if self.delays_events else None)

    def snapshot_again(self, done: int) -> None:
        """Takes a snapshot in any case, so that every part has all of its copies."""
        if self._peers:
            self._begin(done, None)

    def snapshot_at_stop(self, done: int) -> None:
        """Takes a snapshot unless there is one of this step, and waits until it is complete."""
        if self._peers and self._peers.between.newest != done:
            self._begin(done, None)
        self.finish()

    def finish(self) -> None:
        """Waits until the snapshot that was begun is complete."""
        if self._peers:
            self._peers.finish()

    def _begin(self, done: int, delayed: Event | None) -> None:
        assert self._peers is not None
        events, rank, copies = self._run.events, self._run.engine.rank, self._peers.copies

        def complete(size: int | None) -> None:
            if rank != 0:
                return
            if delayed is not None:
                events.emit(delayed)
            if size is not None:
                events.emit(Snapshot(step=done, bytes=size, copies=copies))

        self._peers.begin(done, self._event(), complete)

    def _event(self) -> str | None:
        """The event of the last step, for a snapshot that delays it."""
        return json.dumps(encode_event(self._run.last)) if self.delays_events and self._run.last is not None else None

    def report_unused(self, point: ResumePoint) -> None:
        """Sends a notice if training resumes from an older state than snapshots have, or if a job that asks for them has none."""
        peers, run = self._peers, self._run
        if peers is None:
            return
        parts, is_auto = peers.newest_part, run.spec.snapshots is not None and run.spec.snapshots.auto
        where = "storage" if point.source is ResumeSource.STORAGE else "the beginning"
        if self._offered is None and parts > point.step:
            message = f"no snapshot in memory has all parts (the newest part is of step {parts}); training goes on from {where}"
        elif run.env.attempt and not parts and point.source is ResumeSource.STORAGE and not point.may_lack_evaluation and not is_auto:
            message = f"no replica has a snapshot of an earlier attempt in its memory; training goes on from {where}"
        else:
            return
        run.warn(NoticeReason.SNAPSHOT_INCOMPLETE, message)


def step_of(snapshot: CompleteSnapshot) -> Step | None:
    """The event of the step after which a snapshot was taken, if the snapshot has it."""
    try:
        document = json.loads(snapshot.headers[0].event or "")
    except (ValueError, RecursionError):
        return None
    event = decode_event(document) if isinstance(document, dict) else None
    return event if isinstance(event, Step) else None
