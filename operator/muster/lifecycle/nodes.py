"""Which nodes are avoided? Those on which attempts of this job died twice, for a while after the last time.

Only ends that may be the node's fault count. A user's error happens everywhere, a node that is drained or a spot node that is taken away is
not bad, and that a peer was lost or the storage is away says nothing of where it was noticed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

from muster.api.status import AttemptRecord, AvoidedNode, FailureClass, Reason, TrainingJobStatus
from muster.lifecycle.observed import ReplicaView
from muster.lifecycle.situation import Situation

DEATHS = 2
_ELSEWHERE = frozenset({Reason.PEER_LOST, Reason.STORAGE_UNAVAILABLE})


def noted(case: Situation, status: TrainingJobStatus) -> TrainingJobStatus:
    """The status with the nodes that are avoided from now on; it follows from the last attempts, and from the time."""
    found = avoided(case, status)
    return status if found == status.avoided_nodes else status.model_copy(update={"avoided_nodes": found})


def avoided(case: Situation, status: TrainingJobStatus) -> list[AvoidedNode]:
    """In the order of their names."""
    deaths: dict[str, list[datetime]] = defaultdict(list)
    for record in status.attempts:
        if record.node and record.failed_time and _may_be_the_nodes_fault(record):
            deaths[record.node].append(record.failed_time)
    found = (_judged(case, name, times) for name, times in sorted(deaths.items()))
    return [node for node in found if node and case.now < node.until]


def due(status: TrainingJobStatus) -> datetime | None:
    """When one is no longer avoided."""
    return min((node.until for node in status.avoided_nodes), default=None)


def of_replica(views: Iterable[ReplicaView], label: str | None, *, known: AttemptRecord) -> str | None:
    """The node that the replica ran on in the attempt; what is known, where its pod is gone or another has its name by now."""
    if label == known.replica and known.node:
        return known.node
    ran = (view for view in views if view.label == label and (known.end_time is None or view.created <= known.end_time))
    return next((view.node for view in ran if view.node), None)


def _may_be_the_nodes_fault(record: AttemptRecord) -> bool:
    if record.failure_class is FailureClass.INFRASTRUCTURE:
        return record.reason not in _ELSEWHERE and (record.reason is not Reason.HANG or bool(record.stacks))
    return record.reason is Reason.NODE_LOST


def _judged(case: Situation, name: str, times: list[datetime]) -> AvoidedNode | None:
    within = timedelta(seconds=case.policy.node_seconds)
    last = max(times)
    recent = sum(time > last - within for time in times)
    return AvoidedNode(name=name, deaths=recent, until=last + within) if recent >= DEATHS else None
