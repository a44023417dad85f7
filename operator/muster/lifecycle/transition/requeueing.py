"""Gangs that have only a part of their nodes. Such a gang gives its nodes back, and waits for all nodes together again.

A scheduler places all pods of a gang or none. However, a node can be lost before its pod is bound, or while a world starts. Then the other
pods use nodes that other jobs could use, and none of them trains. Two such gangs can wait for each other for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from muster.api.status import Reason, TrainingJobStatus
from muster.lifecycle.facts import gang
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.job_state import is_open
from muster.lifecycle.observed import ReplicaView

_MOST_DOUBLINGS = 20


@dataclass(frozen=True)
class Split:
    """A gang of which only a part has nodes."""

    waiting: tuple[ReplicaView, ...]
    """The pods for which the scheduler finds no node."""
    placed: tuple[ReplicaView, ...]
    until: datetime
    """When the gang gives its nodes back."""


def due(status: TrainingJobStatus, facts: Facts) -> Split | None:
    """The split gang that gives its nodes back now."""
    split = _split(status, facts)
    return split if split and facts.now >= split.until else None


def wake_time(status: TrainingJobStatus, facts: Facts) -> datetime | None:
    """When a split gang gives its nodes back."""
    split = _split(status, facts)
    return split.until if split else None


def _split(status: TrainingJobStatus, facts: Facts) -> Split | None:
    """The split gang of a world that has not started. None if some processes go on, because these hold what they have computed."""
    world = status.world
    if not status.gang_scheduler or not is_open(status) or world is None or world.ready_time:
        return None
    if any(member.incarnation is not None for member in world.members):
        return None
    views = [view for view in facts.trainers(status.attempt) if view.deleting is None]
    placed = tuple(view for view in views if view.node)
    waiting = tuple(view for view in views if view.unschedulable and not view.node)
    if not waiting or not placed or len(placed) >= gang.size(facts.spec, status):
        return None
    changed = max(world.created_time, *(view.placed or view.created for view in placed), *(view.created for view in waiting))
    created_for = {view.uid: view.attempt for view in facts.observed.replicas}
    has_reused_pods = any(created_for[view.uid] < status.attempt for view in placed)
    seconds = facts.policy.split_reused_seconds if has_reused_pods else facts.policy.split_seconds
    return Split(waiting, placed, changed + timedelta(seconds=seconds * 2.0 ** _splits_before(status)))


def _splits_before(status: TrainingJobStatus) -> int:
    """The number of attempts in a row that ended like this. Each waits twice as long as the one before, in case the scheduler supports
    PodGroups but still places pods one by one. At last the startup deadline ends the job."""
    count = 0
    for record in reversed(status.attempts[:-1]):
        if record.reason is not Reason.GANG_REQUEUED or count == _MOST_DOUBLINGS:
            break
        count += 1
    return count
