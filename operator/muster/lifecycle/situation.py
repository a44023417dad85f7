"""What every policy is given beside the status: the job, what is seen of it, and the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from muster.api.job import TrainingJob
from muster.api.problems import Problem
from muster.api.reports import Report
from muster.api.spec import RoleName, TrainingJobSpec
from muster.lifecycle.observed import Observed, ReplicaView
from muster.lifecycle.policy import DEFAULT_POLICY, Policy
from muster.strategies.base import Strategy
from muster.strategies.registry import strategy_of

ALONE = frozenset({RoleName.EVALUATOR})
"""Roles whose replicas come and go without touching the world: nobody trains with an evaluator."""

ORDER = {role: number for number, role in enumerate(RoleName)}
_BRIEF_SECONDS = 5


@dataclass(frozen=True)
class Situation:
    """One moment of one job."""

    job: TrainingJob
    observed: Observed
    now: datetime
    problems: Sequence[Problem] = ()
    policy: Policy = field(default=DEFAULT_POLICY)

    @property
    def spec(self) -> TrainingJobSpec:
        return self.job.spec

    @property
    def strategy(self) -> Strategy:
        return strategy_of(self.spec.strategy)

    @property
    def stamp(self) -> datetime:
        """Now, as the status has it."""
        return milliseconds(self.now)

    @property
    def created(self) -> datetime:
        """When the job was created; a job that does not say was created when it was first seen."""
        return self.job.metadata.creation_timestamp or self.job.status.admitted_time or self.stamp

    @property
    def brief_grace(self) -> int | None:
        """Seconds that a program without a supervisor gets to end when it has nothing left to save, so that its devices are free soon.
        None, the replica's own grace period, under a supervisor: it ends its processes by itself in time."""
        return None if self.spec.trainer.supervised else _BRIEF_SECONDS

    def replicas(self, attempt: int) -> tuple[ReplicaView, ...]:
        """The replicas made for an attempt, in a fixed order."""
        return tuple(view for view in self.observed.replicas if view.attempt == attempt)

    def trainers(self, attempt: int) -> tuple[ReplicaView, ...]:
        """Those that make up the world: all but evaluators."""
        return tuple(view for view in self.replicas(attempt) if view.role not in ALONE)

    def retry_time(self, view: ReplicaView) -> datetime:
        """When a replica that the world does without, and that broke, is made again."""
        return (view.finished or view.created) + timedelta(seconds=self.policy.evaluator_seconds)

    def reports(self, attempt: int) -> tuple[tuple[ReplicaView, Report], ...]:
        """Newest report of each training replica, less those that speak of another attempt."""
        heard = ((view, view.report) for view in self.trainers(attempt))
        return tuple((view, report) for view, report in heard if report is not None and report.attempt == attempt)

    def counts_steps(self, best: int) -> bool:
        """Whether this job tells its steps: the bundled loops do; a script or command only if it ever has (`best` > 0)."""
        return best > 0 or (self.spec.trainer.script is None and self.spec.trainer.command is None)


def milliseconds(moment: datetime) -> datetime:
    """Down to milliseconds, in UTC."""
    moment = moment.astimezone(UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def whole(moment: datetime) -> datetime:
    """Whole seconds in UTC."""
    return moment.astimezone(UTC).replace(microsecond=0)
