"""The attempt that each pod belongs to, and the replicas that stand by.

A pod whose supervisor restarts in place moves on to the next attempt. The pod belongs to its old attempt until the supervisor acknowledges
that the old processes have ended. So every rule about replicas of older attempts also applies to this pod.

Some strategies restart only some roles, and the processes of the other members go on. Such a member reports the attempt in which its
processes started, which is its incarnation. `ReplicaView.about` says which attempt the report is about.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from muster.api.job import TrainingJob
from muster.api.spec import RoleName
from muster.api.status import Member, TrainingJobStatus
from muster.api.times import reported_time
from muster.lifecycle.job_state import is_open
from muster.lifecycle.observed import Incarnation, Observed, Replica, ReplicaPhase, ReplicaView
from muster_contract.events import MAX_ATTEMPT
from muster_contract.reports import TerminationMessage

NO_ATTEMPT = -1
"""The attempt of a replica that no world needs: a spare, or one whose attempt cannot have begun."""
_MOST_AT_ONCE = 1000

Views = tuple[ReplicaView, ...]


def latest_attempt(job: TrainingJob, now: datetime) -> int:
    """The highest attempt that can have begun by now: no job begins one each second.

    If a status was wiped, only labels of pods and reports show the attempt. But users write labels, and programs can write reports. An
    attempt far ahead would use up the numbers, which have nine digits.
    """
    age = now - (job.metadata.creation_timestamp or now)
    return max(job.status.attempt + 1, _MOST_AT_ONCE + int(age.total_seconds()))


def assigned(
    observed: Observed, status: TrainingJobStatus, roles: Iterable[RoleName] = (), *, latest: int = MAX_ATTEMPT
) -> tuple[Views, Views]:
    """The replicas, each with its attempt, and the replicas that stand by. Both omit orphaned replicas and are in the order of `roles`.

    The attempt of a replica is the one for which its pod was created, or a later one that its supervisor has acknowledged. The status
    records the replicas that have joined the world, because a new leader has no reports yet. A replica of an attempt after `latest` has
    no attempt, so that no world needs it.
    """
    world = status.world
    members = world.member_of if world else {}
    occupied = {member.replica for member in world.members} if world else set()  # a new member has no uid yet
    orphaned = {each.uid for each in status.orphaned}
    views = [view for view in observed.replicas if view.uid not in orphaned]
    pods = _pods_of_newest_world(status)
    inside, idle, unwanted = [], [], []
    for view in views:
        if view.attempt > latest:
            unwanted.append(replace(view, attempt=NO_ATTEMPT))
        elif not view.standby or view.uid in members:
            inside.append(_in_its_attempt(view, members.get(view.uid), status, pods, latest))
        elif is_open(status) and view.replica not in occupied and has_current_template(observed, view):
            idle.append(view)
        else:
            unwanted.append(replace(view, attempt=NO_ATTEMPT))
    return _sorted((*inside, *unwanted), roles), _sorted(idle, roles)


def orphaned_of(observed: Observed, status: TrainingJobStatus, roles: Iterable[RoleName]) -> Views:
    """The orphaned replicas, which the status lists, each in its last attempt, in the order of `roles`."""
    attempts = {each.uid: each.attempt for each in status.orphaned}
    views = [view for view in observed.replicas if view.uid in attempts]
    placed = ((view, attempts[view.uid]) for view in views)
    return _sorted((replace(view, attempt=NO_ATTEMPT if attempt is None else attempt) for view, attempt in placed), roles)


def has_current_template(observed: Observed, view: ReplicaView) -> bool:
    """Whether the pod of the replica has the template that a pod created now would have."""
    return view.template_hash == observed.template_hash or not view.template_hash or not observed.template_hash


def attempt_of(status: TrainingJobStatus, uid: str) -> int:
    """The attempt whose processes the replica with this uid runs, or will run."""
    member = status.world.member_of.get(uid) if status.world else None
    return status.attempt if member is None or member.awaited or member.incarnation is None else member.incarnation


def _sorted(views: Iterable[ReplicaView], roles: Iterable[RoleName]) -> Views:
    order = {role: number for number, role in enumerate(roles)}
    return tuple(sorted(views, key=lambda view: (order.get(view.role, len(order)), view.index, view.uid)))


def _in_its_attempt(
    view: ReplicaView, member: Member | None, status: TrainingJobStatus, pods: dict[Replica, str], latest: int
) -> ReplicaView:
    current = status.world.attempt if status.world else 0
    if member and member.incarnation is not None:
        view = replace(view, incarnation=_incarnation(member.incarnation, member, status, current))
    attempt = max(view.attempt, _joined(member, current), _acknowledged(view, status, pods, latest))
    report = view.report_about(attempt)
    # When the job has ended, a supervisor that has reported its termination message exits by itself, even if its report is not `waiting`.
    termination = report.termination if report and (report.waiting or status.phase.final) else None
    if view.phase is ReplicaPhase.RUNNING and termination and view.about(termination.attempt) in (None, attempt):
        return replace(view, attempt=attempt, has_reported_end=True, finished=_end_time(view, termination))
    return view if view.attempt == attempt else replace(view, attempt=attempt)


def _incarnation(number: int, member: Member, status: TrainingJobStatus, current: int) -> Incarnation:
    """Processes that restarts have left running. They take part in the attempt before `current` if the world still waits for the member."""
    is_recorded = any(record.attempt >= number and record.step_resumed is not None for record in status.attempts)
    return Incarnation(number, current - 1 if member.awaited else current, is_recorded)


def _joined(member: Member | None, current: int) -> int:
    """The attempt that the member has joined, as the status records it, because a new leader has no reports yet."""
    return current if member and not member.awaited else 0


def _acknowledged(view: ReplicaView, status: TrainingJobStatus, pods: dict[Replica, str], latest: int) -> int:
    """The attempt that the supervisor of the replica reports; 0 if the pod is being deleted or replaced, because it joins no new attempt.

    A supervisor that waits after the end of an attempt has acknowledged the next one, as soon as there is one.

    Muster has requested the deletion of a pod that the current world replaces, and the cache may not show that yet.

    A supervisor is at most one attempt ahead of the status. If the status was wiped, only replicas show the attempt.
    """
    if view.deleting is not None or _is_replaced(view, status, pods):
        return 0
    latest = status.attempt + 1 if status.attempts else latest
    reported = max(_reported(view, status), (view.about(view.termination.attempt) if view.termination else None) or 0)
    return reported if reported <= latest else 0


def _reported(view: ReplicaView, status: TrainingJobStatus) -> int:
    report = view.report
    if report is None:
        return 0
    reported = view.about(report.attempt) or 0
    if report.startable_attempt is None or view.phase is not ReplicaPhase.RUNNING:
        return reported
    startable = reported + report.startable_attempt - report.attempt
    return startable if startable <= status.attempt else reported


def _is_replaced(view: ReplicaView, status: TrainingJobStatus, pods: dict[Replica, str]) -> bool:
    """Whether the replica is a pod of an older attempt, and the newest world has another pod, or none yet, in its place."""
    return view.attempt < status.attempt and pods.get(view.replica, view.uid) != view.uid


def _pods_of_newest_world(status: TrainingJobStatus) -> dict[Replica, str]:
    """The uid of each member's pod, empty until the pod is created. No members if the newest attempt has no world yet."""
    world = status.world
    return {member.replica: member.uid for member in world.members} if world and world.attempt == status.attempt else {}


def _end_time(view: ReplicaView, termination: TerminationMessage) -> datetime | None:
    """When the processes of the replica ended, by its own clock, limited to the times between its creation and its report."""
    if view.reported is None:
        return None
    return max(view.created, min(view.reported, reported_time(termination.ended_at, fallback=view.reported)))
