"""Which replicas outlive an attempt? A pod whose supervisor still answers is kept: it ends its old processes, says so, and starts the new.

A kept replica belongs to its old attempt until it has said that nothing of that is left. So all that holds for replicas of an older
attempt holds for it: nothing is made beside it, and the new world is not handed out while it is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from muster.api.spec import TrainingJobSpec
from muster.api.status import Member, Reason, TrainingJobStatus
from muster.lifecycle import records
from muster.lifecycle.observed import Observed, ReplicaPhase, ReplicaView
from muster.lifecycle.situation import Situation

_ASKED = frozenset({Reason.DISRUPTED, Reason.EVICTED, Reason.POD_DELETED, Reason.PREEMPTED})
"""Ends of which the processes are told beforehand, so that all ranks save at the same step."""


def seen(observed: Observed, status: TrainingJobStatus) -> Observed:
    """What is observed, each replica in the attempt that it has come to: the one its pod was made for, or one it has acknowledged since.

    The status remembers who has joined its world: a new leader has heard nobody yet.
    """
    joined = {member.uid: status.world.attempt for member in status.world.members if not member.awaited} if status.world else {}
    return replace(observed, replicas=tuple(_seen(view, joined) for view in observed.replicas))


def _seen(view: ReplicaView, joined: Mapping[str, int]) -> ReplicaView:
    report = view.report
    ended = (view.last_words.attempt if view.last_words else None) or 0
    told = max(report.attempt if report else 0, ended) if view.deleting is None else 0  # what is on its way out joins nothing any more
    attempt = max(view.attempt, joined.get(view.uid, 0), told)
    words = report.last_words if report and report.waiting and report.attempt == attempt else None
    if view.phase is ReplicaPhase.RUNNING and words and words.attempt in (None, attempt):
        return replace(view, attempt=attempt, spent=True, finished=view.reported)
    return replace(view, attempt=attempt) if attempt != view.attempt else view


def kept(case: Situation) -> dict[tuple[str, int], str]:
    """The uid of each replica that the next attempt can go on with, by role and index."""
    return {(view.role.value, view.index): view.uid for view in case.observed.replicas if _keepable(view)}


def _keepable(view: ReplicaView) -> bool:
    return view.report is not None and view.report.in_place and _stays(view)


def _stays(view: ReplicaView) -> bool:
    return view.phase is ReplicaPhase.RUNNING and view.deleting is None and view.disruption is None


def awaited(case: Situation, status: TrainingJobStatus) -> tuple[ReplicaView, ...]:
    """Replicas of the attempt before that have yet to acknowledge this one, and still have time to."""
    if case.now >= deadline(case, status):
        return ()
    uids = {member.uid for member in _awaited(status)}
    return tuple(view for view in case.observed.replicas if view.uid in uids and view.attempt < status.attempt and _stays(view))


def _awaited(status: TrainingJobStatus) -> list[Member]:
    return [member for member in status.world.members if member.awaited] if status.world else []


def deadline(case: Situation, status: TrainingJobStatus) -> datetime:
    """Until when the replicas that are kept may acknowledge; one that does not loses its pod."""
    assert status.world is not None
    return status.world.created_time + timedelta(seconds=case.policy.acknowledge_seconds + grace_seconds(case.spec, status))


def due(case: Situation, status: TrainingJobStatus) -> datetime | None:
    """The same, while somebody is awaited."""
    return deadline(case, status) if _awaited(status) else None


def grace_seconds(spec: TrainingJobSpec, status: TrainingJobStatus) -> int:
    """What the processes of the attempt before get to save: nobody can in a world that has lost a member, or that hangs."""
    before = records.before(status)
    whole = before is not None and (before.failure_class is None or before.reason in _ASKED)
    return spec.checkpoint.grace_period_seconds if whole else 0


def handed_out(status: TrainingJobStatus, uid: str) -> Member | None:
    """The place in the current world that this replica starts processes for, once the status says that all are there and no older ones."""
    world = status.world
    if world is None or world.ready_time is None or not records.is_open(status):
        return None
    return next((member for member in world.members if member.uid == uid and not member.awaited), None)
