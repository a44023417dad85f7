"""Pods that the current attempt keeps, and that have yet to acknowledge that the processes of the attempt before have ended."""

from __future__ import annotations

from datetime import datetime, timedelta

from muster.api import grace
from muster.api.spec import TrainingJobSpec
from muster.api.status import Member, Reason, TrainingJobStatus
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.job_state import newest_ended
from muster.lifecycle.observed import ReplicaView

_STOPPED_IN_ADVANCE = frozenset({Reason.DISRUPTED, Reason.DEVICE_TAINTED, Reason.EVICTED, Reason.POD_DELETED, Reason.PREEMPTED})
"""Reasons for an end that Muster announces to the processes, so that all ranks save at the same step."""


def acknowledging(status: TrainingJobStatus, facts: Facts) -> tuple[ReplicaView, ...]:
    """Replicas that the current attempt keeps, that have not acknowledged it, and that still have time to."""
    uids = {member.uid for member in _awaited(status)}
    if not uids or facts.now >= _acknowledge_until(status, facts):
        return ()
    return tuple(view for view in facts.older_than(status.attempt) if view.uid in uids and view.is_active)


def acknowledge_due(status: TrainingJobStatus, facts: Facts) -> datetime | None:
    """Until when such replicas may acknowledge the current attempt."""
    return _acknowledge_until(status, facts) if _awaited(status) else None


def may_acknowledge(status: TrainingJobStatus, facts: Facts) -> bool:
    """Whether a replica still has time to acknowledge the current attempt."""
    return status.world is not None and facts.now < _acknowledge_until(status, facts)


def grace_seconds(spec: TrainingJobSpec, status: TrainingJobStatus) -> int:
    """Seconds that the newest ended attempt had for a save. 0 if its world lost a member or hung, because such a world cannot save."""
    ended = newest_ended(status)
    can_save = ended is not None and (ended.failure_class is None or ended.reason in _STOPPED_IN_ADVANCE)
    return grace.seconds(spec, status) if can_save else 0


def _awaited(status: TrainingJobStatus) -> list[Member]:
    return [member for member in status.world.members if member.awaited] if status.world else []


def _acknowledge_until(status: TrainingJobStatus, facts: Facts) -> datetime:
    assert status.world is not None
    return status.world.created_time + timedelta(seconds=facts.policy.acknowledge_seconds + grace_seconds(facts.spec, status))
