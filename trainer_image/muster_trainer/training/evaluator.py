"""The evaluator measures each commit of a training on the test set. It ends after the final commit.

It only reads checkpoints. The training does not wait for it, and the job does not fail if it fails.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from muster_contract.codes import ExitCode
from muster_contract.environment import ReplicaEnvironment
from muster_contract.errors import BadConfiguration, StorageUnavailable
from muster_contract.events import Activity, CommitReason, Evaluation
from muster_contract.notices import NoticeReason
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.checkpoint import Commit
from muster_trainer.checkpoint.files import storage
from muster_trainer.checkpoint.manifest import read_back, read_verified
from muster_trainer.checkpoint.objects import Location, location_of
from muster_trainer.checkpoint.selection import valid_commits
from muster_trainer.data import batches_in_order
from muster_trainer.host.events import Events
from muster_trainer.host.stopping import StopRequest
from muster_trainer.tasks.module import Task
from muster_trainer.training.engine import EvaluationEngine
from muster_trainer.training.summaries import Summaries

LOOK_SECONDS = 0.5
FOLDER = "evaluator"
"""The folder of the evaluator among the summaries. TensorBoard then shows its curves beside those of the training."""


@dataclass
class Evaluator:
    """The evaluator of a job. `engine` must not need other machines."""

    spec: TrainerSpec
    env: ReplicaEnvironment
    task: Task
    engine: EvaluationEngine
    events: Events
    stop: StopRequest
    processed: set[Location] = field(default_factory=set)
    summaries: Summaries | None = None

    def run(self) -> ExitCode:
        """Runs until it has measured the final commit. After a stop request, it measures the newest commit and ends."""
        if self.task.test is None or self.spec.checkpoint is None:
            lacking = "no checkpoint storage to find commits in" if self.spec.checkpoint is None else "no test set"
            message = f"the evaluator has nothing to do: {self.task.title} has {lacking}"
            self.events.notice(NoticeReason.NOTHING_TO_EVALUATE, message)
            return ExitCode.COMPLETED
        self.stop.training = True
        while True:
            stopping = self.stop.requested
            new = self._new_commits()
            for commit in new:
                skipped = self.stop.requested and commit is not new[-1]
                if not skipped and self._evaluate(commit):
                    return self._end(ExitCode.COMPLETED)
            if stopping:
                return self._end(ExitCode.PREEMPTED)
            if not new:
                time.sleep(LOOK_SECONDS)

    def _new_commits(self) -> list[Commit]:
        """The valid commits of this job that were not in an earlier result, oldest first."""
        assert self.spec.checkpoint is not None
        directory = location_of(self.spec.checkpoint.directory)
        with storage(directory):
            commits = valid_commits(directory)
        return [commit for commit in commits if commit.fence.created == self.env.job_created and commit.path not in self.processed]

    def _evaluate(self, commit: Commit) -> bool:
        """Measures a commit. Returns whether it is the final one. Skips a commit that is damaged or was removed."""
        self.processed.add(commit.path)
        try:
            manifest = read_verified(commit.path)
            with read_back(commit.path) as folder:
                self.engine.load(folder)
        except (ValueError, OSError, StorageUnavailable, BadConfiguration) as error:
            if commit.path.is_dir():
                self.events.notice(NoticeReason.EVALUATION_SKIPPED, f"the evaluator skips {commit.path.name}: {error}")
            return False
        assert self.task.test is not None
        self.events.phase(Activity.EVALUATING)
        began = time.monotonic()
        metrics = dict(self.engine.evaluate(batches_in_order(len(self.task.test), self.spec.batch.global_size)))
        self.events.emit(Evaluation(step=commit.step, metrics=metrics, seconds=time.monotonic() - began))
        self._summarize(commit.step, {f"test/{name}": value for name, value in metrics.items()})
        shown = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        self.events.say(f"test set at step {commit.step}: {shown}")
        return manifest.reason is CommitReason.FINAL

    def _summarize(self, step: int, scalars: dict[str, float]) -> None:
        if self.summaries is None:
            directory = self.env.tensorboard_dir and self.env.tensorboard_dir / FOLDER
            self.summaries = Summaries(directory, attempt=self.env.attempt, first_step=step, notice=self.events.notice)
        self.summaries.write(step, scalars)

    def _end(self, code: ExitCode) -> ExitCode:
        if self.summaries is not None:
            self.summaries.close()
        return code
