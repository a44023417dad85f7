"""The records of attempts: how one begins, how it ends, and how later news correct what its end was put down to."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from muster.api.status import ATTEMPTS_KEPT, AttemptRecord, FailureClass, Phase, Reason, TrainingJobStatus
from muster.lifecycle import backoff, budget, failure, hang, in_place, nodes, world
from muster.lifecycle.budget import Verdict
from muster.lifecycle.failure import Cause
from muster.lifecycle.observed import ReplicaView
from muster.lifecycle.records import amend, current, is_open, unsettled
from muster.lifecycle.situation import Situation


def begin(case: Situation, status: TrainingJobStatus) -> TrainingJobStatus:
    """The next attempt: number, record, world, price and back-off in one status, before any of its replicas exists."""
    number = 0 if status.admitted_time is None else status.attempt + 1
    before = current(status)
    failed = before if before and before.failure_class else None
    status = budget.charge(case, status, failed) if failed else status
    record = AttemptRecord(
        attempt=number,
        start_time=case.stamp,
        step_found=status.checkpoint.step if status.checkpoint else None,
    )
    if status.progress and any(role == case.strategy.decisive for role, _ in in_place.spared(case, status)):  # it just goes on
        record = record.model_copy(update={"step_resumed": status.progress.step, "steps_lost": 0})
    return status.model_copy(
        update={
            "attempt": number,
            "admitted_time": status.admitted_time or case.stamp,
            "world": world.planned(case, number, after=status),
            "attempts": [*status.attempts, record][-ATTEMPTS_KEPT:],
            "next_attempt_time": backoff.until(case, status, failed) if failed else None,
        }
    )


def end(case: Situation, status: TrainingJobStatus, reason: Reason, *, message: str = "") -> TrainingJobStatus:
    """The open attempt ends for a reason that is no failure, or for one that ends the job."""
    if not is_open(status):
        return status
    done = last_step(case, status)
    return amend(status, status.attempt, end_time=case.stamp, reason=reason, message=message, settled=True, last_step=done)


def catch_up(case: Situation, status: TrainingJobStatus) -> TrainingJobStatus:
    """A live look shows replicas of attempts that the status has lost (it was wiped, or restored from a backup): go on above them."""
    highest = world.ahead(case, status)
    if highest < 0:
        return status
    status = end(case, status, Reason.REPLICA_LOST, message=f"replicas of attempt {highest} were found")
    return status.model_copy(update={"attempt": highest, "admitted_time": status.admitted_time or case.stamp})


def fail(case: Situation, status: TrainingJobStatus, cause: Cause) -> TrainingJobStatus:
    """The open attempt ends broken. What it was put down to is provisional until it is settled."""
    done = last_step(case, status)
    status = budget.note_progress(case, status, done, ended=cause.time)
    record = current(status)
    node = nodes.of_replica(case.trainers(status.attempt), cause.replica, known=record) if record else None
    return amend(status, status.attempt, end_time=case.stamp, last_step=done, node=node, **_blame(cause))


def correct(case: Situation, status: TrainingJobStatus) -> TrainingJobStatus:
    """What is seen now of the attempt that failed last corrects class, reason and what its restart cost; then it may be settled."""
    record = unsettled(status)
    if record is None:
        return status
    views = case.trainers(record.attempt)
    cause = failure.later_news(case, record)
    assert cause is not None
    cause, stacks = hang.explained(record, cause, case.observed.replicas)
    if cause.failure_class is not record.failure_class and record.attempt < status.attempt:
        status = budget.move(case, status, record, to=cause.failure_class)
        status = backoff.reconsider(case, status, cause.failure_class)
    done = max((step for step in (record.last_step, failure.spoken_step(views)) if step is not None), default=None)
    status = budget.note_progress(case, status, done)
    settled = _is_settled(case, status, record, views)
    node = nodes.of_replica(case.observed.replicas, cause.replica, known=record)
    return amend(status, record.attempt, last_step=done, settled=settled, stacks=stacks, node=node, **_blame(cause))


def heard_out(case: Situation, status: TrainingJobStatus) -> TrainingJobStatus:
    """A world that was asked to go does a step more before it saves: the record of its attempt has the last that it told."""
    record = current(status)
    if record is None or record.attempt != status.attempt or record.end_time is None or record.failure_class is not None:
        return status
    done = max((step for step in (record.last_step, last_step(case, status)) if step is not None), default=None)
    return amend(status, record.attempt, last_step=done)


def given_up(case: Situation, status: TrainingJobStatus, pending: AttemptRecord | None) -> Verdict | None:
    """The verdict on the failure that was still provisional (`pending`), once it is settled; at once where nothing can correct it."""
    record = next((record for record in status.attempts if pending and record.attempt == pending.attempt), None)
    verdict = budget.verdict(case, status, record) if record else None
    return verdict if verdict and record and (record.settled or verdict.at_once) else None


def close(case: Situation, status: TrainingJobStatus, pending: AttemptRecord | None) -> tuple[TrainingJobStatus, Verdict | None]:
    """The attempt after `pending` has ended too, before it had begun to train: what is known of `pending` now is what it stays at."""
    if pending is None or pending.attempt == status.attempt:
        return status, None
    status = amend(status, pending.attempt, settled=True)
    return status, given_up(case, status, pending)


def abandon(case: Situation, status: TrainingJobStatus, verdict: Verdict) -> TrainingJobStatus:
    """The job's bad end. A restart that was decided on a class that did not hold, and so never came to be, is not counted."""
    judged = next((record for record in status.attempts if record.attempt == verdict.attempt), None)
    if judged and judged.attempt < status.attempt:
        status = budget.refund(case, status, judged)
    if judged:
        status = amend(status, judged.attempt, settled=True)
    status = end(case, status, verdict.reason, message=verdict.message)
    ended = {"phase": Phase.FAILED, "completion_time": case.stamp, "next_attempt_time": None, "message": verdict.message}
    return status.model_copy(update=ended)


def last_step(case: Situation, status: TrainingJobStatus) -> int | None:
    """The last step that the current attempt is known to have done."""
    trained = status.progress.step if status.progress and status.world and status.world.first_step_time else None
    steps = (trained, failure.spoken_step(case.trainers(status.attempt)))
    return max((step for step in steps if step is not None), default=None)


def _is_settled(case: Situation, status: TrainingJobStatus, record: AttemptRecord, views: Iterable[ReplicaView]) -> bool:
    return case.now >= _settles(case, record) or _followed(status, record) or (case.observed.live and all(view.over for view in views))


def settles(case: Situation, status: TrainingJobStatus) -> datetime | None:
    """When the failure that is still provisional is taken for what it looks like."""
    record = unsettled(status)
    return _settles(case, record) if record else None


def _settles(case: Situation, record: AttemptRecord) -> datetime:
    assert record.end_time is not None
    return record.end_time + timedelta(seconds=case.policy.settle_seconds)


def _followed(status: TrainingJobStatus, record: AttemptRecord) -> bool:
    """Whether a later world is complete: then every replica of this one is gone, or has moved on and told its end."""
    return status.world is not None and status.world.attempt > record.attempt and status.world.ready_time is not None


def _blame(cause: Cause) -> dict[str, FailureClass | Reason | str | datetime]:
    return {
        "failure_class": cause.failure_class,
        "reason": cause.reason,
        "message": cause.message,
        "replica": cause.replica,
        "failed_time": cause.time,
    }
