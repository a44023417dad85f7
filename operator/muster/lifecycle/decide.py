"""The life of a job. `decide` makes one pass over a job, and `LIFE` has the moves between its states.

A job is in one of five states, which `state_of` reads from its status (`job_state.py`):

    Settled      no attempt is open; so is a new job
    Open         an attempt starts or runs
    Provisional  the newest attempt has failed, and later reports may still correct the cause
    Suspended    no attempt is open, because the user or the queue does not let the job run
    Ended        the job has succeeded or failed

A pass has these stages:

    1. facts       what is true now: the attempt of each pod, how replicas ended, what their supervisors report
    2. recording   writes down in the status what must outlive the pods: steps, commits, slow ranks
    3. LIFE        moves the job to its next state
    4. transition  `transition/pods.py` gives the pods to create and to delete in that state
    5. present     derives what users read: phase, conditions, counts, message
    6. wake        says when to make the next pass if nothing happens before

The package `transition` has a module for each subject, such as the budget or the deadlines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Generic, TypeVar

from muster.api.constants import ORPHAN_FINALIZER
from muster.api.job import TrainingJob
from muster.api.problems import Problem
from muster.api.status import AttemptRecord, Reason, TrainingJobStatus
from muster.lifecycle.actions import Action, Decision, LookLive, deletion, shortening
from muster.lifecycle.facts import capacity, node_notices
from muster.lifecycle.facts.facts import Facts, read
from muster.lifecycle.facts.failure import Cause, cause_of_break
from muster.lifecycle.facts.hang import cause_of_hang
from muster.lifecycle.facts.limits import Limit
from muster.lifecycle.job_state import Ended, Open, Provisional, Settled, State, Suspended, Verdict, is_backing_off, state_of
from muster.lifecycle.observed import Observed, QuotaView
from muster.lifecycle.policy import DEFAULT_POLICY, Policy
from muster.lifecycle.present.goodput import counted_until, with_goodput
from muster.lifecycle.present.message import relocation_sentence, scaling_sentence, startup_sentence
from muster.lifecycle.present.notice_counts import with_notice_counts
from muster.lifecycle.present.present import is_write_postponed, next_write_time, present
from muster.lifecycle.present.usage import with_usage
from muster.lifecycle.present.waiting import requeue_sentence
from muster.lifecycle.recording.grace import with_grace_of_ended_attempts
from muster.lifecycle.recording.members import has_succeeded
from muster.lifecycle.recording.progress import with_progress
from muster.lifecycle.recording.recording import with_late_last_step, with_reports
from muster.lifecycle.transition import attempts, avoided_nodes, budget, deadline, elastic, moving, replacing, requeueing
from muster.lifecycle.transition.pods import actions
from muster.lifecycle.wake import wake_time

Found = TypeVar("Found")
Moved = tuple[TrainingJobStatus, Ended | None]
"""A status, and the end of the job if it has ended."""


def decide(
    job: TrainingJob, observed: Observed, now: datetime, *, problems: Sequence[Problem] = (), policy: Policy = DEFAULT_POLICY
) -> Decision:
    """The status that the job should have, and the actions to carry out. The function is pure and reaches a fixpoint: after the status is
    written and the actions are carried out, the next call returns the same status and no action, unless something else has happened.

    `observed` holds only replicas of this job, selected by its uid. `problems` are the reasons for which admission rejects the spec. Muster
    creates nothing for such a job, and its running replicas go on. docs/architecture/operator.md, "Writes", lists the duties of the caller.
    """
    old = job.status
    if job.spec.managed_by != policy.controller:
        return Decision(old)
    if job.metadata.deletion_timestamp is not None:
        return Decision(old, _of_deleted_job(job, observed, now))
    facts = read(job, observed, now, problems=problems, policy=policy)
    if must_look_live(old, facts):
        return Decision(old, (LookLive(),))
    status, state = next_state(old, facts)
    facts = facts.in_world_of(status)  # a new world may have taken replicas over
    to_do = actions(status, state, facts)
    status = present(status, state, facts)
    # The replicas of an ended job report for a short time only, so nothing is postponed.
    postponed = not isinstance(state, Ended) and is_write_postponed(old, status, facts)
    wake = wake_time(old, status, state, facts=facts, next_write=next_write_time(facts) if postponed else None)
    return Decision(old if postponed else _counted(old, status, facts), to_do, wake)


def _counted(old: TrainingJobStatus, new: TrainingJobStatus, facts: Facts) -> TrainingJobStatus:
    """The status to write, with the counts of time, devices and notices up to now."""
    status = with_usage(old, with_goodput(old, new, facts), facts)
    return status if status == old else with_notice_counts(old, status, facts)


def must_look_live(status: TrainingJobStatus, facts: Facts) -> bool:
    """Whether a cached observation contradicts the status. Only a live observation can show whether the replicas have really changed."""
    state = _state(status, facts)
    if facts.live or isinstance(state, Ended):
        return False
    if (
        facts.attempt_ahead(status) is not None
        or elastic.due_resize(status, facts)
        or requeueing.due(status, facts)
        or moving.due(status, facts)
    ):
        return True
    return isinstance(state, Open) and bool(facts.missing_members(status))


def next_state(status: TrainingJobStatus, facts: Facts) -> tuple[TrainingJobStatus, State]:
    """Records what the replicas show, then makes each move of `LIFE` that is due, in their order."""
    status, state = replacing.with_orphaned(status, facts), _state(status, facts)
    if isinstance(state, Ended):
        # A world that a deadline ends saves in its grace period. Its commit and its last step come after the end of the job.
        return with_late_last_step(with_progress(status, facts), facts), state
    facts = facts.in_world_of(status)
    status = capacity.with_capacity(node_notices.with_notices(with_reports(status, facts), facts), facts)
    for move in LIFE:
        found = move.condition(status, facts) if isinstance(_state(status, facts), move.sources) else None
        status, ended = move.end(status, facts, found) if found else (status, None)
        if ended is not None:
            return replace(status, completion_time=facts.stamp, next_attempt_time=None), ended
    status = with_grace_of_ended_attempts(status, facts)
    status = replace(status, avoided_nodes=avoided_nodes.avoided(status, facts))
    return status, _state(status, facts)


@dataclass(frozen=True)
class Move(Generic[Found]):
    """A move of a job from one state to another."""

    sources: tuple[type[State], ...]
    when: str
    """The condition, in words."""
    condition: Callable[[TrainingJobStatus, Facts], Found | None]
    """What shows that the move is due; None or False if it is not."""
    end: Callable[[TrainingJobStatus, Facts, Found], Moved]
    """Makes the move."""
    target: type[State]


def _completed(status: TrainingJobStatus, facts: Facts, _: bool) -> Moved:
    """Ends a job that has succeeded. If the program reported nothing, only its exit code is known."""
    status = attempts.with_end(status, facts, Reason.COMPLETED)
    if facts.counts_steps(status) or status.progress is not None or status.checkpoint is not None:
        return status, Ended(Reason.COMPLETED, "the training has finished")
    message = "the program ended with exit code 0, and reported no step and no checkpoint"
    return status, Ended(Reason.COMPLETED_WITHOUT_REPORT, message)


def _unsettled(status: TrainingJobStatus, facts: Facts) -> AttemptRecord | None:
    """The failure that is still provisional."""
    return _state(status, facts).provisional


def _reviewed(status: TrainingJobStatus, facts: Facts, record: AttemptRecord) -> Moved:
    """Corrects a provisional failure, and settles it if its cause is final. Then the job fails if the failure is over a limit."""
    status = attempts.with_correction(status, facts, record)
    before = facts.job.status.world
    if before is not None and before.ready_time is None and status.world is not None and is_backing_off(status, facts.now):
        # The report that completes the world also has the cause of the failure before, and that cause needs a back-off.
        status = replace(status, world=replace(status.world, ready_time=None))
    return _ended(status, facts, attempts.verdict(status, facts, attempt=record.attempt))


def _ended(status: TrainingJobStatus, facts: Facts, verdict: Verdict | None) -> Moved:
    """Ends the job with this verdict, if there is one."""
    if verdict is None:
        return status, None
    status = with_grace_of_ended_attempts(status, facts)
    if verdict.reason is Reason.STARTUP_DEADLINE:
        status, verdict = deadline.with_awaited(status, facts), replace(verdict, message=startup_sentence(status, facts))
    return attempts.with_permanent_failure(status, facts, verdict), Ended(verdict.reason, verdict.message)


def _is_suspended(_: TrainingJobStatus, facts: Facts) -> bool:
    return facts.spec.suspend


def _limit_that_suspends(_: TrainingJobStatus, facts: Facts) -> Limit | None:
    return facts.reached_limit if facts.suspends else None


def _held(status: TrainingJobStatus, facts: Facts, limit: Limit) -> Moved:
    return _stopped(limit.reason, lambda reached: reached.sentence)(status, facts, limit)


def _lost_quota(_: TrainingJobStatus, facts: Facts) -> QuotaView | None:
    return facts.observed.quota if facts.waits_for_quota else None


def _failure(status: TrainingJobStatus, facts: Facts) -> Cause | None:
    return cause_of_break(status, facts) or cause_of_hang(status, facts)


def _failed(status: TrainingJobStatus, facts: Facts, cause: Cause) -> Moved:
    """Ends the open attempt with a failure. Later reports may correct its cause."""
    status, ended = _earlier_failure_settled(attempts.with_failure(status, facts, cause), facts, _unsettled(status, facts))
    record = None if ended else _unsettled(status, facts)
    return _reviewed(status, facts, record) if record else (status, ended)


def _stopped(reason: Reason, message: Callable[[Any], str] = lambda _: "") -> Callable[[TrainingJobStatus, Facts, Any], Moved]:
    """Ends the open attempt for a reason that is no failure. `message` says in words what the condition has found."""

    def end(status: TrainingJobStatus, facts: Facts, found: object) -> Moved:
        ended = attempts.with_end(status, facts, reason, message=message(found))
        return _earlier_failure_settled(ended, facts, _unsettled(status, facts))

    return end


def _earlier_failure_settled(status: TrainingJobStatus, facts: Facts, earlier: AttemptRecord | None) -> Moved:
    """The end of an attempt makes the failure before it final, if that was still provisional."""
    if earlier is None:
        return status, None
    status = attempts.with_settled(status, earlier.attempt)
    return _ended(status, facts, attempts.verdict(status, facts, attempt=earlier.attempt))


def _may_begin(status: TrainingJobStatus, facts: Facts) -> bool:
    """An attempt may also begin while a failure is provisional, unless the job would fail permanently for that failure."""
    if facts.suspends or facts.problems or facts.waits_for_quota:
        return False
    record = _unsettled(status, facts)
    return record is None or budget.verdict(status, facts, record) is None


def _begun(status: TrainingJobStatus, facts: Facts, _: bool) -> Moved:
    return replacing.with_orphaned(attempts.with_next(status, facts), facts), None


_evicted = _stopped(Reason.EVICTED_BY_QUEUE, lambda quota: quota.message)
_requeued = _stopped(Reason.GANG_REQUEUED, lambda split: requeue_sentence(split.waiting, len(split.placed)))
_resized = _stopped(Reason.SCALED, lambda resize: scaling_sentence(resize.before, resize.after))
_moved = _stopped(Reason.MOVED, lambda move: relocation_sentence(move.workers, move.nodes, move.target))

LIFE: tuple[Move[Any], ...] = (
    Move((Open,), "all replicas of the role that decides have succeeded", has_succeeded, _completed, Ended),
    Move((Open, Provisional, Suspended), "a failure is over a limit, and no later report can change that", _unsettled, _reviewed, Ended),
    Move((Open,), "the user suspends the job", _is_suspended, _stopped(Reason.SUSPENDED), Suspended),
    Move((Open,), "a limit of use that suspends the job is reached", _limit_that_suspends, _held, Suspended),
    Move((Open,), "the queue takes the quota back", _lost_quota, _evicted, Suspended),
    Move((Open,), "a replica fails, is lost or hangs", _failure, _failed, Provisional),
    Move((Open,), "the spec asks for another world", elastic.is_outgrown, _stopped(Reason.SCALED), Settled),
    Move((Open,), "a pod waits, and a new one could use more nodes", replacing.is_misplaced, _stopped(Reason.RESCHEDULED), Settled),
    Move((Open,), "only a part of the gang has nodes", requeueing.due, _requeued, Settled),
    Move((Open,), "an elastic world shrinks or grows", elastic.due_resize, _resized, Settled),
    Move((Open,), "workers leave nodes that go, or that they do not prefer", moving.due, _moved, Settled),
    Move((Settled, Open, Provisional, Suspended), "a deadline has passed, or a limit of use is reached", deadline.verdict, _ended, Ended),
    Move((Settled, Provisional, Suspended), "nothing forbids the next attempt", _may_begin, _begun, Open),
)
"""The moves of a job, in the order in which a pass tests them. An attempt ends before another begins. A failure is settled before it fails
the job for good."""


def caught_up(job: TrainingJob, observed: Observed, now: datetime, *, message: str) -> TrainingJobStatus:
    """The status of a job that no operator watched, updated once from the traces of its replicas. Its attempt ends as if the job was
    suspended at `now`, the time of the last event of the job. The time after that does not count as training time."""
    old = job.status
    facts = read(job, observed, now)
    facts = replace(facts, now=max(now, counted_until(old, facts)))
    status = attempts.with_end(with_progress(old, facts), facts, Reason.SUSPENDED, message=message)
    return with_usage(old, with_goodput(old, with_late_last_step(status, facts), facts), facts)


def _of_deleted_job(job: TrainingJob, observed: Observed, now: datetime) -> tuple[Action, ...]:
    """Deletes the pods of a job that is being deleted.

    The garbage collector deletes pods only when the job is gone, and a finalizer of the user can delay that without limit. If the user
    deletes the job with `--cascade=orphan`, the pods stay.
    """
    if ORPHAN_FINALIZER in job.metadata.finalizers:
        return ()
    return (*(action for view in observed.replicas for action in deletion(view)), *shortening(observed.replicas, now))


def _state(status: TrainingJobStatus, facts: Facts) -> State:
    return state_of(status, suspend=facts.suspends)
