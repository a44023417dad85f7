"""Pods that should be gone, or that still use resources of their nodes: until when they may stay.

The kubelet of a live node ends a pod soon after its grace period. A pod stays only on a node that is dead, frozen or cut off.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from muster.api.spec import CleanPodPolicy
from muster.api.status import TrainingJobStatus
from muster.lifecycle.actions import SIDE_CAR_SECONDS
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.observed import ReplicaView

_EXIT_SECONDS = 30


def removed_by_force_at(view: ReplicaView, facts: Facts) -> datetime | None:
    """When Muster removes the replica's object by force if it still exists. None if it is not being deleted."""
    if view.due is None or view.deleting is None:
        return None
    if view.empty and view.deleting < view.due:
        return view.deleting
    policy = facts.policy
    return view.due + timedelta(seconds=policy.stuck_seconds if facts.is_fenced else policy.stuck_unfenced_seconds)


def times_of_leaving(view: ReplicaView, facts: Facts) -> list[datetime | None]:
    """When a replica whose end was requested is late, when this proves that its node does not answer, and when it is removed by force."""
    overdue = view.due and view.due + timedelta(seconds=facts.policy.overdue_seconds)
    return [view.due, overdue, removed_by_force_at(view, facts)]


def holding_resources(status: TrainingJobStatus, facts: Facts) -> list[ReplicaView]:
    """Pods that still use resources long after the end of the job, because the policy `None` keeps them."""
    until = exit_until(status)
    if facts.spec.clean_pod_policy is not CleanPodPolicy.NONE or until is None or facts.now < until:
        return []
    return [view for view in facts.replicas if view.deleting is None and holds_resources(view, facts)]


def exit_until(status: TrainingJobStatus) -> datetime | None:
    """Until when a replica whose processes have ended may exit by itself, so that its log and exit code stay available."""
    return status.completion_time + timedelta(seconds=_EXIT_SECONDS) if status.completion_time else None


def holds_resources(view: ReplicaView, facts: Facts) -> bool:
    closed = closed_at(view)
    return not view.phase.ended or view.side_car_runs or (closed is not None and facts.now >= closed)


def closed_at(view: ReplicaView) -> datetime | None:
    """When the pod should have ended if the kubelet ends its last side-cars. None if it does not."""
    ends = view.phase.ended and view.closing and view.deleting is None
    return (view.finished or view.created) + timedelta(seconds=SIDE_CAR_SECONDS) if ends else None
