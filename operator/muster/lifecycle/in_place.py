"""Which replicas outlive an attempt? A pod whose supervisor still answers is kept: it ends its old processes, says so, and starts the new.

A kept replica belongs to its old attempt until it has said that nothing of that is left. So all that holds for replicas of an older
attempt holds for it: nothing is made beside it, and the new world is not handed out while it is there.

Where a strategy need not restart as a whole, replicas that are well are spared: their processes go on. Such a replica still speaks of
the attempt that they were started in, its incarnation; here that is taken for the current one, so that nobody else has to know.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from muster.api import grace
from muster.api.reports import LARGEST_ATTEMPT, LastWords, Marks
from muster.api.spec import RoleName, TrainingJobSpec
from muster.api.status import Member, Reason, TrainingJobStatus
from muster.lifecycle import failure, nodes, records
from muster.lifecycle.moments import moment
from muster.lifecycle.observed import Observed, ReplicaPhase, ReplicaView
from muster.lifecycle.situation import ORDER, Situation

_LEAVE_SECONDS = 10
_NO_ATTEMPT = -1
"""Of a replica that stood by and is not wanted any more."""
_ASKED = frozenset({Reason.DISRUPTED, Reason.EVICTED, Reason.POD_DELETED, Reason.PREEMPTED})
"""Ends of which the processes are told beforehand, so that all ranks save at the same step."""


def seen(observed: Observed, status: TrainingJobStatus) -> Observed:
    """What is observed, each replica in the attempt that it has come to: the one its pod was made for, or one it has acknowledged since.

    The status remembers who has joined its world: a new leader has heard nobody yet.
    """
    members = {member.uid: member for member in status.world.members} if status.world else {}
    current = status.world.attempt if status.world else 0
    outside = [view for view in observed.everyone if view.standby and view.uid not in members]
    taken = {(member.role, member.index) for member in (status.world.members if status.world else ())}
    idle = tuple(view for view in outside if records.is_open(status) and view.place not in taken and _alike(observed, view))
    unwanted = tuple(replace(view, attempt=_NO_ATTEMPT) for view in outside if view not in idle)
    over = status.phase.final
    # A supervisor is at most one attempt ahead of the status that was read. If that was wiped, the replicas alone know the attempt.
    latest = status.attempt + 1 if status.attempts else LARGEST_ATTEMPT
    replicas = (_seen(view, members.get(view.uid), current, over=over, latest=latest) for view in observed.everyone if view not in outside)
    return replace(observed, replicas=_sorted((*replicas, *unwanted)), standing_by=_sorted(idle))


def _sorted(views: Iterable[ReplicaView]) -> tuple[ReplicaView, ...]:
    """In an order of their own: callers give replicas in any order, and the same replicas must lead to the same status."""
    return tuple(sorted(views, key=lambda view: (ORDER[view.role], view.index, view.uid)))


def _seen(view: ReplicaView, member: Member | None, current: int, *, over: bool, latest: int) -> ReplicaView:
    """`over`: the job has ended. Then a supervisor that has reported last words ends by itself, also if it does not say that it waits.
    `latest`: the highest attempt that a supervisor is believed to have come to."""
    if member and member.incarnation is not None:
        view = _renumbered(view, member.incarnation, current - 1 if member.awaited else current)
    report = view.report
    ended = (view.last_words.attempt if view.last_words else None) or 0
    told = max(report.attempt if report else 0, ended) if view.deleting is None else 0  # what is on its way out joins nothing any more
    told = told if told <= latest else 0
    attempt = max(view.attempt, current if member and not member.awaited else 0, told)
    words = report.last_words if report and (report.waiting or over) and report.attempt == attempt else None
    if view.phase is ReplicaPhase.RUNNING and words and words.attempt in (None, attempt):
        return replace(view, attempt=attempt, spent=True, finished=_ended(view, words))
    return replace(view, attempt=attempt) if attempt != view.attempt else view


def _ended(view: ReplicaView, words: LastWords) -> datetime | None:
    """When its processes did, by its own clock, as far as that can be."""
    if view.reported is None:
        return None
    return max(view.created, min(view.reported, moment(words.ended_at, fallback=view.reported)))


def _renumbered(view: ReplicaView, incarnation: int, attempt: int) -> ReplicaView:
    """What a spared replica says of its incarnation, as of the attempt. How its processes began is no news of this one."""

    def words(spoken: LastWords | None) -> LastWords | None:
        return spoken.model_copy(update={"attempt": attempt}) if spoken and spoken.attempt == incarnation else spoken

    report = view.report
    if report and report.attempt == incarnation:
        report = report.model_copy(update={"attempt": attempt, "resumed": None, "marks": Marks(), "last_words": words(report.last_words)})
    return replace(view, report=report, last_words=words(view.last_words))


def attempt_of(status: TrainingJobStatus, uid: str) -> int:
    """The attempt of which the replica with this uid runs, or is to run, the processes."""
    members = status.world.members if status.world else []
    member = next((member for member in members if member.uid == uid and not member.awaited), None)
    return status.attempt if member is None or member.incarnation is None else member.incarnation


def spared(case: Situation, status: TrainingJobStatus) -> dict[tuple[str, int], int]:
    """The members that the restart after the current attempt leaves alone, with their incarnation; none where all restart together."""
    record = records.current(status)
    if status.world is None or record is None or record.failure_class is None or record.reason is Reason.HANG:
        return {}
    # One that was not heard yet may have ended long ago: a new leader does not know.
    uids = {view.uid for view in case.replicas(status.attempt) if keepable(view) and not view.spent}
    well = [member for member in status.world.members if member.uid in uids and not member.awaited and _label(member) != record.replica]
    broken = {RoleName(member.role) for member in status.world.members if member not in well}
    scopes = [case.strategy.restarts_with(role) for role in broken]
    if None in scopes:
        return {}
    restarting = frozenset[RoleName]().union(*(scope for scope in scopes if scope), _suspects(case, status.attempt))
    incarnations = {(member.role, member.index): member.incarnation for member in well if member.role not in restarting}
    return {place: status.attempt if known is None else known for place, known in incarnations.items()}


def _suspects(case: Situation, attempt: int) -> frozenset[RoleName]:
    """The roles of which one that broke takes along a replica that complains of a lost peer."""
    ends = ((view.role, failure.classify(view, asked=False)) for view in case.trainers(attempt))
    complain = {role for role, cause in ends if cause and cause.reason is Reason.PEER_LOST}
    return frozenset(role for role in case.strategy.roles if complain & (case.strategy.restarts_with(role) or frozenset()))


def _label(member: Member) -> str:
    return f"{member.role}-{member.index}"


def kept(case: Situation, status: TrainingJobStatus) -> dict[tuple[str, int], str]:
    """The uid of each replica that the next attempt can go on with, by role and index: on a bad node only while that gains something.

    All of a world are made of the same: after an edit of the job, or of the installation's defaults, none is kept.
    """
    left = {node.name for node in nodes.avoided(case, status)} if status.restarts.without_progress else set()
    found = (view for view in case.observed.everyone if keepable(view) or _unheard(case, status, view))
    return {view.place: view.uid for view in found if view.node not in left and _alike(case.observed, view)}


def _alike(observed: Observed, view: ReplicaView) -> bool:
    """Whether it is made of what a replica that was made now would be."""
    return view.form == observed.form or not view.form or not observed.form


def _unheard(case: Situation, status: TrainingJobStatus, view: ReplicaView) -> bool:
    """Whether it is a member of the world of which a new leader has not heard yet, in a job whose supervisors speak, as the status shows.
    It is given the time to acknowledge that any other has. Not so where roles restart by themselves: there it must be told first what
    broke."""
    if view.report is not None or not view.stays or status.world is None or not case.spec.trainer.supervised:
        return False
    if case.strategy.restarts_with(view.role) is not None:
        return False
    speaks = status.progress is not None or any(record.step_resumed is not None for record in status.attempts)
    return speaks and any(member.uid == view.uid for member in status.world.members)


def keepable(view: ReplicaView) -> bool:
    """Whether its supervisor can go on with another attempt."""
    return view.report is not None and view.report.in_place and view.stays


def awaited(case: Situation, status: TrainingJobStatus) -> tuple[ReplicaView, ...]:
    """Replicas of the attempt before that have yet to acknowledge this one, and still have time to."""
    if case.now >= deadline(case, status):
        return ()
    uids = {member.uid for member in _awaited(status)}
    return tuple(view for view in case.observed.replicas if view.uid in uids and view.attempt < status.attempt and view.stays)


def _awaited(status: TrainingJobStatus) -> list[Member]:
    return [member for member in status.world.members if member.awaited] if status.world else []


def deadline(case: Situation, status: TrainingJobStatus) -> datetime:
    """Until when the replicas that are kept may acknowledge; one that does not loses its pod."""
    assert status.world is not None
    return status.world.created_time + timedelta(seconds=case.policy.acknowledge_seconds + grace_seconds(case.spec, status))


def time_to_leave(case: Situation, status: TrainingJobStatus, view: ReplicaView) -> int | None:
    """Seconds that a replica gets to end which is not of the current world; None: its own grace period. One that has not acknowledged in
    its time has had that; of a broken world nobody can save."""
    if any(member.uid == view.uid for member in _awaited(status)):
        return grace_seconds(case.spec, status) + _LEAVE_SECONDS
    return None if grace_seconds(case.spec, status) else case.brief_grace


def due(case: Situation, status: TrainingJobStatus) -> datetime | None:
    """The same, while somebody is awaited."""
    return deadline(case, status) if _awaited(status) else None


def grace_seconds(spec: TrainingJobSpec, status: TrainingJobStatus) -> int:
    """What the processes of the newest attempt that has ended get to save: nobody can in a world that has lost a member, or that hangs."""
    ended = records.ended(status)
    whole = ended is not None and (ended.failure_class is None or ended.reason in _ASKED)
    return grace.seconds(spec, status) if whole else 0


def handed_out(status: TrainingJobStatus, uid: str) -> Member | None:
    """The place in the current world that this replica starts processes for, once the status says that all are there and no older ones."""
    world = status.world
    if world is None or world.ready_time is None or not records.is_open(status):
        return None
    return next((member for member in world.members if member.uid == uid and not member.awaited), None)
