"""Reading and changing the list of attempts in a status."""

from __future__ import annotations

from muster.api.status import AttemptRecord, TrainingJobStatus


def current(status: TrainingJobStatus) -> AttemptRecord | None:
    """The newest attempt's record, if there ever was one."""
    return status.attempts[-1] if status.attempts else None


def is_open(status: TrainingJobStatus) -> bool:
    """Whether there is an attempt that has not ended."""
    record = current(status)
    return record is not None and record.end_time is None


def unsettled(status: TrainingJobStatus) -> AttemptRecord | None:
    """The failed attempt whose class is still provisional; there is at most one (see `attempts.close`)."""
    return next((record for record in reversed(status.attempts) if record.failure_class and not record.settled), None)


def before(status: TrainingJobStatus) -> AttemptRecord | None:
    """The record before the newest."""
    return status.attempts[-2] if len(status.attempts) > 1 else None


def ended(status: TrainingJobStatus) -> AttemptRecord | None:
    """The record of the newest attempt that has ended."""
    return before(status) if is_open(status) else current(status)


def awaits_verdict(status: TrainingJobStatus) -> bool:
    """Whether the newest attempt has failed and no other follows it so far."""
    record = current(status)
    return record is not None and record.end_time is not None and record.failure_class is not None


def amend(status: TrainingJobStatus, number: int, **changes: object) -> TrainingJobStatus:
    """The status with one record changed."""
    records = [record.model_copy(update=changes) if record.attempt == number else record for record in status.attempts]
    return status.model_copy(update={"attempts": records})


def last_failure(status: TrainingJobStatus) -> AttemptRecord | None:
    """The failure that the job is recovering from: of the newest attempt, or of the one before it."""
    return next((record for record in reversed(status.attempts[-2:]) if record.failure_class), None)
