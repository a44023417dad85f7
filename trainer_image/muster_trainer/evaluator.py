"""The evaluator: follows the commits of a training, and measures each on the test set.

It only reads: nobody waits for it, and its end changes nothing for the job. Having measured the final commit, it is through.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from muster_trainer.checkpoint import Commit
from muster_trainer.checkpoint.files import storage
from muster_trainer.checkpoint.manifest import read_back, read_verified
from muster_trainer.checkpoint.selection import valid_commits
from muster_trainer.contract import BadConfiguration, ExitCode, ReplicaEnv, StorageUnavailable, TrainerSpec
from muster_trainer.data import batches_in_order
from muster_trainer.engine import Engine
from muster_trainer.events import Events
from muster_trainer.objects import Place
from muster_trainer.stopping import StopRequest
from muster_trainer.summaries import Summaries
from muster_trainer.tasks.module import Task

LOOK_SECONDS = 0.5
FOLDER = "evaluator"
"""Its own in the folder of the summaries, so that TensorBoard shows its curves beside those of the training."""


@dataclass
class Evaluator:
    """`engine` computes on this machine alone."""

    spec: TrainerSpec
    env: ReplicaEnv
    task: Task
    engine: Engine
    events: Events
    stop: StopRequest
    seen: set[Place] = field(default_factory=set)
    summaries: Summaries | None = None

    def run(self) -> ExitCode:
        """Until the final commit is measured, or it is asked to stop: then it measures the newest that it has not, and ends."""
        if self.task.test is None or self.spec.checkpoint is None:
            lacking = "no checkpoint storage to find commits in" if self.spec.checkpoint is None else "no test set"
            self.events.emit("notice", message=f"the evaluator has nothing to do: {self.task.title} has {lacking}")
            return ExitCode.COMPLETED
        self.stop.training = True
        while True:
            asked = self.stop.requested
            new = self._new_commits()
            for commit in new:
                passed_over = self.stop.requested and commit is not new[-1]
                if not passed_over and self._evaluate(commit):
                    return self._end(ExitCode.COMPLETED)
            if asked:
                return self._end(ExitCode.PREEMPTED)
            if not new:
                time.sleep(LOOK_SECONDS)

    def _new_commits(self) -> list[Commit]:
        """Commits of this job that count and that were not looked at yet, oldest first."""
        assert self.spec.checkpoint is not None
        directory = self.spec.checkpoint.directory
        with storage(directory):
            found = valid_commits(directory)
        return [commit for commit in found if commit.fence.created == self.env.created and commit.path not in self.seen]

    def _evaluate(self, commit: Commit) -> bool:
        """Whether this was the final commit. One that is damaged, or removed by now, is passed over."""
        self.seen.add(commit.path)
        try:
            manifest = read_verified(commit.path)
            with read_back(commit.path) as folder:
                self.engine.load(folder)
        except (ValueError, OSError, StorageUnavailable, BadConfiguration) as error:
            if commit.path.is_dir():
                self.events.notice(f"the evaluator passes over {commit.path.name}: {error}")
            return False
        self.events.emit("phase", phase="Evaluating")
        metrics = dict(self.engine.evaluate(batches_in_order(len(self.task.test), self.spec.batch.global_size)))
        self.events.emit("evaluation", step=commit.step, metrics=metrics)
        self._summarize(commit.step, {f"test/{name}": value for name, value in metrics.items()})
        shown = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        self.events.say(f"test set at step {commit.step}: {shown}")
        return manifest.reason == "Final"

    def _summarize(self, step: int, scalars: dict[str, float]) -> None:
        if self.summaries is None:
            directory = self.env.tensorboard_dir and self.env.tensorboard_dir / FOLDER
            self.summaries = Summaries(directory, attempt=self.env.attempt, first_step=step, notice=self.events.notice)
        self.summaries.write(step, scalars)

    def _end(self, code: ExitCode) -> ExitCode:
        if self.summaries is not None:
            self.summaries.close()
        return code
