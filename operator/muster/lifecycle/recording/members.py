"""The members of the world: their pods, which of them have ended well, and when all of them first ran."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from muster.api.status import Member, TrainingJobStatus
from muster.lifecycle.facts.devices import unhealthy_since
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.job_state import is_backing_off, is_open
from muster.lifecycle.observed import Replica, ReplicaPhase, ReplicaView
from muster.lifecycle.recording.phases import with_start_phases

_Views = Mapping[Replica, list[ReplicaView]]
"""The pods of each replica. A replica has more than one pod while one of them is being deleted."""


def with_members(status: TrainingJobStatus, facts: Facts) -> TrainingJobStatus:
    """The status with the pods of the members. Also sets the time when all members first ran and no older replica trained any more."""
    world = status.world
    if world is None or not is_open(status):
        return status
    views = _by_replica(facts.replicas_of(status.attempt))
    members = (_with_pod(member, views, facts) for member in world.members)
    world = replace(world, members=tuple(members))
    status = replace(status, world=world)
    if world.ready_time or is_backing_off(status, facts.now) or running(status, facts) < len(world_members(status, facts)):
        return status
    if any(facts.strategy.is_in_world(view.role) and _may_train(view) for view in facts.older_than(status.attempt)):
        return status  # the world waits for processes of an older attempt that may still train
    world = replace(world, ready_time=facts.stamp)
    status = replace(status, world=world, start_time=status.start_time or facts.stamp, next_attempt_time=None)
    return status if facts.counts_steps(status) else with_start_phases(status, facts)


def world_members(status: TrainingJobStatus, facts: Facts) -> list[Member]:
    """The members that train together."""
    return [member for member in status.world.members if facts.strategy.is_in_world(member.role)] if status.world else []


def running(status: TrainingJobStatus, facts: Facts) -> int:
    """The number of world members that run, or have ended well."""
    views = _by_replica(facts.replicas_of(status.attempt))
    return sum(member.succeeded or _runs(_view_of(member, views)) for member in world_members(status, facts))


def has_succeeded(status: TrainingJobStatus, facts: Facts) -> bool:
    """Whether all replicas of the decisive role have ended well: the chief if there is one, else all workers."""
    members = status.world.members if status.world else ()
    decisive = [member for member in members if member.role == facts.strategy.decisive]
    return bool(decisive) and all(member.succeeded for member in decisive)


def _by_replica(views: Iterable[ReplicaView]) -> _Views:
    replicas: dict[Replica, list[ReplicaView]] = {}
    for view in views:
        replicas.setdefault(view.replica, []).append(view)
    return replicas


def _view_of(member: Member, views: _Views) -> ReplicaView | None:
    return next((view for view in views.get(member.replica, ()) if member.awaited or member.uid in ("", view.uid)), None)


def _runs(view: ReplicaView | None) -> bool:
    return view is not None and view.phase is ReplicaPhase.RUNNING and view.deleting is None


def _may_train(view: ReplicaView) -> bool:
    """Whether the replica may run processes. After a termination message no process is left, and none starts without a new attempt."""
    has_ended = view.report is not None and (view.report.waiting or view.report.termination is not None)
    return not view.over and not has_ended


def _with_pod(member: Member, views: _Views, facts: Facts) -> Member:
    """The member with its current pod. Another pod may have replaced the pod of a member that is outside the world."""
    if facts.live and not facts.strategy.is_in_world(member.role):
        member = replace(member, uid="")
    view = _view_of(member, views)
    if view is None or member.succeeded:
        return member
    incarnation = None if member.awaited or view.uid != member.uid else member.incarnation
    succeeded = view.phase is ReplicaPhase.SUCCEEDED
    return Member(
        role=member.role,
        index=member.index,
        uid=view.uid,
        incarnation=incarnation,
        succeeded=succeeded,
        suffix=view.suffix,
        unhealthy_since=unhealthy_since(member, view, facts),
    )
