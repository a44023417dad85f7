"""Elastic jobs: when the world is smaller than the spec asks for, and when it changes.

A world that waits too long for workers trains without them. Muster creates a replica for each missing worker. The replica stands by until
a later world takes it in, after the current world has trained for a while. Each of the two changes is a new attempt that costs no budget.
All ranks save first if the world is whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from muster.api.status import TrainingJobStatus, World
from muster.lifecycle.facts import node_notices
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.job_state import SUSPENSIONS, is_open, newest
from muster.lifecycle.observed import Replica, ReplicaPhase
from muster.lifecycle.transition import spares
from muster.lifecycle.transition.in_place import reused_pods
from muster.strategies.base import WorldPlan


@dataclass(frozen=True)
class Resize:
    """A change of the number of workers."""

    before: int
    after: int


def next_plan(status: TrainingJobStatus, facts: Facts) -> WorldPlan:
    """The plan of the next world. In `status` the attempt before has ended."""
    if facts.replaces_workers:
        return spares.next_plan(status, facts)
    plan, record = facts.plan, newest(status)
    if facts.spec.elastic is None or status.world is None or record is None or record.reason in SUSPENSIONS:
        return plan
    present = (_running(facts) | reused_pods(status, facts).keys()) & _replicas(plan)
    waits = record.failure_class is not None and facts.spec.elastic.shrink_after_seconds > 0
    members = present | (_members(status.world) if waits else set())
    stay = members - {view.replica for view in node_notices.leaving(status, facts)}
    members = stay if len(stay) >= facts.spec.elastic.min_replicas else members
    return plan.part(members) if len(members & _replicas(plan)) >= facts.spec.elastic.min_replicas else plan


def is_outgrown(status: TrainingJobStatus, facts: Facts) -> bool:
    """Whether the spec now asks for another world. An elastic world grows later, when its growth is due."""
    if facts.problems or status.world is None:
        return False
    members = _members(status.world)
    if facts.replaces_workers:
        return spares.is_outgrown(status.world, facts)
    fits = members <= _replicas(facts.plan) if facts.spec.elastic else members == _replicas(facts.plan)
    return not fits or facts.plan.size_of(members) != status.world.size


def due_resize(status: TrainingJobStatus, facts: Facts) -> Resize | None:
    """The change of the world that is due now."""
    due = _resize_time(status, facts)
    if due is None or facts.now < due or status.world is None:
        return None
    return Resize(len(status.world.members), len(next_plan(status, facts).replicas))


def wake_time(status: TrainingJobStatus, facts: Facts) -> datetime | None:
    """When the world may change without an event, or when a failed spare is created again."""
    retries = [facts.retry_time(view) for view in facts.standing_by if view.phase.ended]
    return min((time for time in (*retries, _resize_time(status, facts)) if time), default=None)


def free_replicas(status: TrainingJobStatus, facts: Facts) -> set[Replica]:
    """Replicas that a later world may take in. One replica stands by for each."""
    if status.world is None:
        return set()
    if facts.spec.elastic:
        return _replicas(facts.plan) - _members(status.world)
    number = node_notices.wanted(status, facts)
    if not number:
        return set()
    exist = {view.replica for view in facts.standing_by}
    free = sorted(_replicas(facts.pool) - _members(status.world), key=lambda replica: (replica not in exist, replica))
    return set(free[:number])


def _resize_time(status: TrainingJobStatus, facts: Facts) -> datetime | None:
    elastic, world = facts.spec.elastic, status.world
    if elastic is None or world is None or not is_open(status) or facts.suspends:
        return None
    members = _members(world)
    running = _running(facts) & members
    if not running <= {view.replica for view in facts.everyone if view.can_continue}:  # a new leader may lack reports
        return None
    if world.ready_time is None:
        return _shrink_time(status, facts, running=len(running))
    return _grow_time(status, facts) if running == members else None


def _shrink_time(status: TrainingJobStatus, facts: Facts, *, running: int) -> datetime | None:
    """When a world that starts goes on with the members that run. None if all run, or too few."""
    elastic, world = facts.spec.elastic, status.world
    if elastic is None or world is None or not elastic.min_replicas <= running < len(world.members):
        return None
    return max([world.created_time + timedelta(seconds=elastic.shrink_after_seconds), *_arrival_times(status, facts)])


def _grow_time(status: TrainingJobStatus, facts: Facts) -> datetime | None:
    """When a world that trains takes in the replicas that stand by. None if none is ready, or before the first step."""
    elastic, world = facts.spec.elastic, status.world
    if elastic is None or world is None or world.ready_time is None or not any(view.is_ready for view in facts.standing_by):
        return None
    if world.first_step_time is None and facts.counts_steps(status):
        return None
    return world.ready_time + timedelta(seconds=elastic.grow_after_seconds)


def _arrival_times(status: TrainingJobStatus, facts: Facts) -> Iterable[datetime]:
    """Until when Muster expects pending replicas that have a node, because pods that start together do not all run at once. A pod that
    fetches inputs is expected as long as the inputs make progress."""
    fetched = max((each.updated_at for each in status.inputs if each.updated_at), default=None)
    coming = (view for view in facts.replicas if view.phase is ReplicaPhase.PENDING and view.node and view.deleting is None)
    begins = (max(view.created, fetched) if view.inputs and fetched else view.created for view in coming)
    return (begin + timedelta(seconds=facts.policy.arrival_seconds) for begin in begins)


def _running(facts: Facts) -> set[Replica]:
    return {view.replica for view in facts.replicas if view.is_active}


def _members(world: World) -> set[Replica]:
    return {member.replica for member in world.members}


def _replicas(plan: WorldPlan) -> set[Replica]:
    return {(replica.role, replica.index) for replica in plan.replicas}
