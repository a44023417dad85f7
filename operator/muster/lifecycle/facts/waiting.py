"""What a world waits for. `present/waiting.py` says it in words."""

from __future__ import annotations

from datetime import datetime, timedelta

from muster.api.status import Member, TrainingJobStatus
from muster.lifecycle.facts import gang
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.observed import ReplicaPhase, ReplicaView

_SILENT_SECONDS = 30.0
"""A pod on a node whose containers have not begun after this time usually pulls a large image, or lacks a volume."""


def missing(status: TrainingJobStatus, facts: Facts) -> list[Member]:
    """Members that have no replica now, and should have one. Muster creates an evaluator after the gang has nodes, because it could take a
    node that the gang needs."""
    present = {view.replica for view in facts.replicas_of(status.attempt)}
    members = status.world.members if status.world else ()
    if gang.is_waiting(status, facts):
        members = tuple(member for member in members if facts.strategy.is_in_world(member.role))
    return [member for member in members if not member.succeeded and member.replica not in present]


def pending_replicas(status: TrainingJobStatus, facts: Facts) -> list[ReplicaView]:
    return [view for view in facts.trainers(status.attempt) if view.phase is ReplicaPhase.PENDING]


def silence_due(status: TrainingJobStatus, facts: Facts) -> datetime | None:
    """When the message says that the containers of a pod on a node have not begun. None if a pod says why it waits.

    The kubelet does not write into the pod that a ConfigMap or Secret is missing, only into Events, which Muster has no right to read.
    """
    pending = pending_replicas(status, facts)
    if any(view.waits_for or view.reason or view.message or view.inputs for view in pending):
        return None
    return min((view.placed + timedelta(seconds=_SILENT_SECONDS) for view in pending if view.placed), default=None)
