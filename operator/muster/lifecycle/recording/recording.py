"""Records in the status what the replicas of the current attempt show and report. Decides nothing."""

from __future__ import annotations

from dataclasses import replace

from muster.api.status import Reason, TrainingJobStatus
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.facts.failure import last_terminated_step
from muster.lifecycle.job_state import is_open, newest, with_record
from muster.lifecycle.recording.grace import with_short_grace_of_open_attempt
from muster.lifecycle.recording.inputs import with_inputs
from muster.lifecycle.recording.members import with_members
from muster.lifecycle.recording.progress import with_progress
from muster.lifecycle.recording.ranks import with_stragglers


def with_reports(status: TrainingJobStatus, facts: Facts) -> TrainingJobStatus:
    """The status with everything that the replicas show and report now."""
    status = with_lost_attempts(status, facts)
    status = with_members(status, facts)
    status = with_inputs(status, facts)
    status = with_progress(status, facts)
    status = with_late_last_step(status, facts)
    status = with_stragglers(status, facts)
    return with_short_grace_of_open_attempt(status, facts)


def with_lost_attempts(status: TrainingJobStatus, facts: Facts) -> TrainingJobStatus:
    """If replicas show attempts that the status has lost, the job continues after the highest of them."""
    highest = facts.attempt_ahead(status)
    if highest is None:
        return status
    status = replace(status, attempts=tuple(replace(record, settled=True) for record in status.attempts))
    record = newest(status)
    if record is not None and is_open(status):
        message = f"replicas of attempt {highest} exist, of which the status has no record"
        done = last_step(status, facts)
        ended = replace(record, end_time=facts.stamp, reason=Reason.REPLICA_LOST, message=message, last_step=done)
        status = with_record(status, ended)
    return replace(status, attempt=highest, admitted_time=status.admitted_time or facts.stamp)


def with_late_last_step(status: TrainingJobStatus, facts: Facts) -> TrainingJobStatus:
    """The status with a late last step. A world does one more step between a request to stop and its save."""
    record = newest(status)
    if record is None or record.attempt != status.attempt or record.end_time is None or record.failure_class is not None:
        return status
    return with_record(status, replace(record, last_step=later(record.last_step, last_step(status, facts))))


def last_step(status: TrainingJobStatus, facts: Facts) -> int | None:
    """The last step of the current attempt that was reported."""
    trained = status.progress.step if status.progress and status.world and status.world.first_step_time else None
    return later(trained, last_terminated_step(facts.trainers(status.attempt)))


def later(one: int | None, other: int | None) -> int | None:
    """The later of two steps. None if neither is set."""
    return max((step for step in (one, other) if step is not None), default=None)
