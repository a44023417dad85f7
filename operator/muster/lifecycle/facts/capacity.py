"""Capacity classes: when a role falls back to a class that it prefers less, and when its workers go back.

If a pod finds no node of its classes for `fallbackAfterSeconds`, it is created again, and may then use the next class too. The time is in
the status, because pods are created again for other reasons, and because leaders change. After `returnAfterSeconds`, new pods ask for the
preferred class only. Workers on another class get replacements there, as if their nodes went (`transition/moving.py`). The training goes
on until the class has nodes for these.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from muster.api.chosen_classes import allowed, classes_at, classes_of, entry_of, level
from muster.api.spec import RoleName
from muster.api.status import CapacityStatus, TrainingJobStatus
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.job_state import is_open
from muster.lifecycle.observed import Replica, ReplicaPhase, ReplicaView
from muster.strategies.base import MOST_REPLACEMENTS


def with_capacity(status: TrainingJobStatus, facts: Facts) -> TrainingJobStatus:
    """The status with the classes that each role may use now. It stays as it is between two attempts."""
    if facts.spec.scheduling.capacity is None or facts.spec.suspend:
        return replace(status, capacity=()) if status.capacity else status
    if not is_open(status) or facts.problems:
        return status
    entries = (_entry(role, status, facts) for role in facts.strategy.roles if len(classes_of(facts.spec, role)) > 1)
    return replace(status, capacity=tuple(entry for entry in entries if entry))


def lacks_classes(view: ReplicaView, status: TrainingJobStatus, facts: Facts) -> bool:
    """Whether the pod waits for a node, and a new pod in its place could use a further class."""
    if facts.spec.scheduling.capacity is None or view.phase is not ReplicaPhase.PENDING or view.node or view.deleting is not None:
        return False
    return not set(view.capacity_classes).issuperset(allowed(facts.spec, status, view.role, view.index, standby=view.standby))


def returning(status: TrainingJobStatus, facts: Facts) -> tuple[ReplicaView, ...]:
    """The workers of the world that leave for the preferred class once it has nodes for their replacements."""
    entry = entry_of(status, facts.strategy.worker_role)
    return _displaced(status, facts)[: entry.returning] if entry else ()


def is_on_preferred(view: ReplicaView, facts: Facts) -> bool:
    """Whether the worker is on a node of the class that workers prefer."""
    preferred = classes_of(facts.spec, facts.strategy.worker_role)[:1]
    return (facts.observed.capacity_classes.get(view.node),) == preferred


def wake_times(status: TrainingJobStatus, facts: Facts) -> list[datetime | None]:
    """When a role falls back, and when it asks for its preferred class again."""
    roles = facts.strategy.roles if facts.spec.scheduling.capacity else ()
    several = [role for role in roles if len(classes_of(facts.spec, role)) > 1]
    return [time(role, status, facts) for role in several for time in (fallback_time, return_time)]


def _entry(role: RoleName, status: TrainingJobStatus, facts: Facts) -> CapacityStatus | None:
    names, before = classes_of(facts.spec, role), entry_of(status, role)
    reached = level(names, before)
    since, back = before.since if before else facts.stamp, 0
    waiting = _waiting_since(role, status, facts)
    falls_back, goes_back = fallback_time(role, status, facts), return_time(role, status, facts)
    if waiting and falls_back and facts.now >= falls_back:
        reached, since, waiting = reached + 1, facts.stamp, facts.stamp
    elif not waiting and goes_back and facts.now >= goes_back:
        reached, since = 0, since if reached == 0 else facts.stamp
        back = min(len(_displaced(status, facts)), MOST_REPLACEMENTS) if role == facts.strategy.worker_role else 0
    if not reached and not waiting and not back:
        return None
    return CapacityStatus(role=role, classes=names[: reached + 1], since=since, waiting_since=waiting, returning=back)


def _waiting_since(role: RoleName, status: TrainingJobStatus, facts: Facts) -> datetime | None:
    """Since when a pod of the role finds no node. Only pods with nodes end this time: a pod that is created again has waited before."""
    capacity, before = facts.spec.scheduling.capacity, entry_of(status, role)
    views = [view for view in facts.replicas_of(status.attempt) if view.role == role]
    if capacity and capacity.spares is None and not (before and before.returning):
        views += [view for view in facts.standing_by if view.role == role]
    if any(view.unschedulable and view.deleting is None for view in views):
        return before.waiting_since if before and before.waiting_since else facts.stamp
    placed = {view.replica for view in views if view.node or view.phase is not ReplicaPhase.PENDING}
    return before.waiting_since if before and not placed.issuperset(_expected(role, status, facts)) else None


def _expected(role: RoleName, status: TrainingJobStatus, facts: Facts) -> set[Replica]:
    """The replicas that have pods, or get some."""
    if facts.spec.elastic is not None:
        return {(each.role, each.index) for each in facts.plan.of(role)}
    members = status.world.members if status.world else ()
    return {member.replica for member in members if member.role == role and not member.succeeded}


def fallback_time(role: RoleName, status: TrainingJobStatus, facts: Facts) -> datetime | None:
    """When pods of the role may use the next class, if one still finds no node. None if none waits, or there is no further class."""
    capacity, entry, names = facts.spec.scheduling.capacity, entry_of(status, role), classes_of(facts.spec, role)
    if capacity is None or entry is None or entry.waiting_since is None or level(names, entry) == len(names) - 1:
        return None
    return entry.waiting_since + timedelta(seconds=capacity.fallback_after_seconds)


def return_time(role: RoleName, status: TrainingJobStatus, facts: Facts) -> datetime | None:
    """From when on new pods of the role ask for the preferred class only, and workers go back to it. None if nothing would change. A world
    trains for a while before, so a job does not move all the time."""
    capacity, entry, world = facts.spec.scheduling.capacity, entry_of(status, role), status.world
    if capacity is None or world is None or world.ready_time is None or not is_open(status):
        return None
    has_fallen_back = level(classes_of(facts.spec, role), entry) > 0
    if not has_fallen_back and not (role == facts.strategy.worker_role and _displaced(status, facts)):
        return None
    begun = max(world.ready_time, entry.since) if entry and has_fallen_back else world.ready_time
    return begun + timedelta(seconds=capacity.return_after_seconds)


def _displaced(status: TrainingJobStatus, facts: Facts) -> tuple[ReplicaView, ...]:
    """The workers of the world on nodes of a class that they prefer less. None of a job whose workers cannot be replaced while it trains:
    its pods use the preferred class when they are created again."""
    world, role, spec = status.world, facts.strategy.worker_role, facts.spec
    if world is None or spec.scheduling.capacity is None or not facts.strategy.replaces(spec):
        return ()
    found = facts.observed.capacity_classes
    workers = [member for member in world.members if member.role == role]
    own = {member.uid: classes_at(spec, role, place, count=len(workers)) for place, member in enumerate(workers) if member.uid}
    return tuple(view for view in facts.replicas if found.get(view.node) in own.get(view.uid, ())[1:])
