"""Devices that a node reports as unhealthy, in the status of the pod that uses them.

A device that recovers within seconds restarts nothing. The status of the member holds the time since when its devices are unhealthy. They
end the attempt after `Policy.device_seconds`. If the replica fails before that time, the devices are the cause at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from muster.api.status import Member, TrainingJobStatus
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.observed import ReplicaPhase, ReplicaView

DEVICE_TAINT = "DeletionByDeviceTaintManager"
"""The reason of the DisruptionTarget condition of a pod that is evicted because of a taint on one of its devices (KEP-5055)."""


def unhealthy_since(member: Member, view: ReplicaView, facts: Facts) -> datetime | None:
    """Since when the devices of a running member are unhealthy. `view` is its pod."""
    runs = view.phase is ReplicaPhase.RUNNING and view.deleting is None
    if not (view.unhealthy_devices and runs and facts.strategy.is_in_world(member.role)):
        return None
    return (member.unhealthy_since if member.uid == view.uid else None) or facts.stamp


def with_unhealthy_devices(status: TrainingJobStatus, facts: Facts) -> Iterator[tuple[ReplicaView, datetime]]:
    """The members whose devices have been unhealthy for long enough to end the attempt, and since when."""
    views = {view.uid: view for view in facts.trainers(status.attempt)}
    for member in status.world.members if status.world else ():
        view = views.get(member.uid)
        if view and view.unhealthy_devices and member.unhealthy_since and lasts(member.unhealthy_since, facts):
            yield view, member.unhealthy_since


def lasts(since: datetime, facts: Facts) -> bool:
    """Whether devices that are unhealthy since this time will probably not recover."""
    return facts.now >= _due(since, facts)


def due(status: TrainingJobStatus, facts: Facts) -> datetime | None:
    """When the first unhealthy device ends the attempt, if the device does not recover."""
    members = status.world.members if status.world else ()
    return min((_due(member.unhealthy_since, facts) for member in members if member.unhealthy_since), default=None)


def named(view: ReplicaView) -> str:
    """The name of the replica and its unhealthy devices, as one phrase."""
    return f"unhealthy device{'s' if len(view.unhealthy_devices) > 1 else ''} of {view.name}: {', '.join(view.unhealthy_devices)}"


def _due(since: datetime, facts: Facts) -> datetime:
    return since + timedelta(seconds=facts.policy.device_seconds)
