"""The checkpoints of a training: when they are due, and what follows if the storage fails."""

from __future__ import annotations

import time
from collections.abc import Callable

from muster_contract.errors import StorageUnavailable
from muster_contract.events import Activity, CommitReason
from muster_contract.notices import NoticeReason
from muster_trainer.checkpoint import Fence, Store
from muster_trainer.checkpoint.objects import Location, location_of
from muster_trainer.host.node_notice import NewNotices
from muster_trainer.training.agreement import agree, gather, of_all
from muster_trainer.training.interval import SaveInterval
from muster_trainer.training.outage import Outage
from muster_trainer.training.run import Run
from muster_trainer.training.saving import Saver

_LONGEST_PAUSE_AT_END = 5.0
"""Seconds. A stop request is noticed between two tries of the last save."""


def saver_of(run: Run) -> Saver | None:
    """The saver of the present attempt. None if the job has no storage."""
    checkpoint, env = run.spec.checkpoint, run.env
    if checkpoint is None:
        return None
    store = Store(location_of(checkpoint.directory), Fence(env.job_created, env.attempt), checkpoint.keep)
    return Saver(store, run.engine, run.events, SaveInterval(checkpoint, job_created=env.job_created, failures=env.attempt))


class Checkpoints:
    """Every rank calls the same methods in the same order, except the properties. Without a storage, none is due.

    `saver` is that of the present attempt. `saved_before` is the step of the newest commit in the earlier attempts of this process.
    """

    def __init__(
        self,
        run: Run,
        *,
        make_saver: Callable[[Run], Saver | None] = saver_of,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._run, self._make_saver, self._clock, self._sleep = run, make_saver, clock, sleep
        self.outage = Outage(clock)
        self.saver = make_saver(run)
        self.saved_before: int | None = None
        self._first = 0
        self._is_registered = True
        self._notices = NewNotices(run.env.state_dir)

    @property
    def path(self) -> Location | None:
        """The newest commit."""
        return self.saver.path if self.saver else None

    def enter_attempt(self) -> None:
        """Takes the fence of the attempt in `run.env`."""
        if self.saver:
            before = self.saver
            self.saved_before = before.step or self.saved_before
            before.break_off()
            self.saver = self._make_saver(self._run)
            if self.saver:
                self.saver.seconds = before.seconds

    def start(self, first: int, storage_error: str | None, *, waited: float) -> None:
        """Training begins after step `first`. With a `storage_error`, the attempt is registered with the next save, and the error counts as
        a save that has failed after `waited` seconds."""
        self._first, self._is_registered = first, storage_error is None
        if storage_error is None:
            self.outage.end()
            return
        self.count_failure(waited=waited)
        if self._run.engine.rank == 0:
            self._report_failure(storage_error)

    # between two steps

    @property
    def is_busy(self) -> bool:
        """Whether this rank still writes."""
        return self.saver is not None and self.saver.busy

    @property
    def is_time(self) -> bool:
        """Whether a save is due by the clock of rank 0: after everySeconds, again after one that has failed, or because a node of the job
        goes. The vote makes all ranks save at the same step. False during a save."""
        saver = self.saver
        if saver is None or self._run.engine.rank != 0 or saver.in_flight:
            return False
        if self.outage.is_on:
            return self.outage.is_due
        if self._notices.has_come():
            return True
        return saver.interval.seconds is not None and self._clock() - saver.began >= saver.interval.seconds

    def is_due(self, done: int) -> bool:
        """Whether a save is due by the number of steps."""
        every = self._run.spec.checkpoint.every_steps if self._run.spec.checkpoint else None
        return every is not None and done % every == 0 and not self.outage.is_on

    def advance(self) -> None:
        """Continues the save in flight. Call it at a step at which no rank is busy."""
        if self.saver:
            self._try(self.saver.advance)

    def save(self, done: int) -> None:
        """Saves. If the storage fails, training goes on."""
        saver, checkpoint = self.saver, self._run.spec.checkpoint
        if saver is None or checkpoint is None:
            return
        manifest = self._run.manifest(done, CommitReason.PERIODIC)
        save = saver.begin if checkpoint.asynchronous else saver.save

        def register_and_save() -> None:
            self._register()
            save(manifest)

        self._try(register_and_save)

    # the end

    def save_at_end(self) -> bool:
        """Saves the last step, and tries again while the storage fails. Returns False if a rank was asked to stop meanwhile."""
        saver, run = self.saver, self._run
        if saver is None:
            return True
        manifest = run.manifest(run.total, CommitReason.FINAL)

        def register_and_save() -> None:
            self._register()
            saver.save(manifest)

        while not self._has_saved(register_and_save):
            if any(gather(run.engine, lambda: run.stop.requested)):
                return False
            self._sleep(min(self.outage.pause, _LONGEST_PAUSE_AT_END))
        return True

    def save_at_stop(self, done: int) -> str | None:
        """Saves a step because a rank was asked to stop. Returns None, or why it is not saved."""
        if self.saver is None:
            return f"asked to stop at step {done}; it is not saved, since the job has no checkpoint storage"
        try:
            self._register()
            self.saver.save(self._run.manifest(done, CommitReason.STOP))
        except StorageUnavailable as error:
            return f"asked to stop at step {done}, and could not save: {error}"
        return None

    # a storage that fails

    def _register(self) -> None:
        """Registers this attempt, if the storage was unavailable when it began. If it still is, all ranks raise StorageUnavailable."""
        if not self._is_registered and self.saver is not None:
            store = self.saver.store
            agree(self._run.engine, lambda: store.register_step(self._first))
            self._is_registered = True

    def _try(self, save: Callable[[], None]) -> None:
        if not self._has_saved(save):
            self._run.events.phase(Activity.TRAINING)

    def _has_saved(self, save: Callable[[], None]) -> bool:
        """Calls `save`. Returns False on all ranks if the storage fails and they go on, and raises StorageUnavailable on all if it has
        failed for too long.

        It also raises if the first save of a job fails, because the storage may never have worked: the replicas may not share it.
        """
        assert self.saver is not None
        saver, newest, began = self.saver, self.saver.step, self._clock()
        failure = None
        try:
            save()
        except StorageUnavailable as error:
            failure = error
        if saver.step != newest:
            self.outage.end()
        if failure is None:
            return True
        if saver.path is None and not self._first:
            raise failure
        self.count_failure(waited=self._clock() - began)
        engine, outage = self._run.engine, self.outage
        seconds = max(gather(engine, lambda: outage.seconds))
        if seconds > outage.LIMIT:
            limit = f"the limit is {outage.LIMIT:.0f} s"
            raise of_all(engine, type(failure)(f"{failure}; no save has succeeded for {seconds:.0f} s; {limit}"))
        if engine.rank == 0:
            self._report_failure(str(failure))
        return False

    def count_failure(self, *, waited: float) -> None:
        """Counts a save that has failed after `waited` seconds. A rescue would take as long."""
        self.outage.add(waited=waited)
        if self.saver:
            self.saver.seconds = max(self.saver.seconds, waited)

    def _report_failure(self, cause: str) -> None:
        left = max(0.0, self.outage.LIMIT - self.outage.seconds)
        message = f"{cause}; training goes on, tries again, and ends if no save succeeds within {left:.0f} s"
        if self.outage.failures == 1:
            self._run.events.notice(NoticeReason.SAVE_FAILED, message)
        self._run.events.complain(message)
