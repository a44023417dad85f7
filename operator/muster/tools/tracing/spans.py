"""The trace of a job: the spans that a change of its status finishes. Pure.

All ids follow from the uid of the job. So a restarted operator, or another leader, continues the same trace. The status records what has
happened, and is written before the spans are sent. So no span is sent twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from muster.api.job import TrainingJob
from muster.api.status import AttemptRecord, ConditionType, Phase, Phases, TrainingJobStatus
from muster.api.times import reported_time
from muster.lifecycle.changes import AttemptChange, attempt_changes
from muster.lifecycle.facts.failure import termination_of
from muster.lifecycle.job_state import SUSPENSIONS
from muster.lifecycle.observed import Observed
from muster_contract.text import printable

JOB = "job"
QUEUED = "queued"
SUSPENDED = "suspended"
ATTEMPT = "attempt"
RECOVERY = "recovery"
SAVE = "save"
EVALUATION = "evaluation"
PHASES = {
    "detect_seconds": "detect",
    "schedule_seconds": "schedule",
    "start_seconds": "start",
    "load_seconds": "load",
    "first_step_seconds": "firstStep",
}
"""The name of the span of each field of `Phases`."""

_LONGEST_TEXT = 256

Value = str | int | float


@dataclass(frozen=True)
class JobSpan:
    """A finished span. `key` distinguishes it from the others of its trace, and `parent` is the key of its parent."""

    name: str
    key: str
    parent: str | None
    begin: datetime
    end: datetime
    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str | None = None
    """The error. Empty if there was none."""


def trace_id(uid: str) -> int:
    """The id of the job's trace."""
    return _id(uid, size=16)


def span_id(uid: str, key: str) -> int:
    """The id of the span with this key."""
    return _id(f"{uid}/{key}", size=8)


def traceparent(uid: str) -> str:
    """The job's own span as the parent of others, in the form of W3C Trace Context."""
    return f"00-{trace_id(uid):032x}-{span_id(uid, JOB):016x}-01"


def _id(text: str, *, size: int) -> int:
    digest = hashlib.sha256(f"muster.dev/trace/{text}".encode()).digest()
    return int.from_bytes(digest[:size]) or 1  # an id of zeros is invalid


def spans_between(job: TrainingJob, new: TrainingJobStatus, observed: Observed, now: datetime) -> Iterator[JobSpan]:
    """The spans that are finished by the change from the job's status to the new one. `observed` is what the change is based on. Its
    reports have the exact times of saves and evaluations.

    With any status, all spans lie between the creation of the job and `now`. If one could not be encoded, the spans that are sent
    with it would be lost.
    """
    created = job.metadata.creation_timestamp
    if created is None or job.status.phase.final:
        return
    for span in _finished(job, new, observed, created=created, now=now):
        begin, end = (min(max(moment, created), now) for moment in (span.begin, span.end))
        yield replace(span, begin=begin, end=max(begin, end))


def _finished(job: TrainingJob, new: TrainingJobStatus, observed: Observed, *, created: datetime, now: datetime) -> Iterator[JobSpan]:
    old = job.status
    yield from _queued(old, new, created, now)
    for change in attempt_changes(old, new):
        yield from _of_attempt(change, old, new)
    yield from _save(old, new, observed, now)
    yield from _evaluation(old, new, observed, now)
    if new.phase.final:
        yield _job(new, created, now)


def job_attributes(job: TrainingJob) -> dict[str, Value]:
    """The attributes of every span of the job."""
    return {
        "k8s.namespace.name": _text(job.metadata.namespace),
        "muster.job.name": _text(job.metadata.name),
        "muster.job.uid": _text(job.metadata.uid),
        "muster.job.strategy": _text(job.spec.strategy),
    }


def _job(new: TrainingJobStatus, created: datetime, now: datetime) -> JobSpan:
    failed = new.condition(ConditionType.FAILED) if new.phase is Phase.FAILED else None
    attributes = _present(
        {
            "muster.job.phase": new.phase.value,
            "muster.restarts": new.restarts.total,
            "muster.step": new.progress.step if new.progress else None,
            "muster.goodput": new.goodput.ratio if new.goodput else None,
            "error.type": failed.reason.value if failed else None,
        }
    )
    return JobSpan(JOB, JOB, None, created, new.completion_time or now, attributes, _text(failed.message) if failed else None)


def _queued(old: TrainingJobStatus, new: TrainingJobStatus, created: datetime, now: datetime) -> Iterator[JobSpan]:
    if old.start_time is None and (new.start_time or new.phase.final):
        yield JobSpan(QUEUED, QUEUED, JOB, created, new.start_time or new.completion_time or now)


def _of_attempt(change: AttemptChange, old: TrainingJobStatus, new: TrainingJobStatus) -> Iterator[JobSpan]:
    record, previous = change.record, change.previous
    if change.old is None and previous and previous.end_time and previous.reason in SUSPENSIONS:
        yield JobSpan(SUSPENDED, f"{SUSPENDED} {record.attempt}", JOB, previous.end_time, record.start_time)
    was_over = change.old is not None and _is_over(change.old, old)
    is_over = _is_over(record, new)
    had_all = change.old is not None and _has_all(change.old.phases)
    if not was_over and not had_all and (is_over or _has_all(record.phases)):
        yield from _phases(record, previous)
    if is_over and not was_over:
        yield _attempt(record)


