"""May the world be smaller than the spec asks for, and when does it change?

A world that waits for workers too long goes on without them. For each that is missing a replica *stands by*: it is made, and trains
nothing until a later world takes it in, once the current one has trained for a while. Both changes are attempts that cost nothing: where
the world is whole all ranks save first.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from muster.api.spec import RoleName
from muster.api.status import Reason, TrainingJobStatus, World
from muster.lifecycle import in_place, records
from muster.lifecycle.actions import Action, CreateReplica, LookLive, removal
from muster.lifecycle.observed import ReplicaPhase
from muster.lifecycle.situation import Situation
from muster.strategies.base import WorldPlan

Place = tuple[str, int]


def next_plan(case: Situation, after: TrainingJobStatus) -> WorldPlan:
    """The world to come; `after` is the status in which the one before has ended."""
    plan, record = case.strategy.plan(case.spec), records.current(after)
    if case.spec.elastic is None or after.world is None or record is None or record.reason is Reason.SUSPENDED:
        return plan
    there = (_running(case) | in_place.kept(case, after).keys()) & _places(plan)
    waits = record.failure_class is not None and case.spec.elastic.shrink_after_seconds > 0
    wanted = there | (_members(after.world) if waits else set())
    return plan.part(wanted) if len(wanted & _places(plan)) >= case.spec.elastic.min_replicas else plan


def outgrown(case: Situation, world: World) -> bool:
    """Whether the spec now asks for another world than this. One that is smaller than it may be grows in its own time."""
    plan, members = case.strategy.plan(case.spec), _members(world)
    fits = members <= _places(plan) if case.spec.elastic else members == _places(plan)
    return not fits or plan.part(members).size != world.size


def change(case: Situation, status: TrainingJobStatus) -> str:
    """Why the world is to be another one now, in a sentence; empty where it is not."""
    due = _due(case, status)
    if due is None or case.now < due or status.world is None:
        return ""
    now, later = len(status.world.members), len(next_plan(case, status).replicas)
    return f"goes on with {later} of {now} workers" if later < now else f"takes in {later - now} workers that have come"


def due(case: Situation, status: TrainingJobStatus) -> datetime | None:
    """When the world may change, if what is there now stays there; or when a worker that stood by and broke is made again."""
    retries = [case.retry_time(view) for view in case.observed.standing_by if view.phase.ended]
    change_due = _due(case, status)
    return min((time for time in (*retries, change_due) if time), default=None)


def actions(case: Situation, status: TrainingJobStatus) -> tuple[Action, ...]:
    """A worker that stands by for each place that the world leaves free."""
    if status.world is None or case.problems:
        return ()
    free = _places(case.strategy.plan(case.spec)) - _members(status.world) if case.spec.elastic else set()
    standing = case.observed.standing_by
    unneeded = [view for view in standing if view.place not in free or (view.phase.ended and case.now >= case.retry_time(view))]
    removals = tuple(action for view in unneeded for action in removal(view))
    if status.world.ready_time is None:
        return removals
    absent = sorted(free - {view.place for view in (*standing, *case.observed.replicas)})
    if absent and not case.observed.live:
        return (*removals, LookLive())
    creations = (CreateReplica(RoleName(role), index, status.attempt, standby=True) for role, index in absent)
    return (*removals, *creations)


def _due(case: Situation, status: TrainingJobStatus) -> datetime | None:
    elastic, world = case.spec.elastic, status.world
    if elastic is None or world is None or not records.is_open(status) or case.spec.suspend:
        return None
    running, members = _running(case) & _members(world), _members(world)
    if not running <= {view.place for view in case.observed.everyone if in_place.keepable(view)}:  # some have not been heard yet
        return None
    if world.ready_time is None:
        short = elastic.min_replicas <= len(running) < len(members)
        lost = world.created_time + timedelta(seconds=elastic.shrink_after_seconds)
        return max([lost, *_arrivals(case)]) if short else None
    if running != members:
        return None
    ready = any(in_place.keepable(view) and view.report and view.report.waiting for view in case.observed.standing_by)
    trains = world.first_step_time or not case.counts_steps(status.restarts.best_step)
    return world.ready_time + timedelta(seconds=elastic.grow_after_seconds) if ready and trains else None


def _arrivals(case: Situation) -> list[datetime]:
    """Until when those that a node has already are on their way, and not lost: of pods that start together one is there first."""
    coming = (view for view in case.observed.replicas if view.phase is ReplicaPhase.PENDING and view.node and view.deleting is None)
    return [view.created + timedelta(seconds=case.policy.arrival_seconds) for view in coming]


def _running(case: Situation) -> set[Place]:
    return {view.place for view in case.observed.replicas if view.stays}


def _members(world: World) -> set[Place]:
    return {(member.role, member.index) for member in world.members}


def _places(plan: WorldPlan) -> set[Place]:
    return {(replica.role.value, replica.index) for replica in plan.replicas}
