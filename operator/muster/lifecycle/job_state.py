"""The state of a job. `state_of` reads it from the status, which is the write-ahead log; all other modules match on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise

from muster.api.status import LIMIT_REASONS, AttemptRecord, ConditionType, Phase, Reason, TrainingJobStatus

SUSPENSIONS = (Reason.SUSPENDED, *LIMIT_REASONS)
"""Why an attempt ends that is suspended by the user or by a limit of use."""


@dataclass(frozen=True)
class Open:
    """An attempt starts or runs."""

    record: AttemptRecord
    provisional: AttemptRecord | None = None
    """The earlier attempt whose failure later reports may still correct. None if there is none."""


@dataclass(frozen=True)
class Provisional:
    """The newest attempt has failed and no other has begun, because later reports may still correct its class."""

    record: AttemptRecord

    @property
    def provisional(self) -> AttemptRecord:
        return self.record


@dataclass(frozen=True)
class Settled:
    """No attempt is open, and the reason for the end of the newest one is final."""

    record: AttemptRecord | None = None
    """The newest attempt. None if there was none yet."""
    provisional: None = None


@dataclass(frozen=True)
class Suspended:
    """No attempt is open, because the user suspended the job, or because its queue has taken the quota back."""

    record: AttemptRecord | None = None
    provisional: AttemptRecord | None = None


@dataclass(frozen=True)
class Ended:
    """The job has succeeded or failed."""

    reason: Reason
    message: str = ""
    provisional: None = None

    @property
    def has_succeeded(self) -> bool:
        return self.reason in (Reason.COMPLETED, Reason.COMPLETED_WITHOUT_REPORT)


State = Open | Provisional | Settled | Suspended | Ended


@dataclass(frozen=True)
class Verdict:
    """The job fails permanently."""

    reason: Reason
    message: str = ""
    """Empty for the deadline of a start, whose message `decide` adds."""
    attempt: int | None = None
    """The number of the failed attempt that caused the verdict. None for a deadline."""
    at_once: bool = False
    """Whether no later report can change the verdict."""


def state_of(status: TrainingJobStatus, *, suspend: bool) -> State:
    """The state of a job with this status. `suspend`: the user, or a limit of use, does not let the job run."""
    if status.phase.final:
        kind = ConditionType.COMPLETE if status.phase is Phase.SUCCEEDED else ConditionType.FAILED
        end = status.condition(kind)
        return Ended(end.reason, end.message) if end else Ended(Reason.COMPLETED, status.message)
    record = newest(status)
    provisional = next((each for each in reversed(status.attempts) if each.failure_class and not each.settled), None)
    if record is not None and record.end_time is None:
        return Open(record, provisional)
    if suspend or (record is not None and record.reason in (*SUSPENSIONS, Reason.EVICTED_BY_QUEUE)):
        return Suspended(record, provisional)
    return Provisional(provisional) if provisional else Settled(record)


def without_contradictions(status: TrainingJobStatus) -> TrainingJobStatus:
    """The status as it is, or without its attempts and world if these contradict each other. Users may write a status.

    The job then goes on as after the loss of its status, with another attempt.
    """
    return status if _is_coherent(status) else replace(status, attempts=(), world=None, next_attempt_time=None)


def _is_coherent(status: TrainingJobStatus) -> bool:
    """Whether the attempts are in order, only the newest is open and has the world, and each provisional failure has an end and a cause."""
    records, world = status.attempts, status.world
    numbers = [record.attempt for record in records]
    if any(one >= next_one for one, next_one in pairwise((*numbers, status.attempt + 1))):
        return False
    if any(record.end_time is None for record in records[:-1]):
        return False
    provisional = (record for record in records if record.failure_class and not record.settled)
    if any(record.end_time is None or record.failed_time is None or record.reason is None for record in provisional):
        return False
    has_world = world is not None and world.attempt == status.attempt
    is_newest = bool(numbers) and numbers[-1] == status.attempt
    if has_world or is_open(status):
        return is_newest and (has_world or not is_open(status))
    return world is None or world.attempt < status.attempt


def newest(status: TrainingJobStatus) -> AttemptRecord | None:
    """The record of the newest attempt."""
    return status.attempts[-1] if status.attempts else None


def record_of(status: TrainingJobStatus, attempt: int) -> AttemptRecord | None:
    return next((record for record in status.attempts if record.attempt == attempt), None)


def record_before(status: TrainingJobStatus) -> AttemptRecord | None:
    """The record before the newest."""
    return status.attempts[-2] if len(status.attempts) > 1 else None


def is_open(status: TrainingJobStatus) -> bool:
    """Whether an attempt starts or runs."""
    record = newest(status)
    return record is not None and record.end_time is None


def newest_ended(status: TrainingJobStatus) -> AttemptRecord | None:
    """The record of the newest attempt that has ended."""
    return record_before(status) if is_open(status) else newest(status)


def is_backing_off(status: TrainingJobStatus, now: datetime) -> bool:
    """Whether the back-off before the newest attempt still lasts."""
    return status.next_attempt_time is not None and now < status.next_attempt_time


def has_failed_without_successor(status: TrainingJobStatus) -> bool:
    """Whether the newest attempt has failed and no other has begun."""
    record = newest(status)
    return record is not None and record.end_time is not None and record.failure_class is not None


def last_failure(status: TrainingJobStatus) -> AttemptRecord | None:
    """The failure that the job is recovering from: that of the newest attempt, or of the one before it."""
    return next((record for record in reversed(status.attempts[-2:]) if record.failure_class), None)


def with_record(status: TrainingJobStatus, record: AttemptRecord) -> TrainingJobStatus:
    """The status with this record in place of the one with the same number."""
    return replace(status, attempts=tuple(record if each.attempt == record.attempt else each for each in status.attempts))
