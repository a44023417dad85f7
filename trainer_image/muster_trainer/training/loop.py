"""The training of one process, from resume to the final commit. It is the same for every strategy and imports no framework."""

from __future__ import annotations

import math
import time

from muster_contract.codes import ExitCode
from muster_contract.errors import PeerLost
from muster_contract.events import Activity
from muster_trainer.export import Export
from muster_trainer.training.agreement import agree, leave
from muster_trainer.training.checkpoints import Checkpoints
from muster_trainer.training.engine import StepOutcome
from muster_trainer.training.evaluation import evaluate, is_evaluation_due, write_export
from muster_trainer.training.recovery.ladder import Ladder
from muster_trainer.training.recovery.memory import Memory
from muster_trainer.training.run import Run
from muster_trainer.training.step_reports import StepReports


class Training:
    """One run of the training loop. `run` does all of it."""

    def __init__(self, state: Run) -> None:
        self.state, self.task, self.engine, self.events = state, state.task, state.engine, state.events
        self.memory = Memory(state)
        self.checkpoints = Checkpoints(state)
        self.ladder = Ladder(state, self.memory, self.checkpoints)
        self.reports = StepReports(state)
        self.exporter = Export.of(state.task, state.spec)

    def run(self) -> ExitCode:
        """Trains to the end, or until asked to stop. Raises TrainerError for every other end."""
        while True:
            try:
                return self._train()
            except PeerLost as error:
                goes_on = self.ladder.goes_on_after(error)
                self.reports.close()
                if not goes_on:
                    raise

    def _train(self) -> ExitCode:
        """One attempt."""
        total, order = self.state.total, self.state.order
        self.ladder.join()
        if self.exporter:
            agree(self.engine, self.exporter.claim)
        point = self.ladder.resume()
        if point.step:
            self.memory.snapshot_again(point.step)
        self.reports.open(point.step)
        self.state.stop.training = True
        self.events.phase(Activity.TRAINING)
        self.engine.expect(order, range(point.step, total))
        self.state.done = point.step
        if point.may_lack_evaluation and point.step < total:
            self._evaluate_if_due(point.step)
        for step in range(point.step, total):
            outcome = self.step(step)
            self.state.done = done = step + 1
            self.memory.snapshot(done)
            if not outcome.busy:
                self.checkpoints.advance()
            if done == total:
                break
            if outcome.stop:
                return self._stop(done)
            if outcome.save or self.checkpoints.is_due(done):
                self.checkpoints.save(done)
            self._evaluate_if_due(done)
        return self._finish()

    def step(self, step: int) -> StepOutcome:
        """Trains one step, and reports it."""
        began = time.monotonic()
        indices = self.state.order.batch_indices(step)
        wants_save, busy = self.checkpoints.is_time, self.checkpoints.is_busy
        outcome = self.engine.step(indices, step=step, stop=self.state.stop.requested, save=wants_save, busy=busy)
        met = time.monotonic()
        if self.task.config.stepDelaySeconds:
            time.sleep(self.task.config.stepDelaySeconds)
        seconds = time.monotonic() - began
        self.state.last = event = self.state.as_event(step + 1, outcome, samples=len(indices), seconds=seconds)
        self.memory.add_step(seconds)
        if self.engine.rank == 0:
            self.reports.report_step(event, is_delayed=self.memory.delays_events)
        if not math.isfinite(outcome.loss):
            self.reports.handle_nan_loss(step, outcome.loss)
        now = time.monotonic()
        self.reports.add_pace(step, outcome, seconds=now - began, after_votes=now - met)
        return outcome

    def _evaluate_if_due(self, done: int) -> None:
        if is_evaluation_due(self.state, done):
            self._evaluate(done)

    def _evaluate(self, done: int) -> None:
        if self.task.test is not None:
            self.memory.finish()
        evaluate(self.state, self.reports, done)

    def _finish(self) -> ExitCode:
        """After the last step: the final commit, the evaluation, and the export."""
        total = self.state.total
        self.memory.finish()
        if not self.checkpoints.save_at_end():
            return self._stop(total)
        self._evaluate(total)
        if self.exporter and self.checkpoints.path is not None:
            write_export(self.state, self.exporter, self.checkpoints.path)
        self.reports.close()
        self._leave()
        return ExitCode.COMPLETED

    def _stop(self, done: int) -> ExitCode:
        """Saves the state after step `done`, because a rank was asked to stop."""
        self.state.is_stopping = True
        self.events.phase(Activity.STOPPING)
        self.reports.close()
        self.memory.snapshot_at_stop(done)
        if problem := self.checkpoints.save_at_stop(done):
            self.events.error(ExitCode.PREEMPTED_NOT_SAVED, problem)
            self.events.complain(problem)
            return ExitCode.PREEMPTED_NOT_SAVED
        self._leave()
        return ExitCode.PREEMPTED

    def _leave(self) -> None:
        """Sends the times of the steps, and leaves the world."""
        self.reports.report_pace()
        leave(self.engine)
