"""Notices of nodes: which pods of the world are on nodes that announce that they go."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from muster.api.spec import NodeNotices, PodLabels
from muster.api.status import MAX_NODE_NOTICES, Meaning, NodeNotice, TrainingJobStatus
from muster.lifecycle.facts import capacity
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.observed import Replica, ReplicaView


def with_notices(status: TrainingJobStatus, facts: Facts) -> TrainingJobStatus:
    """The status with the notices of the nodes of this job. A notice stays until it is withdrawn, also after the pods have moved, because
    new pods avoid the node. Nothing changes while no notices can be read, as in a new leader."""
    observed = facts.observed.notices
    if facts.spec.recovery.node_notices is NodeNotices.IGNORE:
        return replace(status, node_notices=())
    if observed is None:
        return status
    before = {each.node: each for each in status.node_notices}
    nodes = {view.node for view in (*facts.everyone, *facts.departed_members(status)) if view.node} | before.keys()
    found = [observed[node] for node in sorted(nodes) if node in observed]
    # Another leader has seen the signal at another time.
    kept = [old if (old := before.get(each.node)) and old.signal == each.signal else each for each in found]
    return replace(status, node_notices=tuple(kept[:MAX_NODE_NOTICES]))


def most_urgent(notices: Iterable[NodeNotice]) -> NodeNotice | None:
    """The notice that came last, of those whose node goes if there is one."""
    return max(notices, key=lambda each: (each.meaning is Meaning.GOES, each.since), default=None)


def going(status: TrainingJobStatus, facts: Facts) -> frozenset[str]:
    """The nodes that the job leaves, because they go within the next `notice_seconds`, or at a time that is unknown."""
    if facts.spec.recovery.node_notices is not NodeNotices.AUTO:
        return frozenset()
    return frozenset(each.node for each in status.node_notices if (due := due_time(each, facts)) is not None and facts.now >= due)


def pods_that_karpenter_moves(status: TrainingJobStatus, facts: Facts) -> tuple[PodLabels, ...]:
    """The pods on nodes that the job leaves because Karpenter takes them away."""
    nodes = going(status, facts) & {each.node for each in status.node_notices if each.is_of_karpenter}
    return tuple(sorted((view.role, view.index, view.attempt) for view in facts.observed.replicas if view.node in nodes))


def announced(status: TrainingJobStatus, facts: Facts) -> frozenset[str]:
    """The nodes that announce that they go, at whatever time, or did so until this pass."""
    return frozenset(each.node for each in (*facts.job.status.node_notices, *status.node_notices) if each.meaning is Meaning.GOES)


def due_time(notice: NodeNotice, facts: Facts) -> datetime | None:
    """From when on the job leaves the node. None if the node may stay."""
    if notice.meaning is not Meaning.GOES:
        return None
    return notice.since if notice.goes_time is None else max(notice.since, notice.goes_time - facts.policy.notice_time)


def leaving(status: TrainingJobStatus, facts: Facts) -> tuple[ReplicaView, ...]:
    """The workers of the world whose nodes go."""
    nodes, world = going(status, facts), status.world
    if not nodes or world is None:
        return ()
    role = facts.strategy.worker_role
    return tuple(view for view in facts.replicas if view.node in nodes and view.role == role and view.uid in world.member_of)


def wanted(status: TrainingJobStatus, facts: Facts) -> int:
    """The number of replicas that stand by: the spares, and replacements for workers that leave. A job in a queue gets no more than its
    spares, because its quota holds no more."""
    asked_for = facts.spec.recovery.spares
    if facts.spec.scheduling.queue or not facts.strategy.replaces(facts.spec):
        return asked_for
    return max(asked_for, len(leaving(status, facts))) + len(capacity.returning(status, facts))


def staying(status: TrainingJobStatus, facts: Facts) -> set[Replica]:
    """The members of an elastic world that stay."""
    gone = {view.replica for view in leaving(status, facts)}
    return {member.replica for member in (status.world.members if status.world else ())} - gone
