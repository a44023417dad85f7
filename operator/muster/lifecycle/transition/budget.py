"""When Muster stops restarting a job, and how long it waits before a restart.

Each class of failure has a budget. Attempts without progress have a further budget, whatever the class. The back-off depends on the class
of the failure, and doubles without progress. A node that had announced its end costs no budget when it takes a replica away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from muster.api.status import MAX_ATTEMPT_RECORDS, AttemptRecord, FailureClass, Reason, Restarts, TrainingJobStatus
from muster.api.times import milliseconds
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.facts.same_error import same_error, same_step
from muster.lifecycle.job_state import Verdict

_MOST_TIMES = 1000
_EXCEEDED = {
    FailureClass.PREEMPTION: Reason.PREEMPTION_LIMIT,
    FailureClass.INFRASTRUCTURE: Reason.INFRASTRUCTURE_LIMIT,
    FailureClass.APPLICATION: Reason.APPLICATION_LIMIT,
}


_NEVER_RETRIED = frozenset({Reason.BAD_CONFIGURATION, Reason.INPUT_REFUSED, Reason.INPUT_NOT_FOUND, Reason.INPUT_FORBIDDEN})


def verdict(status: TrainingJobStatus, facts: Facts, record: AttemptRecord) -> Verdict | None:
    """Whether the job fails permanently for this failure. The restart may be charged already."""
    last = f"{record.replica}: {record.message}" if record.replica else record.message
    if record.reason in _NEVER_RETRIED:
        return Verdict(record.reason, last, record.attempt, at_once=True)
    if _is_repeated(status, facts, record):
        where = "" if record.last_step is None else " at the same step"
        return Verdict(Reason.REPEATED_ERROR, f"your code failed with the same error twice in a row{where}: {last}", record.attempt)
    if _is_without_progress(status, facts):
        message = f"{status.restarts.without_progress} attempts in a row made no new step. {last}"
        return Verdict(Reason.NO_PROGRESS, message, record.attempt)
    return _over_limit(status, facts, record, last=last)


def charged_class(record: AttemptRecord) -> FailureClass | None:
    """The class whose budget the restart after this failure is charged to. None if there is no charge."""
    was_taken = record.failure_class is FailureClass.PREEMPTION or record.reason is Reason.NODE_LOST
    was_announced = was_taken and record.announced_nodes
    return None if was_announced else record.failure_class


def with_charge(status: TrainingJobStatus, facts: Facts, record: AttemptRecord) -> TrainingJobStatus:
    """The charge for the restart after this failure, which begins now."""
    return _counted_restart(status, facts, charged_class(record), by=1, time=facts.stamp)


def with_charge_moved(status: TrainingJobStatus, facts: Facts, record: AttemptRecord, *, to: AttemptRecord) -> TrainingJobStatus:
    """The charge for this restart after the correction of the record, which is `to` now."""
    if charged_class(record) is charged_class(to):
        return status
    began = status.attempts[-1].start_time
    return _counted_restart(with_refund(status, facts, record), facts, charged_class(to), by=1, time=began)


def with_refund(status: TrainingJobStatus, facts: Facts, record: AttemptRecord) -> TrainingJobStatus:
    """Removes the charge for the restart after this failure."""
    return _counted_restart(status, facts, charged_class(record), by=-1, time=status.attempts[-1].start_time)


def with_progress(status: TrainingJobStatus, facts: Facts, step: int | None, *, ended: datetime | None = None) -> TrainingJobStatus:
    """Resets the count of attempts without progress if `step` is higher than the best one. If not, an attempt that has `ended` adds to
    it."""
    counts = status.restarts
    if step is not None and step > counts.best_step:
        return replace(status, restarts=replace(counts, best_step=step, without_progress=0))
    if ended is None:
        return status
    without_progress = 0 if _lasted(status, facts, ended) else counts.without_progress + 1
    return replace(status, restarts=replace(counts, without_progress=without_progress))


def _lasted(status: TrainingJobStatus, facts: Facts, ended: datetime) -> bool:
    """Whether the attempt of a program that reports no steps ran long enough to be no part of a crash loop."""
    if facts.counts_steps(status) or status.world is None or status.world.ready_time is None:
        return False
    return ended - status.world.ready_time >= timedelta(seconds=facts.policy.lasting_seconds)


def _is_repeated(status: TrainingJobStatus, facts: Facts, record: AttemptRecord) -> bool:
    failures = [other for other in status.attempts if other.failure_class and other.attempt < record.attempt]
    if not failures or record.failure_class is not FailureClass.APPLICATION:
        return False
    counts = (
        record.last_step is not None or facts.counts_steps(status) or (facts.policy.repeats_without_steps and _was_short(record, facts))
    )
    last = failures[-1]
    is_same = _signature(last) == _signature(record) and same_error(last.message, record.message)
    return counts and is_same and same_step(last.last_step, record.last_step, record.message)


def _was_short(record: AttemptRecord, facts: Facts) -> bool:
    return record.end_time is not None and record.end_time - record.start_time < timedelta(seconds=facts.policy.lasting_seconds)


def _signature(record: AttemptRecord) -> tuple[FailureClass | None, Reason | None]:
    return record.failure_class, record.reason


def _is_without_progress(status: TrainingJobStatus, facts: Facts) -> bool:
    """Whether too many attempts in a row did no new step. Applies only to programs that report their steps."""
    return facts.counts_steps(status) and status.restarts.without_progress >= facts.spec.recovery.attempts_without_progress


def _over_limit(status: TrainingJobStatus, facts: Facts, record: AttemptRecord, *, last: str) -> Verdict | None:
    assert record.end_time is not None
    failure_class = charged_class(record)
    if failure_class is None:
        return None
    limit = _limit(facts, failure_class)
    charged = _charged_before(status, facts, record, failure_class, until=record.end_time)
    if limit < 0 or charged < limit:
        return None
    window = facts.spec.recovery.infrastructure.window_seconds
    within = f" within {window} s" if failure_class is FailureClass.INFRASTRUCTURE else ""
    restarts = "restart" if limit == 1 else "restarts"
    times = "once" if charged == 0 else f"{charged + 1} times"
    message = f"{_HAPPENED[failure_class]} {times}{within} (limit: {limit} {restarts}). {last}"
    return Verdict(_EXCEEDED[failure_class], message, record.attempt)


_HAPPENED = {
    FailureClass.PREEMPTION: "the job was preempted",
    FailureClass.INFRASTRUCTURE: "the infrastructure failed",
    FailureClass.APPLICATION: "your code failed",
}


def _limit(facts: Facts, failure_class: FailureClass) -> int:
    recovery = facts.spec.recovery
    return {
        FailureClass.PREEMPTION: recovery.preemption.limit,
        FailureClass.INFRASTRUCTURE: recovery.infrastructure.limit,
        FailureClass.APPLICATION: recovery.application.limit,
    }[failure_class]


def _charged_before(status: TrainingJobStatus, facts: Facts, record: AttemptRecord, failure_class: FailureClass, *, until: datetime) -> int:
    """The restarts of the class, without the one that follows this failure. That restart is charged when the next attempt begins."""
    charged = 1 if record.attempt < status.attempt else 0
    if failure_class is FailureClass.INFRASTRUCTURE:
        return len(_within_window(facts, status.restarts.infrastructure, until=until)) - charged
    counts = status.restarts
    return (counts.preemption_count if failure_class is FailureClass.PREEMPTION else counts.application_count) - charged


def _within_window(facts: Facts, times: Sequence[datetime], *, until: datetime) -> tuple[datetime, ...]:
    window = timedelta(seconds=facts.spec.recovery.infrastructure.window_seconds)
    return tuple(time for time in times if time > until - window)


def _counted_restart(
    status: TrainingJobStatus, facts: Facts, failure_class: FailureClass | None, *, by: int, time: datetime
) -> TrainingJobStatus:
    """Counts a restart. The infrastructure budget needs all times within its window. The other classes keep a few times for users."""
    if failure_class is None:
        return status
    old = status.restarts
    new: Restarts
    match failure_class:
        case FailureClass.PREEMPTION:
            times = _changed(old.preemption, time, by=by)[-MAX_ATTEMPT_RECORDS:]
            new = replace(old, preemption=times, preemption_count=_counted(old.preemption_count, by))
        case FailureClass.APPLICATION:
            times = _changed(old.application, time, by=by)[-MAX_ATTEMPT_RECORDS:]
            new = replace(old, application=times, application_count=_counted(old.application_count, by))
        case FailureClass.INFRASTRUCTURE:
            times = _within_window(facts, _changed(old.infrastructure, time, by=by), until=facts.stamp)[-_MOST_TIMES:]
            new = replace(old, infrastructure=times, infrastructure_count=_counted(old.infrastructure_count, by))
    return replace(status, restarts=replace(new, total=_counted(old.total, by)))


def _counted(count: int, by: int) -> int:
    """The count after the change. It is never negative, although users may have written a status with fewer restarts."""
    return max(0, count + by)


def _changed(times: tuple[datetime, ...], time: datetime, *, by: int) -> tuple[datetime, ...]:
    if by > 0:
        return (*times, time)
    index = times.index(time) if time in times else len(times)
    return (*times[:index], *times[index + 1 :])


def delay(status: TrainingJobStatus, facts: Facts, failure_class: FailureClass) -> float:
    """Seconds until the next attempt. A failure after progress is the first failure in a row."""
    return facts.policy.pace * facts.policy.delays[failure_class].after(max(status.restarts.without_progress, 1))


def start_time(status: TrainingJobStatus, facts: Facts, failed: AttemptRecord) -> datetime | None:
    """When the attempt that this decision begins may start. None: at once."""
    assert failed.failure_class
    return _after(facts.stamp, delay(status, facts, failed.failure_class))


def with_start_time(status: TrainingJobStatus, facts: Facts, failure_class: FailureClass) -> TrainingJobStatus:
    """The status with the back-off for this class of the failure before the current attempt."""
    began = status.attempts[-1].start_time
    return replace(status, next_attempt_time=_after(began, delay(status, facts, failure_class)))


def _after(start: datetime, seconds: float) -> datetime | None:
    return milliseconds(start + timedelta(seconds=seconds)) if seconds > 0 else None
