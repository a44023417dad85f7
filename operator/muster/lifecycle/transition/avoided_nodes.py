"""Avoided nodes: nodes on which attempts of this job failed twice, or once because of a device. Muster avoids them for some time after the
last failure.

Only failures that the node may have caused count. An error of the user happens on every node. A drained node, or a spot node that the
provider removes, is not bad. A lost peer, or storage or an input that is not available, shows nothing about the node of the replica that
reports it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

from muster.api.status import AttemptRecord, AvoidedNode, FailureClass, Reason, TrainingJobStatus
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.facts.failure import DEVICE_REASONS
from muster.lifecycle.observed import ReplicaView

DEATHS = 2
_ELSEWHERE = frozenset(
    {
        Reason.PEER_LOST,
        Reason.STORAGE_UNAVAILABLE,
        Reason.STORAGE_FULL,
        Reason.STORAGE_READ_ONLY,
        Reason.STORAGE_FORBIDDEN,
        Reason.INPUT_UNAVAILABLE,
        Reason.INPUT_DISK_FULL,
    }
)


def avoided(status: TrainingJobStatus, facts: Facts) -> tuple[AvoidedNode, ...]:
    """The nodes that are avoided now, in the order of their names."""
    deaths: dict[str, list[datetime]] = defaultdict(list)
    devices: dict[str, list[datetime]] = defaultdict(list)
    for record in status.attempts:
        if record.node and record.failed_time and _may_be_the_nodes_fault(record):
            deaths[record.node].append(record.failed_time)
            if record.reason in DEVICE_REASONS:
                devices[record.node].append(record.failed_time)
    nodes = (_avoided_node(name, times, facts, devices=devices[name]) for name, times in sorted(deaths.items()))
    return tuple(node for node in nodes if node and facts.now < node.until)


def due(status: TrainingJobStatus) -> datetime | None:
    """When the next avoided node may be used again."""
    return min((node.until for node in status.avoided_nodes), default=None)


def node_of(views: Iterable[ReplicaView], label: str | None, *, record: AttemptRecord) -> str | None:
    """The node that the replica ran on in the attempt. The record has it if the pod is gone, or if another pod now has its name."""
    if label == record.replica and record.node:
        return record.node
    ran = (view for view in views if view.label == label and (record.end_time is None or view.created <= record.end_time))
    return next((view.node for view in ran if view.node), None)


def _may_be_the_nodes_fault(record: AttemptRecord) -> bool:
    if record.failure_class is FailureClass.INFRASTRUCTURE:
        return record.reason not in _ELSEWHERE and (record.reason is not Reason.HANG or bool(record.stacks))
    return record.reason is Reason.NODE_LOST


def _avoided_node(name: str, times: list[datetime], facts: Facts, *, devices: list[datetime]) -> AvoidedNode | None:
    within = timedelta(seconds=facts.policy.node_seconds)
    last = max(times)
    recent = sum(time > last - within for time in times)
    has_bad_device = any(time > last - within for time in devices)
    return AvoidedNode(name=name, deaths=recent, until=last + within) if recent >= DEATHS or has_bad_device else None
