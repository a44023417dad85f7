"""The facts about one job at one moment: the job, its replicas, and the attempt of each replica. `read` is the first stage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import PurePosixPath

from muster.api.job import TrainingJob
from muster.api.problems import Problem
from muster.api.spec import LimitAction, TrainingJobSpec
from muster.api.status import Member, TrainingJobStatus
from muster.api.times import milliseconds
from muster.lifecycle.facts import limits
from muster.lifecycle.facts.ledger import Account, account
from muster.lifecycle.facts.limits import Limit
from muster.lifecycle.facts.membership import assigned, latest_attempt, orphaned_of
from muster.lifecycle.job_state import is_open
from muster.lifecycle.observed import Observed, ReplicaView
from muster.lifecycle.policy import DEFAULT_POLICY, Patience, Policy, patience
from muster.strategies.base import Strategy, WorldPlan
from muster.strategies.registry import strategy_of
from muster_contract.checkpoint_layout import parse_checkpoint_name
from muster_contract.reports import Report

_BRIEF_SECONDS = 5


@dataclass(frozen=True)
class Facts:
    """`replicas` and `standing_by` are sorted, because callers pass replicas in any order, and the order must not change the status."""

    job: TrainingJob
    observed: Observed
    now: datetime
    problems: tuple[Problem, ...]
    """The reasons for which admission rejects the spec."""
    policy: Policy
    replicas: tuple[ReplicaView, ...] = ()
    """The replicas, each with the attempt that it belongs to."""
    standing_by: tuple[ReplicaView, ...] = ()
    """Replicas outside the world that wait for a later world to take them in."""
    orphaned: tuple[ReplicaView, ...] = ()
    """Replicas of older attempts that do not answer, and that no world waits for (`status.orphaned`)."""
    basis: tuple[object, ...] = ()
    """The parts of the status that these three depend on."""

    @property
    def spec(self) -> TrainingJobSpec:
        return self.job.spec

    @property
    def live(self) -> bool:
        return self.observed.live

    @property
    def waits_for_quota(self) -> bool:
        """Whether the queue of the job does not let it run now."""
        return self.observed.quota is not None and not self.observed.quota.admitted

    @cached_property
    def patience(self) -> Patience:
        """How long Muster waits for reports and steps in this pass."""
        return patience(self.policy, self.observed.gap_seconds)

    @cached_property
    def account(self) -> Account:
        """The use of devices up to now."""
        return account(self.job.status.usage, self.observed, self.stamp)

    @cached_property
    def reached_limit(self) -> Limit | None:
        """The limit of use that the job has reached."""
        return limits.reached(self.spec.usage_limits, self.account) if self.spec.usage_limits is not None else None

    @property
    def suspends(self) -> bool:
        """Whether the user, or a limit of use, does not let the job run."""
        return self.spec.suspend or (self.reached_limit is not None and self.reached_limit.action is LimitAction.SUSPEND)

    @cached_property
    def strategy(self) -> Strategy:
        return strategy_of(self.spec.strategy)

    @cached_property
    def desired(self) -> WorldPlan:
        """The whole world that the spec asks for."""
        return self.strategy.plan(self.spec)

    @cached_property
    def pool(self) -> WorldPlan:
        """The replicas from which worlds are made: the whole world and its spares."""
        return self.strategy.pool(self.spec)

    @cached_property
    def plan(self) -> WorldPlan:
        """The largest world that the job may have now: the one that the spec asks for, or the part of it for which the queue has quota."""
        quota, role = self.observed.quota, self.strategy.worker_role
        if self.spec.elastic is None or quota is None or quota.workers is None or quota.workers >= len(self.desired.of(role)):
            return self.desired
        replicas = ((replica.role, replica.index) for replica in self.desired.replicas)
        return self.desired.part({(name, index) for name, index in replicas if name != role or index < quota.workers})

    @property
    def replaces_workers(self) -> bool:
        """Whether a worker with another index may take the place of a worker."""
        return self.spec.recovery.spares > 0 or self.strategy.replaces(self.spec)

    @property
    def stamp(self) -> datetime:
        """The current time in milliseconds, because the status holds times with this precision."""
        return milliseconds(self.now)

    @property
    def created(self) -> datetime:
        """When the job was created, or when Muster first saw it if the job does not state that."""
        return self.job.metadata.creation_timestamp or self.job.status.admitted_time or self.stamp

    @property
    def everyone(self) -> tuple[ReplicaView, ...]:
        return (*self.replicas, *self.standing_by)

    def departed_members(self, status: TrainingJobStatus) -> tuple[ReplicaView, ...]:
        """The last views of members of the world in `status` whose pods are gone."""
        members = status.world.member_of if status.world else {}
        return tuple(view for view in self.observed.departed if view.uid in members)

    @property
    def runs_bundled_loop(self) -> bool:
        """Whether the bundled trainer runs the training loop, and not a program of the user."""
        return self.spec.trainer.script is None and self.spec.trainer.command is None

    @cached_property
    def is_fenced(self) -> bool:
        """Whether the processes of an older attempt cannot commit. The bundled trainer commits nothing after a newer attempt has begun. The
        same is true of a program that commits through `muster_training`, as the fence in the name of a commit shows. What another program
        writes is unknown."""
        return self.runs_bundled_loop or any(parse_checkpoint_name(PurePosixPath(path).name) for path in self._commit_paths())

    def _commit_paths(self) -> Iterator[str]:
        """The commits that the program has reported, by their folders. A program can only make up the evidence about its own job."""
        if self.job.status.checkpoint:
            yield self.job.status.checkpoint.path
        for report in (view.report for view in self.observed.replicas if view.report):
            termination = report.termination
            for commit in (report.checkpoint, termination.commit if termination else None, report.resumed):
                if commit and commit.path:
                    yield commit.path

    @property
    def replaces_at_once(self) -> bool:
        """Whether Muster replaces a replica that does not answer under a new name. This requires that each attempt has ports of its own,
        because old sockets must not reach the new world."""
        return self.is_fenced and self.spec.trainer.supervised and self.strategy.moves

    @property
    def brief_grace(self) -> int | None:
        """The grace period, in seconds, of a program without a supervisor that has nothing left to save, so that its devices are free soon.
        None stands for the grace period of the pod. Under a supervisor it is None, because the supervisor ends its processes in time."""
        return None if self.spec.trainer.supervised else _BRIEF_SECONDS

    def replicas_of(self, attempt: int) -> tuple[ReplicaView, ...]:
        return self._by_attempt.get(attempt, ())

    @cached_property
    def _by_attempt(self) -> dict[int, tuple[ReplicaView, ...]]:
        return _grouped(self.replicas)

    def older_than(self, attempt: int) -> tuple[ReplicaView, ...]:
        return tuple(view for view in self.replicas if view.attempt < attempt)

    def trainers(self, attempt: int) -> tuple[ReplicaView, ...]:
        """The replicas of an attempt that train together."""
        return self._trainers_by_attempt.get(attempt, ())

    @cached_property
    def _trainers_by_attempt(self) -> dict[int, tuple[ReplicaView, ...]]:
        return _grouped(view for view in self.replicas if self.strategy.is_in_world(view.role))

    def reports(self, attempt: int) -> tuple[tuple[ReplicaView, Report], ...]:
        """The newest report of each replica that trains, without reports about another attempt."""
        return self._reports_by_attempt.get(attempt, ())

    @cached_property
    def _reports_by_attempt(self) -> dict[int, tuple[tuple[ReplicaView, Report], ...]]:
        return {
            attempt: tuple((view, report) for view in views if (report := view.report_about(attempt)) is not None)
            for attempt, views in self._trainers_by_attempt.items()
        }

    def retry_time(self, view: ReplicaView) -> datetime:
        """When Muster creates a failed replica outside the world again."""
        return (view.finished or view.created) + timedelta(seconds=self.policy.evaluator_seconds)

    def counts_steps(self, status: TrainingJobStatus) -> bool:
        """Whether the program reports its steps. The bundled loops always do. A script or command does if it has reported a step before."""
        return status.restarts.best_step > 0 or self.runs_bundled_loop

    def missing_members(self, status: TrainingJobStatus) -> list[Member]:
        """Members of the world that had a pod and have none now. Only a live observation makes this a proof of a loss."""
        uids = {view.uid for view in self.replicas}
        members = status.world.members if status.world else ()
        expected = (member for member in members if member.uid and not member.awaited and not member.succeeded)
        return [member for member in expected if member.uid not in uids and self.strategy.is_in_world(member.role)]

    def attempt_ahead(self, status: TrainingJobStatus) -> int | None:
        """The highest attempt of any replica, if the status has no record of that attempt. This happens if the status was wiped, or
        restored from a backup."""
        highest = max((view.attempt for view in self.replicas), default=-1)
        return highest if highest > status.attempt else None

    def in_world_of(self, status: TrainingJobStatus) -> Facts:
        """The same facts, with each replica in the attempt that it has according to this status. For thousands of replicas this takes most
        of the time of a decision, so it is done again only if it can differ."""
        basis = (status.world, status.orphaned, status.attempt, bool(status.attempts), status.phase, is_open(status))
        if basis == self.basis:
            return self
        latest = latest_attempt(self.job, self.now)
        replicas, standing_by = assigned(self.observed, status, self.strategy.roles, latest=latest)
        orphaned = orphaned_of(self.observed, status, self.strategy.roles)
        return replace(self, replicas=replicas, standing_by=standing_by, orphaned=orphaned, basis=basis)


def _grouped(views: Iterable[ReplicaView]) -> dict[int, tuple[ReplicaView, ...]]:
    """The views by attempt, in their order. The modules of a decision ask for those of one attempt many times."""
    groups: dict[int, list[ReplicaView]] = defaultdict(list)
    for view in views:
        groups[view.attempt].append(view)
    return {attempt: tuple(group) for attempt, group in groups.items()}


def read(
    job: TrainingJob, observed: Observed, now: datetime, *, problems: Sequence[Problem] = (), policy: Policy = DEFAULT_POLICY
) -> Facts:
    """The facts about a job and its children. The termination message of a program without a supervisor is left out: it is its own text."""
    if not job.spec.trainer.supervised:
        views = (view if view.fetch_failed else replace(view, termination=None) for view in observed.replicas)
        observed = replace(observed, replicas=tuple(views))
    return Facts(job, observed, now, tuple(problems), policy).in_world_of(job.status)