def _is_over(record: AttemptRecord, status: TrainingJobStatus) -> bool:
    """Whether the attempt has ended and nothing will change its cause."""
    return record.end_time is not None and (record.settled or status.phase.final)


def _has_all(phases: Phases | None) -> bool:
    return phases is not None and phases.first_step_seconds is not None


def _attempt(record: AttemptRecord) -> JobSpan:
    failed = record.failure_class is not None
    reason = record.reason.value if record.reason else None
    attributes = _present(
        {
            "muster.attempt": record.attempt,
            "muster.attempt.reason": reason,
            "muster.failure.class": record.failure_class.value if record.failure_class else None,
            "muster.failure.replica": _text(record.replica) if record.replica else None,
            "k8s.node.name": _text(record.node) if record.node else None,
            "muster.step.resumed": record.step_resumed,
            "muster.step.last": record.last_step,
            "error.type": reason if failed else None,
        }
    )
    error = _text(record.message or reason or "") if failed else None
    return JobSpan(ATTEMPT, _attempt_key(record.attempt), JOB, record.start_time, record.end_time or record.start_time, attributes, error)


def _phases(record: AttemptRecord, previous: AttemptRecord | None) -> Iterator[JobSpan]:
    """The phases of the attempt's start, one after the other. If it follows a failure, they are parts of the recovery from it."""
    if record.phases is None:
        return
    failed = previous if previous and previous.failure_class else None
    begin = min(record.start_time, (failed and (failed.failed_time or failed.end_time)) or record.start_time)
    attempt: dict[str, Value] = {"muster.attempt": record.attempt}
    parent = _attempt_key(record.attempt)
    if failed is not None and failed.failure_class is not None:
        parent = f"{RECOVERY} {record.attempt}"
        attributes = {
            **attempt,
            "muster.failure.class": failed.failure_class.value,
            **_present({"muster.step.resumed": record.step_resumed, "muster.steps.lost": record.steps_lost}),
        }
        yield JobSpan(RECOVERY, parent, JOB, begin, begin + timedelta(seconds=record.phases.total_seconds), attributes)
    for name, seconds in record.phases.measured.items():
        end = begin + timedelta(seconds=seconds)
        if end > begin:
            yield JobSpan(PHASES[name], f"{PHASES[name]} {record.attempt}", parent, begin, end, attempt)
        begin = end


def _save(old: TrainingJobStatus, new: TrainingJobStatus, observed: Observed, now: datetime) -> Iterator[JobSpan]:
    """The newest commit, unless it is one of an earlier job, which this job has resumed from."""
    commit, before = new.checkpoint, old.checkpoint
    if commit is None or commit.verified or (before is not None and commit.step <= before.step):
        return
    reported = [view.report.checkpoint for view in observed.replicas if view.report and view.report.checkpoint]
    reported += [termination.commit for termination in map(termination_of, observed.replicas) if termination and termination.commit]
    times = [each.time for each in reported if each.step == commit.step and each.time]
    attributes = _present({"muster.step": commit.step, "muster.save.blocked_seconds": commit.blocked_seconds})
    end = min(now, reported_time(max(times, default=None), fallback=commit.committed_at))
    yield _within_attempt(SAVE, str(commit.step), old, end=end, seconds=commit.seconds, attributes=attributes)


def _evaluation(old: TrainingJobStatus, new: TrainingJobStatus, observed: Observed, now: datetime) -> Iterator[JobSpan]:
    """The newest evaluation, if its results are new. A termination message may have only some of the results that were reported before."""
    metrics = (new.progress and new.progress.metrics) or {}
    before = (old.progress and old.progress.metrics) or {}
    if metrics.items() <= before.items():
        return
    reported = [view.report.evaluation for view in observed.replicas if view.report and view.report.evaluation]
    reported += [termination.evaluation for termination in map(termination_of, observed.replicas) if termination and termination.evaluation]
    newest = max(reported, key=lambda each: each.step, default=None)
    if newest is None:
        return
    end = min(now, reported_time(newest.time or None, fallback=now))
    mark = f"{newest.step} {sorted(metrics.items())}"
    yield _within_attempt(EVALUATION, mark, old, end=end, seconds=newest.seconds, attributes={"muster.step": newest.step})


def _within_attempt(
    name: str, mark: str, old: TrainingJobStatus, *, end: datetime, seconds: float | None, attributes: Mapping[str, Value]
) -> JobSpan:
    """A span of the attempt that was open. It does not begin before the attempt, even if the clocks of the processes differ."""
    record = old.attempts[-1] if old.attempts else None
    earliest = record.start_time if record else end
    end = max(end, earliest)
    begin = max(earliest, end - timedelta(seconds=seconds or 0.0))
    return JobSpan(
        name, f"{name} {old.attempt} {mark}", _attempt_key(old.attempt), begin, end, {"muster.attempt": old.attempt, **attributes}
    )


def _attempt_key(attempt: int) -> str:
    return f"{ATTEMPT} {attempt}"


def _present(attributes: Mapping[str, Value | None]) -> dict[str, Value]:
    return {name: value for name, value in attributes.items() if value is not None}


def _text(text: str) -> str:
    return printable(text, most=_LONGEST_TEXT)
