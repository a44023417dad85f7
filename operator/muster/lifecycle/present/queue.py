"""The queue that a job waits in, with the position that it has there."""

from __future__ import annotations

from muster.api.status import QueueStatus, TrainingJobStatus
from muster.api.times import whole_seconds
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.present.conditions import is_queued


def queue_of(status: TrainingJobStatus, facts: Facts) -> QueueStatus | None:
    """The queue of a job with this status. None if the job does not wait in one."""
    quota, name = facts.observed.quota, facts.spec.scheduling.queue
    if quota is None or status.phase.final or facts.problems or not is_queued(status, facts):
        return None
    old = status.queue
    return QueueStatus(
        name=name,
        since=old.since if old and old.name == name else whole_seconds(facts.now),
        position=quota.position.in_local_queue if quota.position else None,
        cluster_queue_position=quota.position.in_cluster_queue if quota.position else None,
        summary=f"{quota.position.in_local_queue} in {name}" if quota.position else name,
    )
