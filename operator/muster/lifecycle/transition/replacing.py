"""Replacements under a new name, for pods whose end cannot be confirmed.

A pod on a node that is dead, frozen or cut off stays for minutes, and its name is taken. If fences keep its processes from doing harm, the
next world does not wait for the pod. Such a pod is orphaned, and the status lists it. The names of the new pod end in the number of the
attempt. All names are functions of the status, so that every leader uses the same names.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from muster.api.status import MAX_ORPHANED, Member, OrphanedPod, TrainingJobStatus
from muster.lifecycle.actions import Action, LookLive, deletion
from muster.lifecycle.facts import capacity
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.facts.silence import silent_after_the_end_at, silent_at
from muster.lifecycle.job_state import is_open
from muster.lifecycle.observed import Replica, ReplicaPhase, ReplicaView
from muster.lifecycle.transition import spares

_SUFFIXES = 1000
"""The number of suffixes. They have three digits at most, so that names stay short."""


def with_orphaned(status: TrainingJobStatus, facts: Facts) -> TrainingJobStatus:
    """The status with the pods of older attempts that do not answer now, and without those that are gone. A ready spare, or a new pod,
    takes the place of each. A ready spare also takes the place of a pod that has ended before it could acknowledge the attempt. Only a live
    observation proves that a pod does not answer: in a stale one, a pod that has ended may still run."""
    status = _without_deleted(status, facts)
    if not is_open(status) or status.world is None:
        return status
    facts = facts.in_world_of(status)
    orphaned = _newly_orphaned(status, facts) if facts.live else []
    uids = {view.replica: view.uid for view in orphaned}
    status = spares.with_successors(status, facts, lambda member: _is_in_place_of(member, uids), excluded=set(uids.values()))
    if not orphaned or status.world is None:
        return status
    members = tuple(_renamed(member, status) if _is_in_place_of(member, uids) else member for member in status.world.members)
    entries = (_entry(view, facts) for view in orphaned)
    return replace(status, orphaned=(*status.orphaned, *entries), world=replace(status.world, members=members))


def suffix_of(replica: Replica, status: TrainingJobStatus, *, attempt: int) -> int | None:
    """The suffix of the pod that an attempt creates for this replica. None if every older name is free."""
    is_taken = any(each.replica == replica for each in status.orphaned)
    return attempt % _SUFFIXES if is_taken else None


def actions(status: TrainingJobStatus, facts: Facts) -> tuple[Action, ...]:
    """Deletes the orphaned pods. Looks live whether they are gone, and whether other pods have to be listed with them."""
    deletions = tuple(action for view in facts.orphaned for action in deletion(view))
    is_list_stale = len(facts.orphaned) < len(status.orphaned) or _newly_orphaned(status, facts)
    return (*deletions, LookLive()) if is_list_stale and not facts.live else deletions


def is_misplaced(status: TrainingJobStatus, facts: Facts) -> bool:
    """Whether a pod waits for a node while it excludes a node that it could use again, or while it could use a further capacity class."""
    time = _misplaced_at(status, facts)
    return (time is not None and facts.now >= time) or _lacks_classes(status, facts)


def _lacks_classes(status: TrainingJobStatus, facts: Facts) -> bool:
    starts = is_open(status) and status.world is not None and status.world.ready_time is None
    return starts and any(capacity.lacks_classes(view, status, facts) for view in facts.trainers(status.attempt))


def wake_times(status: TrainingJobStatus, facts: Facts) -> list[datetime | None]:
    """When pods of attempts that are over count as silent, and when misplaced pods are created again."""
    leaving = facts.older_than(status.attempt) if is_open(status) else facts.replicas
    times = [time(view, facts) for view in leaving for time in (silent_after_the_end_at, silent_at)]
    return [*times, _misplaced_at(status, facts)]


def _newly_orphaned(status: TrainingJobStatus, facts: Facts) -> list[ReplicaView]:
    """The pods of older attempts that do not answer, as many as the list still takes."""
    if not facts.replaces_at_once or not is_open(status) or status.world is None:
        return []
    views = [view for view in facts.older_than(status.attempt) if _does_not_answer(view, facts)]
    return views[: MAX_ORPHANED - len(status.orphaned)]


def _without_deleted(status: TrainingJobStatus, facts: Facts) -> TrainingJobStatus:
    """The status without the orphaned pods that are gone. Only a live observation proves that."""
    if not facts.live or not status.orphaned:
        return status
    uids = {view.uid for view in facts.observed.replicas}
    return replace(status, orphaned=tuple(each for each in status.orphaned if each.uid in uids))


def _entry(view: ReplicaView, facts: Facts) -> OrphanedPod:
    attempt = view.attempt if view.attempt >= 0 else None
    return OrphanedPod(name=view.name, uid=view.uid, role=view.role, index=view.index, attempt=attempt, node=view.node, since=facts.stamp)


def _does_not_answer(view: ReplicaView, facts: Facts) -> bool:
    """Whether the supervisor of the replica is silent, or the replica exists long after its grace period."""
    times = (silent_after_the_end_at(view, facts), _overdue_at(view, facts))
    return not view.over and any(time is not None and facts.now >= time for time in times)


def _overdue_at(view: ReplicaView, facts: Facts) -> datetime | None:
    is_leaving = view.due is not None and view.deleting is not None and not view.over
    return view.due + timedelta(seconds=facts.policy.overdue_seconds) if is_leaving and view.due else None


def _is_in_place_of(member: Member, uids: dict[Replica, str]) -> bool:
    return member.replica in uids and member.uid in ("", uids[member.replica])


def _renamed(member: Member, status: TrainingJobStatus) -> Member:
    return Member(role=member.role, index=member.index, succeeded=member.succeeded, suffix=status.attempt % _SUFFIXES)


def _misplaced_at(status: TrainingJobStatus, facts: Facts) -> datetime | None:
    if not is_open(status) or status.world is None or status.world.ready_time:
        return None
    silent = {each.node for each in status.orphaned}
    waiting = (view for view in facts.trainers(status.attempt) if view.phase is ReplicaPhase.PENDING and not view.node)
    vain = [view.created for view in waiting if view.excluded_nodes and not silent.issuperset(view.excluded_nodes)]
    return min(vain) + timedelta(seconds=facts.policy.unplaced_seconds) if vain else None
