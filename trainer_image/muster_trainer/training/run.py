"""What the parts of one training share: its settings and ranks, and how far this process has come."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from muster_contract.environment import ReplicaEnvironment
from muster_contract.events import CommitReason, Step
from muster_contract.notices import NoticeReason
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.checkpoint import Manifest
from muster_trainer.data import Order
from muster_trainer.host.events import Events
from muster_trainer.host.stopping import StopRequest
from muster_trainer.tasks.module import Task
from muster_trainer.training.engine import Engine, StepOutcome


@dataclass
class Run:
    """The training of this process.

    `done` is the number of steps of its state. It is None while there is no state of a step, so that nothing saves or sends a mixture.
    `last` is the event of the last step that this process did in the present world. A process that survives gets another `env`.
    """

    spec: TrainerSpec
    env: ReplicaEnvironment
    task: Task
    engine: Engine
    events: Events
    stop: StopRequest
    done: int | None = None
    last: Step | None = None
    is_stopping: bool = False

    def __post_init__(self) -> None:
        runs = self.engine.devices if self.spec.input.shard == "File" else 1
        self.order = Order(self.task.config.seed, len(self.task.train), self.spec.batch.global_size, runs)
        self.total = self.task.config.epochs * self.order.steps_per_epoch

    @property
    def identity(self) -> dict[str, Any]:
        """What a checkpoint must have in common with this training."""
        framework = self.engine.fingerprint()["framework"]
        return {**self.task.identity, "spec.batch.globalSize": self.spec.batch.global_size, "framework": framework}

    def manifest(self, done: int, reason: CommitReason) -> Manifest:
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
            identity=self.identity,
            reason=reason,
            createdAt=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def as_event(self, done: int, outcome: StepOutcome, *, samples: int, seconds: float) -> Step:
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

    def warn(self, reason: NoticeReason, message: str) -> None:
        """Sends a notice, and prints it."""
        self.events.notice(reason, message)
        self.events.complain(message)
