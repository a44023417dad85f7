"""How long before the next attempt? By class, doubling while nothing is gained."""

from __future__ import annotations

from datetime import datetime, timedelta

from muster.api.status import AttemptRecord, FailureClass, TrainingJobStatus
from muster.lifecycle.situation import Situation, milliseconds


def delay(case: Situation, status: TrainingJobStatus, failure_class: FailureClass) -> float:
    """Seconds to hold back the next attempt. What fails after progress is the first failure in a row."""
    return case.policy.pace * case.policy.delays[failure_class].after(max(status.restarts.without_progress, 1))


def until(case: Situation, status: TrainingJobStatus, failed: AttemptRecord) -> datetime | None:
    """When the attempt that is decided now may start; None: at once."""
    assert failed.failure_class
    return _after(case.stamp, delay(case, status, failed.failure_class))


def reconsider(case: Situation, status: TrainingJobStatus, failure_class: FailureClass) -> TrainingJobStatus:
    """The same, when the failure before turns out to be of another class."""
    began = status.attempts[-1].start_time
    return status.model_copy(update={"next_attempt_time": _after(began, delay(case, status, failure_class))})


def held(case: Situation, status: TrainingJobStatus) -> bool:
    return status.next_attempt_time is not None and case.now < status.next_attempt_time


def _after(start: datetime, seconds: float) -> datetime | None:
    return milliseconds(start + timedelta(seconds=seconds)) if seconds > 0 else None
