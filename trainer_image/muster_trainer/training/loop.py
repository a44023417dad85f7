"""The training of one process, from resume to the final commit. It is the same for every strategy and imports no framework."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from muster_contract.codes import ExitCode
from muster_contract.environment import NAMES, RESCUE_SECONDS, ReplicaEnvironment
from muster_contract.errors import ConnectionLost, PeerLost, StorageUnavailable, TrainerError, UserError
from muster_contract.events import (
    Activity,
    CommitReason,
    Evaluation,
    Event,
    ResumeSource,
    Snapshot,
    Step,
    WholeState,
    decode_event,
    encode_event,
)
from muster_contract.notices import NoticeReason
from muster_contract.printed import epoch_line
from muster_contract.trainer_spec import CheckpointSpec, TrainerSpec
from muster_trainer.checkpoint import Fence, Manifest, Store, read_back
from muster_trainer.checkpoint.objects import location_of
from muster_trainer.data import Order, batches_in_order
from muster_trainer.data.stall import Stall
from muster_trainer.export import Export
from muster_trainer.host.events import Events
from muster_trainer.host.memory import peak_bytes
from muster_trainer.host.stopping import StopRequest
from muster_trainer.snapshots.choice import CompleteSnapshot
from muster_trainer.tasks.module import Task, describe
from muster_trainer.training.agreement import agree, gather, leave, of_all
from muster_trainer.training.engine import Engine, StepOutcome, Survival, rate_share
from muster_trainer.training.interval import SaveInterval
from muster_trainer.training.outage import Outage
from muster_trainer.training.pace import Pace
from muster_trainer.training.resume_point import ResumePoint, agree_on_resume_point, choose_and_register, of_memory
from muster_trainer.training.saving import Saver
from muster_trainer.training.summaries import Summaries
from muster_trainer.training.survivor import Survivor, SurvivorSteps

_SAMPLES_NAMED = 8
_LONGEST_PAUSE_AT_END = 5.0
"""Seconds. A stop request is noticed between two tries of the last save."""
_NAN_LOSS_EFFECTS = {"nanLoss: Skip": "leaves out such steps", "nanLoss: Continue": "goes on"}


def nan_loss_remedies(refused: Collection[str]) -> str:
    """The remedies for a loss that is not a finite number, without those that the engine has `refused` (`Engine.refuses`)."""
    clip = "" if "gradientClipNorm" in refused else "gradientClipNorm, or "
    others = [f"{setting} {effect}" for setting, effect in _NAN_LOSS_EFFECTS.items() if setting not in refused]
    return f"Write a smaller learningRate, or {clip}look for a bad sample" + "".join(f"; {other}" for other in others)


@dataclass
class Training:
    """One run of the training loop. `run` does all of it."""

    spec: TrainerSpec
    env: ReplicaEnvironment
    task: Task
    engine: Engine
    events: Events
    stop: StopRequest

    def __post_init__(self) -> None:
        runs = self.engine.devices if self.spec.input.shard == "File" else 1
        self.order = Order(self.task.config.seed, len(self.task.train), self.spec.batch.global_size, runs)
        self.total = self.task.config.epochs * self.order.steps_per_epoch
        self.saver = self._saver(self.spec.checkpoint) if self.spec.checkpoint else None
        self.memory = self.engine.memory
        self.outage = Outage()
        self.survivor = Survivor(self.events, self.stop, attempt=self.env.attempt, disconnect=self.engine.disconnect)
        self.is_stopping = False
        self.is_new = True
        self.unregistered = False
        self.export = Export.of(self.task, self.spec)
        self.done: int | None = None
        self.saved_before: int | None = None
        """The step of the newest commit in the earlier attempts of this process."""
        self.last: Step | None = None
        self.unmeasured = False
        self.had_nan_loss = False
        self.stalenesses: list[int] = []
        self.stall = Stall()
        self.pace = Pace()

    def run(self) -> ExitCode:
        """Trains to the end, or until asked to stop. Raises TrainerError for every other end."""
        while True:
            try:
                return self._train()
            except PeerLost as error:
                if not self._wait_for_next_world(error):
                    self._rescue()
                    raise

    def _wait_for_next_world(self, error: PeerLost) -> bool:
        """Waits for the next attempt. Returns whether this process continues in it, with the state after step `done`."""
        is_connection_lost = isinstance(error, ConnectionLost)
        survival = self.engine.survival
        if not is_connection_lost or survival is None or self.done is None or self.is_stopping or not self.survivor.may_wait:
            return False
        survival.abandon_world()
        if not self.survivor.wait(done=self.done, last=self.last, message=str(error), rescue=self._rescue):
            return False
        self.summaries.close()
        self.is_new = False
        return True

    def _rejoin(self, survival: Survival, done: int) -> None:
        """Joins the next world, and reports as a new process does."""
        self.events.phase(Activity.STARTING)
        self._report_whole_state()
        self._enter_attempt()
        with self.survivor.joining(self._rescue_in_advance) as meanwhile:
            try:
                survival.rejoin(done, meanwhile)
            except PeerLost:
                raise
            except Exception as error:  # after any error, a new process can join instead
                raise PeerLost(f"this process cannot go on in attempt {os.environ[NAMES['attempt']]}: {describe(error)}") from error
        self.events.fingerprint(self.engine.fingerprint())
        self.survivor.survived(done)

    def _enter_attempt(self) -> None:
        """Takes the fence of the attempt that the environment names. A rescue may need it before all ranks have joined, because rank 0 may
        have registered the attempt already, and then no older fence may save."""
        self.env = ReplicaEnvironment.from_environment(os.environ)
        if self.saver and self.spec.checkpoint:
            self.saved_before = self.saver.step or self.saved_before
            self.saver.break_off()
            self.saver = self._saver(self.spec.checkpoint, seconds=self.saver.seconds)

    def _rescue_in_advance(self) -> None:
        self._rescue()
        self.events.phase(Activity.STARTING)

    def _train(self) -> ExitCode:
        if not self.is_new and self.engine.survival and self.done is not None:
            self._rejoin(self.engine.survival, self.done)
        if self.export:
            agree(self.engine, self.export.claim)
        self.first = first = self._resume()
        if first:
            self._snapshot(first, again=True)
        self.summaries = self._summaries(first)
        self.stop.training = True
        self.events.phase(Activity.TRAINING)
        self.engine.expect(self.order, range(first, self.total))
        self.done = first
        if self.unmeasured and first < self.total and self._evaluation_due(first):
            self._evaluate(first)
        for step in range(first, self.total):
            outcome = self._step(step)
            self.done = done = step + 1
            self._snapshot(done)
            if self.saver and not outcome.busy:
                self._try_to_save(self.saver.advance)
            if done == self.total:
                break
            if outcome.stop:
                return self._stop(done)
            if outcome.save or self._due(done):
                self._save(done)
            if self._evaluation_due(done):
                self._evaluate(done)
        self._land()
        if self.saver and not self._save_at_end(self.saver):
            return self._stop(self.total)
        self._evaluate(self.total)
        self._export()
        self.summaries.close()
        self._leave()
        return ExitCode.COMPLETED

    # resume

    def _resume(self) -> int:
        """Agrees on the state from which all ranks continue, restores it, and returns the steps done."""
        self.events.phase(Activity.RESTORING)
        snapshot = self.memory.newest() if self.memory else None
        survivors = self.engine.survivor_steps
        began = time.monotonic()
        point = agree_on_resume_point(self.engine, lambda: self._choose(of_memory(survivors, snapshot)))
        # At a stop, and after a snapshot, the evaluation that is due after the step may be missing.
        in_memory = point.source in (ResumeSource.MEMORY, ResumeSource.SURVIVORS)
        self.unmeasured = in_memory or (point.reason is not None and point.reason.is_urgent)
        self.unregistered = point.storage_error is not None
        if self.unregistered:
            self._count_failure(waited=time.monotonic() - began)
        else:
            self.outage.end()
        if self.engine.rank == 0:
            self._report_what_is_skipped(point, snapshot)
        self._restore(point, snapshot)
        if self.engine.rank == 0:
            self._report_resume(point, survivors)
        if self.is_new:
            self._report_whole_state()
        return point.step

    def _choose(self, memory: ResumePoint | None) -> ResumePoint:
        if self.saver is None or self.spec.checkpoint is None:
            return memory or ResumePoint()
        return choose_and_register(self.spec.checkpoint, self.saver.store, memory, self._identity)

    def _restore(self, point: ResumePoint, snapshot: CompleteSnapshot | None) -> None:
        """Gives this process the state of `point`. While a state is overwritten, `done` is None, so that nothing saves a mixture."""
        if point.location is not None:
            assert self.saver is not None
            self.saver.step, self.saver.path = point.step, point.location
            self.done = None
            with read_back(point.location) as folder:
                self.engine.load(folder)
        elif point.source is ResumeSource.SURVIVORS and self.engine.survival:
            if self.done != point.step:
                self.done = None
            self.engine.survival.adopt()
        elif point.source is ResumeSource.MEMORY and self.memory and snapshot:
            self.memory.restore(snapshot)
            self.last = _step_of(snapshot)
        if self.memory:
            self.memory.start(point.step)
        if self.last is not None and self.last.step != point.step:
            self.last = None  # this process did that step in the previous world only

    def _report_resume(self, point: ResumePoint, survivors: SurvivorSteps | None) -> None:
        count = survivors.survivors if survivors else 0
        self.events.emit(replace(point.event(), survivors=count))
        start = f"resumed from {point.path}" if point.path else "starting at step 0"
        if point.source is ResumeSource.SURVIVORS and survivors:
            start = f"{count} of {len(survivors.steps)} processes go on at step {point.step}"
        if point.source is ResumeSource.MEMORY:
            start = f"resumed at step {point.step} from the memory of the replicas"
            if self.last is not None:
                self.events.emit(self.last)  # the attempt of the step may have ended before it was reported
        self.events.say(f"{self.task.title}: {start}, {self.total} steps, {self.engine.devices} device(s)")

    def _report_whole_state(self) -> None:
        if self.engine.rescues:
            self.events.emit(WholeState(waits=self.engine.survival is not None and self.survivor.may_wait))

    def _register(self) -> None:
        """Registers this attempt, if the storage was unavailable when it began. If it still is, all ranks raise StorageUnavailable."""
        if self.unregistered and self.saver is not None:
            store = self.saver.store
            agree(self.engine, lambda: store.register_step(self.first))
            self.unregistered = False

    def _report_what_is_skipped(self, point: ResumePoint, snapshot: CompleteSnapshot | None) -> None:
        """Sends notices about a storage, a snapshot or a checkpoint that could not be used."""
        for message in point.warnings:
            self.events.notice(NoticeReason.CHECKPOINT_DAMAGED, message)
            self.events.complain(message)
        if point.storage_error:
            self._not_stored(point.storage_error)
        parts = self.memory.newest_part if self.memory else 0
        where = "storage" if point.source is ResumeSource.STORAGE else "the beginning"
        if snapshot is None and parts > point.step:
            self._not_in_memory(f"no snapshot in memory has all parts (the newest part is of step {parts}); training goes on from {where}")
        elif self._expects_snapshots and not parts and point.source is ResumeSource.STORAGE and not self.unmeasured:
            self._not_in_memory(f"no replica has a snapshot of an earlier attempt in its memory; training goes on from {where}")

    @property
    def _expects_snapshots(self) -> bool:
        """Whether earlier attempts took snapshots, because the job asks for them."""
        return self.memory is not None and self.env.attempt > 0 and not (self.spec.snapshots and self.spec.snapshots.auto)

    def _not_in_memory(self, message: str) -> None:
        self.events.notice(NoticeReason.SNAPSHOT_INCOMPLETE, message)
        self.events.complain(message)

    def _not_stored(self, cause: str) -> None:
        left = max(0.0, self.outage.LIMIT - self.outage.seconds)
        message = f"{cause}; training goes on, tries again, and ends if no save succeeds within {left:.0f} s"
        if self.outage.failures == 1:
            self.events.notice(NoticeReason.SAVE_FAILED, message)
        self.events.complain(message)

    @property
    def _identity(self) -> dict[str, Any]:
        return {
            **self.task.identity,
            "spec.batch.globalSize": self.spec.batch.global_size,
            "framework": self.engine.fingerprint()["framework"],
        }

    # steps

    def _step(self, step: int) -> StepOutcome:
        began = time.monotonic()
        indices = self.order.batch_indices(step)
        busy = self.saver is not None and self.saver.busy
        outcome = self.engine.step(indices, step=step, stop=self.stop.requested, save=self._seconds_due(), busy=busy)
        met = time.monotonic()
        if self.task.config.stepDelaySeconds:
            time.sleep(self.task.config.stepDelaySeconds)
        self.last = self._as_event(step + 1, outcome, samples=len(indices), seconds=time.monotonic() - began)
        if self.memory is not None:
            self.memory.between.add_step(self.last.seconds)
        if self.engine.rank == 0:
            self._report_step(self.last)
        if not math.isfinite(outcome.loss):
            self._handle_nan_loss(step, outcome.loss)
        own = None if outcome.own_seconds is None else outcome.own_seconds + time.monotonic() - met
        pace = self.pace.add(seconds=time.monotonic() - began, own=own, whole=outcome.measures_passes)
        if pace is not None:
            self.events.emit(replace(pace, step=step + 1))
        return outcome

    def _handle_nan_loss(self, step: int, loss: float) -> None:
        """Applies `nanLoss` when the loss is not a finite number. With Skip, the engine has left out the update."""
        policy = self.task.config.nanLoss
        problem = f"the loss of step {step + 1} (epoch {self.order.epoch(step) + 1}) is {loss}"
        if policy == "Stop":
            samples = ", ".join(map(str, self.order.batch_indices(step)[:_SAMPLES_NAMED]))
            message = f"{problem}; its batch begins with the samples {samples} of the data set. {nan_loss_remedies(self.engine.refuses)}"
            self.done = None  # the state has such numbers, so no world may continue from it
            raise of_all(self.engine, UserError(message))
        if self.engine.rank == 0 and not self.had_nan_loss:
            done = "is left out (nanLoss: Skip)" if policy == "Skip" else "is used nevertheless (nanLoss: Continue)"
            self.events.notice(NoticeReason.LOSS_NOT_FINITE, f"{problem}: its gradient {done}; further ones are not reported")
        self.had_nan_loss = True

    def _as_event(self, done: int, outcome: StepOutcome, *, samples: int, seconds: float) -> Step:
        return Step(
            step=done,
            total_steps=self.total,
            epoch=done // self.order.steps_per_epoch,
            loss=str(outcome.loss),
            loss_hex=outcome.loss.hex(),
            samples=samples,
            seconds=seconds,
            input_seconds=outcome.input_seconds,
            staleness=outcome.staleness,
        )

    @property
    def _delays_events(self) -> bool:
        """Whether a step is reported only when its snapshot is complete, so that no reported step is lost."""
        return self.memory is not None and self.memory.is_on and self.memory.between.fixed == 1

    def _report_step(self, event: Step) -> None:
        done, loss, seconds = event.step, event.loss_value, event.seconds
        if event.staleness is not None:
            self.stalenesses.append(event.staleness)
        if not self._delays_events:
            self.events.emit(event)
        rates = {
            "samples_per_second": event.samples / max(seconds, 1e-9),
            "learning_rate": self.engine.learning_rate * rate_share(self.task, done - 1),
        }
        self.summaries.write(done, {"loss": loss, "input_share": event.input_seconds / max(seconds, 1e-9), **rates})
        if message := self.stall.add(seconds=seconds, waited=event.input_seconds):
            self.events.notice(NoticeReason.INPUT_STALLED, message)
        epoch, rest = divmod(done, self.order.steps_per_epoch)
        if not rest:
            waited = f", {self.stall.share:.0%} of the time waiting for samples"
            self.events.say(epoch_line(epoch, self.task.config.epochs, step=done, loss=loss) + waited)

    def _seconds_due(self) -> bool:
        """Whether a save is due by the clock of rank 0: after everySeconds, or again after one that has failed. The vote makes all ranks
        save at the same step. False during a save."""
        saver = self.saver
        if saver is None or self.engine.rank != 0 or saver.in_flight:
            return False
        if self.outage.is_on:
            return self.outage.is_due
        return saver.interval.seconds is not None and time.monotonic() - saver.began >= saver.interval.seconds

    def _due(self, done: int) -> bool:
        every = self.spec.checkpoint.every_steps if self.spec.checkpoint else None
        return every is not None and done % every == 0 and not self.outage.is_on

    # snapshots in memory

    def _snapshot(self, done: int, *, again: bool = False) -> None:
        """Takes a snapshot if one is due. With `again`, takes one in any case, so that every shard has all of its copies."""
        if self.memory is None or not (again or self.memory.between.is_due(done)):
            return
        delayed: Event | None = self.last if self._delays_events and not again else None

        copies = self.memory.copies

        def complete(size: int | None) -> None:
            if self.engine.rank != 0:
                return
            if delayed is not None:
                self.events.emit(delayed)
            if size is not None:
                self.events.emit(Snapshot(step=done, bytes=size, copies=copies))

        self.memory.begin(done, self._last_as_text(), complete)

    def _last_as_text(self) -> str | None:
        return json.dumps(encode_event(self.last)) if self._delays_events and self.last is not None else None

    def _land(self) -> None:
        """Waits until the snapshot that was begun is complete."""
        if self.memory is not None:
            self.memory.land()

    # checkpoints

    def _try_to_save(self, save: Callable[[], None]) -> None:
        """Saves. If the storage fails, training goes on."""
        if not self._has_saved(save):
            self.events.phase(Activity.TRAINING)

    def _has_saved(self, save: Callable[[], None]) -> bool:
        """Calls `save`. Returns False on all ranks if the storage fails and they go on, and raises StorageUnavailable on all if it has
        failed for too long.

        It also raises if the first save of a job fails, because the storage may never have worked: the replicas may not share it.
        """
        assert self.saver is not None
        saver, newest, began = self.saver, self.saver.step, time.monotonic()
        failure = None
        try:
            save()
        except StorageUnavailable as error:
            failure = error
        if saver.step != newest:
            self.outage.end()
        if failure is None:
            return True
        if saver.path is None and not self.first:
            raise failure
        self._count_failure(waited=time.monotonic() - began)
        seconds = max(gather(self.engine, lambda: self.outage.seconds))
        if seconds > self.outage.LIMIT:
            limit = f"the limit is {self.outage.LIMIT:.0f} s"
            raise of_all(self.engine, StorageUnavailable(f"{failure}; no save has succeeded for {seconds:.0f} s; {limit}"))
        if self.engine.rank == 0:
            self._not_stored(str(failure))
        return False

    def _count_failure(self, *, waited: float) -> None:
        self.outage.add(waited=waited)
        if self.saver:
            self.saver.seconds = max(self.saver.seconds, waited)  # a rescue would take as long

    def _save_at_end(self, saver: Saver) -> bool:
        """Saves the last step, and tries again while the storage fails. Returns False if a rank was asked to stop meanwhile."""
        manifest = self._manifest(self.total, CommitReason.FINAL)

        def register_and_save() -> None:
            self._register()
            saver.save(manifest)

        while not self._has_saved(register_and_save):
            if any(gather(self.engine, lambda: self.stop.requested)):
                return False
            time.sleep(min(self.outage.pause, _LONGEST_PAUSE_AT_END))
        return True

    def _save(self, done: int) -> None:
        if self.saver is None or self.spec.checkpoint is None:
            return
        saver, manifest = self.saver, self._manifest(done, CommitReason.PERIODIC)
        save = saver.begin if self.spec.checkpoint.asynchronous else saver.save

        def register_and_save() -> None:
            self._register()
            save(manifest)

        self._try_to_save(register_and_save)

    def _manifest(self, done: int, reason: CommitReason) -> Manifest:
        fingerprint = self.engine.fingerprint()
        return Manifest(
            step=done,
            epoch=done // self.order.steps_per_epoch,
            seed=self.task.config.seed,
            samplesSeen=self.order.samples_before(done),
            world=self.engine.world,
            strategy=self.env.strategy,
            attempt=self.env.attempt,
            versions={fingerprint["framework"]: fingerprint["version"], **fingerprint["libraries"]},
            identity=self._identity,
            reason=reason,
            createdAt=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def _stop(self, done: int) -> ExitCode:
        self.is_stopping = True
        self.events.phase(Activity.STOPPING)
        self.summaries.close()
        if self.memory is not None and self.memory.between.newest != done:
            self._snapshot(done, again=True)
        self._land()
        if self.saver is None:
            self._not_saved(f"asked to stop at step {done}; it is not saved, since the job has no checkpoint storage")
            return ExitCode.PREEMPTED_NOT_SAVED
        try:
            self._register()
            self.saver.save(self._manifest(done, CommitReason.STOP))
        except StorageUnavailable as error:
            self._not_saved(f"asked to stop at step {done}, and could not save: {error}")
            return ExitCode.PREEMPTED_NOT_SAVED
        self._leave()
        return ExitCode.PREEMPTED

    def _rescue(self) -> None:
        """Saves the steps since the newest commit when the peers are gone, if this rank has the state, and time to write it.

        If the state can be stored in memory, writes nothing to the storage."""
        if self._store_in_memory():
            return
        saver, done = self.saver, self.done
        is_in_time = saver is not None and self.engine.rescues and saver.seconds <= RESCUE_SECONDS
        is_saved = saver is not None and done in (saver.step or 0, self.saved_before)
        is_of_use = is_in_time and done is not None and not is_saved
        if self.engine.rank and self.last is not None and (is_of_use or not self._delays_events):
            self.events.emit(self.last)  # rank 0 may have ended before it could report this step
        if saver is None or done is None or not is_of_use:
            return
        self.events.phase(Activity.STOPPING)
        try:
            saver.rescue(self._manifest(done, CommitReason.PEER_LOST))
        except Exception as error:  # noqa: BLE001 (the attempt ends because of the lost peers)
            cause = str(error) if isinstance(error, TrainerError) else describe(error)
            message = f"the peers are gone, and step {done} could not be saved: {cause}"
            self.events.notice(NoticeReason.RESCUE_FAILED, message)
        self.summaries.close()

    def _store_in_memory(self) -> bool:
        """Stores the state after the last step in memory. Returns whether the memory has it."""
        if self.done is None or not self.engine.store_in_memory(self.done, self._last_as_text()):
            return False
        self.events.phase(Activity.STOPPING)
        if self.last is not None:
            self.events.emit(self.last)  # rank 0 may have ended before it could report this step
        self.summaries.close()
        return True

    def _not_saved(self, message: str) -> None:
        code = ExitCode.PREEMPTED_NOT_SAVED
        self.events.error(code, message)
        self.events.complain(message)

    def _saver(self, checkpoint: CheckpointSpec, *, seconds: float = 0.0) -> Saver:
        """`seconds` is the time that one rank needs to write all parts. It is 0 if this process has not measured it."""
        store = Store(location_of(checkpoint.directory), Fence(self.env.job_created, self.env.attempt), checkpoint.keep)
        interval = SaveInterval(checkpoint, job_created=self.env.job_created, failures=self.env.attempt)
        saver = Saver(store, self.engine, self.events, interval)
        saver.seconds = seconds
        return saver

    # evaluation

    def _evaluation_due(self, done: int) -> bool:
        epoch, rest = divmod(done, self.order.steps_per_epoch)
        every = self.task.config.evaluateEveryEpochs
        return rest == 0 and every > 0 and epoch % every == 0

    def _evaluate(self, done: int) -> None:
        if self.task.test is None:
            return
        self._land()
        self.events.phase(Activity.EVALUATING)
        began = time.monotonic()
        metrics = dict(self.engine.evaluate(batches_in_order(len(self.task.test), self.spec.batch.global_size)))
        if self.stalenesses:
            metrics |= {"stalenessMean": sum(self.stalenesses) / len(self.stalenesses), "stalenessMost": max(self.stalenesses)}
        if self.engine.rank == 0:
            self.events.emit(Evaluation(step=done, metrics=metrics, seconds=time.monotonic() - began))
            self.summaries.write(done, {f"test/{name}": value for name, value in metrics.items()})
            shown = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
            self.events.say(f"test set at step {done}: {shown}")
        if done < self.total:
            self.events.phase(Activity.TRAINING)

    def _export(self) -> None:
        """Rank 0 exports while the others wait, so that all ranks raise its error."""
        export, path = self.export, self.saver.path if self.saver else None
        if export is None or path is None:
            return
        batches = batches_in_order(export.samples, self.spec.batch.global_size)
        trained = {} if self.task.test is None else self.engine.evaluate(batches)
        self.events.phase(Activity.SAVING)
        devices = "cpu" if set(self.engine.fingerprint()["devices"]) == {"cpu"} else "gpu"
        messages = agree(self.engine, lambda: export.write(path, step=self.total, trained=trained, devices=devices))
        for message in messages:
            if self.engine.rank == 0:
                self.events.notice(NoticeReason.MODEL_EXPORTED, message)
                self.events.say(message)

    # ranks

    def _summaries(self, first: int) -> Summaries:
        directory = self.env.tensorboard_dir if self.engine.rank == 0 else None
        return Summaries(directory, attempt=self.env.attempt, first_step=first + 1, notice=self.events.notice)

    def _leave(self) -> None:
        """Sends the times of the steps, and leaves the world."""
        self.events.emit(replace(self.pace.sums(), peak_bytes=peak_bytes(self.spec.strategy.framework)))
        leave(self.engine)


def _step_of(snapshot: CompleteSnapshot) -> Step | None:
    """The event of the step after which a snapshot was taken, if the snapshot has it."""
    try:
        document = json.loads(snapshot.headers[0].event or "")
    except (ValueError, RecursionError):
        return None
    event = decode_event(document) if isinstance(document, dict) else None
    return event if isinstance(event, Step) else None
