"""Records whether the grace period was long enough for a save, after a stop has raised a doubt.

The record names its attempt. Only a later attempt, or a worse result of the same attempt, changes the record.
"""

from __future__ import annotations

from dataclasses import replace

from muster.api.grace import needed
from muster.api.grace import seconds as allowed
from muster.api.status import AttemptRecord, ConditionType, GraceStatus, Reason, TrainingJobStatus
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.job_state import is_open
from muster.lifecycle.observed import ReplicaPhase, ReplicaView
from muster_contract.codes import ExitCode


def with_short_grace_of_open_attempt(status: TrainingJobStatus, facts: Facts) -> TrainingJobStatus:
    """The status with a replica that got less time to stop than a save takes. Muster itself stops no replica of an open attempt."""
    world = status.world
    if not is_open(status) or world is None or world.attempt != status.attempt or world.ready_time is None:
        return status
    members = {member.replica for member in world.members}
    views = [view for view in facts.trainers(status.attempt) if view.replica in members and _was_training(view)]
    given = [(seconds, view) for view in views if (seconds := _given(view)) is not None and seconds < needed(status)]
    if not given:
        return status
    seconds, view = min(given, key=lambda each: each[0])
    doubt = GraceStatus(
        attempt=status.attempt, reason=Reason.GRACE_TOO_SHORT, replica=view.label, node=view.node or "", given_seconds=seconds
    )
    return _with_doubt(status, facts, doubt)


def with_grace_of_ended_attempts(status: TrainingJobStatus, facts: Facts) -> TrainingJobStatus:
    """The status with the results of preempted attempts. An attempt that was settled before has its result on record."""
    settled = {record.attempt for record in facts.job.status.attempts if record.settled}
    for record in status.attempts:
        if record.failure_class and record.attempt not in settled:
            status = _with_end(status, facts, record)
    return status


def _with_end(status: TrainingJobStatus, facts: Facts, record: AttemptRecord) -> TrainingJobStatus:
    codes = _codes(record.attempt, facts)
    if record.reason is Reason.PREEMPTED_NOT_SAVED or codes.get(record.replica or "") == ExitCode.PREEMPTED_NOT_SAVED:
        if not needed(status):
            return status
        views = (view for view in facts.trainers(record.attempt) if view.label == record.replica)
        given = next((seconds for view in views if (seconds := _given(view)) is not None), None)
        doubt = GraceStatus(
            attempt=record.attempt,
            reason=Reason.PREEMPTED_NOT_SAVED,
            replica=record.replica or "",
            node=record.node or "",
            given_seconds=given,
        )
        return _with_doubt(status, facts, doubt)
    saved = record.reason is Reason.PREEMPTED or ExitCode.PREEMPTED in codes.values()
    if saved and _was_doubted(status, record):
        return replace(status, grace=GraceStatus(attempt=record.attempt, reason=Reason.SAVED_IN_TIME))
    return status


def _was_doubted(status: TrainingJobStatus, record: AttemptRecord) -> bool:
    """Whether an attempt before this one raised a doubt. Older versions recorded the doubt only in the condition."""
    if status.grace is not None:
        return status.grace.reason is not Reason.SAVED_IN_TIME and record.attempt > status.grace.attempt
    condition = status.condition(ConditionType.GRACE_SUFFICIENT)
    return condition is not None and condition.status == "False" and condition.last_transition_time <= record.start_time


def _with_doubt(status: TrainingJobStatus, facts: Facts, doubt: GraceStatus) -> TrainingJobStatus:
    old = status.grace
    if old and (doubt.attempt < old.attempt or (doubt.attempt == old.attempt and old.reason is not Reason.SAVED_IN_TIME)):
        return status
    return replace(status, grace=replace(doubt, needed_seconds=needed(status), allowed_seconds=allowed(facts.spec, status)))


def _was_training(view: ReplicaView) -> bool:
    """Whether the replica had processes that could save when it was asked to stop."""
    if view.phase is ReplicaPhase.PENDING or view.deleting is None:
        return False
    return not view.over or (view.finished is not None and view.finished >= view.deleting)


def _given(view: ReplicaView) -> int | None:
    """Seconds between the request to delete the pod and the end of its grace period. None if the pod is not being deleted."""
    return None if view.deleting is None or view.due is None else int((view.due - view.deleting).total_seconds())


def _codes(attempt: int, facts: Facts) -> dict[str, int]:
    """The code that the supervisor of each replica reports for this attempt. The replica may have moved on to a later attempt since."""
    reported = [(view, view.report.termination if view.report else None) for view in facts.replicas]
    terminations = (*reported, *((view, view.termination) for view in facts.replicas))
    return {
        view.label: termination.code
        for view, termination in terminations
        if termination and (view.attempt if termination.attempt is None else view.about(termination.attempt)) == attempt
    }
