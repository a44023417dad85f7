"""When do we give up restarting? Each class of failure has a budget of its own; standing still has one whatever the class."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from muster.api.status import ATTEMPTS_KEPT, AttemptRecord, FailureClass, Reason, Restarts, TrainingJobStatus
from muster.lifecycle.situation import Situation

_TIMES_KEPT = 1000
_EXCEEDED = {
    FailureClass.PREEMPTION: Reason.PREEMPTION_LIMIT,
    FailureClass.INFRASTRUCTURE: Reason.INFRASTRUCTURE_LIMIT,
    FailureClass.APPLICATION: Reason.APPLICATION_LIMIT,
}


@dataclass(frozen=True)
class Verdict:
    """The job is given up. `at_once`: whatever later news may say of the attempt."""

    reason: Reason
    message: str
    attempt: int | None = None
    """The failed attempt that it judges; None: a deadline."""
    at_once: bool = False


def verdict(case: Situation, status: TrainingJobStatus, record: AttemptRecord) -> Verdict | None:
    """Whether the job may go on after the failure in `record`, be its restart charged already or not."""
    last = f"{record.replica}: {record.message}" if record.replica else record.message
    if record.reason is Reason.BAD_CONFIGURATION:
        return Verdict(Reason.BAD_CONFIGURATION, last, record.attempt, at_once=True)
    if _repeats(case, status, record):
        return Verdict(Reason.REPEATED_ERROR, f"the same error twice in a row at the same step: {last}", record.attempt)
    if _standing_still(case, status):
        told = f"{status.restarts.without_progress} attempts in a row did no new step; {last}"
        return Verdict(Reason.NO_PROGRESS, told, record.attempt)
    return _over_limit(case, status, record, last=last)


def charge(case: Situation, status: TrainingJobStatus, record: AttemptRecord) -> TrainingJobStatus:
    """The restart after this failure, in the books of its class."""
    assert record.failure_class
    return _book(case, status, record.failure_class, by=1, time=case.stamp)


def move(case: Situation, status: TrainingJobStatus, record: AttemptRecord, *, to: FailureClass) -> TrainingJobStatus:
    """The same restart, put down to another class."""
    assert record.failure_class
    began = status.attempts[-1].start_time
    status = _book(case, status, record.failure_class, by=-1, time=began)
    return _book(case, status, to, by=1, time=began)


def refund(case: Situation, status: TrainingJobStatus, record: AttemptRecord) -> TrainingJobStatus:
    """The restart after this failure, taken out of the books: it was decided and never came to be."""
    assert record.failure_class
    return _book(case, status, record.failure_class, by=-1, time=status.attempts[-1].start_time)


def note_progress(case: Situation, status: TrainingJobStatus, step: int | None, *, ended: datetime | None = None) -> TrainingJobStatus:
    """A step beyond the best clears the count of attempts without progress; an attempt that has `ended` without one adds to it."""
    books = status.restarts
    if step is not None and step > books.best_step:
        changes = {"best_step": step, "without_progress": 0}
    else:
        without_progress = 0 if ended and _lasted(case, status, ended) else books.without_progress + (1 if ended else 0)
        changes = {"without_progress": without_progress}
    return status.model_copy(update={"restarts": books.model_copy(update=changes)})


def _lasted(case: Situation, status: TrainingJobStatus, ended: datetime) -> bool:
    """Whether the attempt of a program that reports no steps ran long enough to be no part of a crash loop."""
    if case.counts_steps(status.restarts.best_step) or status.world is None or status.world.ready_time is None:
        return False
    return ended - status.world.ready_time >= timedelta(seconds=case.policy.lasting_seconds)


def _repeats(case: Situation, status: TrainingJobStatus, record: AttemptRecord) -> bool:
    failures = [other for other in status.attempts if other.failure_class and other.attempt < record.attempt]
    if not failures or record.failure_class is not FailureClass.APPLICATION:
        return False
    known = record.last_step is not None or case.counts_steps(status.restarts.best_step)
    return known and _signature(failures[-1]) == _signature(record)


def _signature(record: AttemptRecord) -> tuple[FailureClass | None, Reason | None, str, int | None]:
    return record.failure_class, record.reason, record.message, record.last_step


def _standing_still(case: Situation, status: TrainingJobStatus) -> bool:
    """A job that never tells its steps cannot be said to stand still."""
    books = status.restarts
    return case.counts_steps(books.best_step) and books.without_progress >= case.spec.recovery.attempts_without_progress


def _over_limit(case: Situation, status: TrainingJobStatus, record: AttemptRecord, *, last: str) -> Verdict | None:
    assert record.failure_class is not None
    assert record.end_time is not None
    limit = _limit(case, record.failure_class)
    charged = 1 if record.attempt < status.attempt else 0
    if limit < 0 or _spent(case, status.restarts, record.failure_class, until=record.end_time) - charged < limit:
        return None
    within = f" within {case.spec.recovery.infrastructure.window_seconds} s" if record.failure_class is FailureClass.INFRASTRUCTURE else ""
    restarts = "restart" if limit == 1 else "restarts"
    return Verdict(
        _EXCEEDED[record.failure_class],
        f"the budget of {limit} {restarts}{within} after failures of class {record.failure_class} is spent; {last}",
        record.attempt,
    )


def _limit(case: Situation, failure_class: FailureClass) -> int:
    recovery = case.spec.recovery
    return {
        FailureClass.PREEMPTION: recovery.preemption.limit,
        FailureClass.INFRASTRUCTURE: recovery.infrastructure.limit,
        FailureClass.APPLICATION: recovery.application.limit,
    }[failure_class]


def _spent(case: Situation, books: Restarts, failure_class: FailureClass, *, until: datetime) -> int:
    if failure_class is FailureClass.INFRASTRUCTURE:
        return len(_within_window(case, books.infrastructure, until=until))
    return books.preemption_count if failure_class is FailureClass.PREEMPTION else books.application_count


def _within_window(case: Situation, times: Iterable[datetime], *, until: datetime) -> list[datetime]:
    window = timedelta(seconds=case.spec.recovery.infrastructure.window_seconds)
    return [time for time in times if time > until - window]


def _book(case: Situation, status: TrainingJobStatus, failure_class: FailureClass, *, by: int, time: datetime) -> TrainingJobStatus:
    name = failure_class.value.lower()
    books = status.restarts
    times: list[datetime] = list(getattr(books, name))
    if by > 0:
        times.append(time)
    elif time in times:
        times.remove(time)
    changes = {
        "total": books.total + by,
        f"{name}_count": getattr(books, f"{name}_count") + by,
        name: _kept(case, failure_class, times),
    }
    return status.model_copy(update={"restarts": books.model_copy(update=changes)})


def _kept(case: Situation, failure_class: FailureClass, times: list[datetime]) -> list[datetime]:
    """Only the window needs times; the other budgets count, and keep a few times for the reader."""
    if failure_class is FailureClass.INFRASTRUCTURE:
        return _within_window(case, times, until=case.stamp)[-_TIMES_KEPT:]
    return times[-ATTEMPTS_KEPT:]
