"""Moves a job from one state to the next, and collects the actions. Each subject has its own module. This module has their order."""

from __future__ import annotations

from dataclasses import dataclass, replace

from muster.api.status import Reason, TrainingJobStatus
from muster.lifecycle.actions import Action
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.facts.failure import cause_of_break
from muster.lifecycle.facts.hang import cause_of_hang
from muster.lifecycle.recording.grace import with_grace_of_ended_attempts
from muster.lifecycle.recording.members import has_succeeded
from muster.lifecycle.recording.progress import with_progress
from muster.lifecycle.recording.recording import with_late_last_step, with_reports
from muster.lifecycle.state import Ended, Open, State, Verdict, is_backing_off, state_of
from muster.lifecycle.transition import attempts, budget, deadline, elastic, nodes, replacing, requeueing
from muster.lifecycle.transition.pods import actions


@dataclass(frozen=True)
class Transition:
    """The next state of a job, and the actions to carry out once the status is written."""

    status: TrainingJobStatus
    state: State
    facts: Facts
    """The facts, with each replica in its new attempt, because a new world may have taken replicas over."""
    actions: tuple[Action, ...]


def transition(status: TrainingJobStatus, facts: Facts) -> Transition:
    """Moves the job to its next state."""
    status, state = _next(status, facts)
    facts = facts.in_world_of(status)
    return Transition(status, state, facts, actions(status, state, facts))


def _next(status: TrainingJobStatus, facts: Facts) -> tuple[TrainingJobStatus, State]:
    """The next status and its state. An attempt ends before another begins. A failure is settled before it fails the job for good."""
    state = _state(status, facts)
    if isinstance(state, Ended):
        # A world that a deadline ends saves in its grace period. Its commit and its last step come after the end of the job.
        return with_late_last_step(with_progress(replacing.without_deleted(status, facts), facts), facts), state
    status = replacing.with_left_behind(replacing.without_deleted(status, facts), facts)
    facts = facts.in_world_of(status)
    before = status.world
    status = with_reports(status, facts)
    if isinstance(_state(status, facts), Open) and has_succeeded(status, facts):
        return _with_job_ended(attempts.with_end(status, facts, Reason.COMPLETED), facts), _completed(status, facts)
    status, verdict = _reviewed(status, facts)
    if before is not None and before.ready_time is None and status.world is not None and is_backing_off(status, facts.now):
        # The report that completes the world also has the cause of the failure before, and that cause needs a back-off.
        status = replace(status, world=replace(status.world, ready_time=None))
    if verdict is None:
        status, verdict = _with_end_of_open_attempt(status, facts)
    status = with_grace_of_ended_attempts(status, facts)
    verdict = verdict or deadline.verdict(status, facts)
    if verdict is not None:
        if verdict.reason is Reason.STARTUP_DEADLINE:
            status = deadline.with_awaited(status, facts)
        status = attempts.with_given_up(status, facts, verdict)
        return _with_job_ended(status, facts), Ended(verdict.reason, verdict.message)
    if _may_begin(status, facts):
        status = replacing.with_left_behind(attempts.with_next(status, facts), facts)
    status = replace(status, avoided_nodes=nodes.avoided(status, facts))
    return status, _state(status, facts)


def must_look_live(status: TrainingJobStatus, facts: Facts) -> bool:
    """Whether a cached observation contradicts the status. Only a live observation can show whether the replicas have really changed."""
    state = _state(status, facts)
    if facts.live or isinstance(state, Ended):
        return False
    if facts.attempt_ahead(status) is not None or elastic.due_resize(status, facts) or requeueing.due(status, facts):
        return True
    return isinstance(state, Open) and bool(facts.missing_members(status))


def _reviewed(status: TrainingJobStatus, facts: Facts) -> tuple[TrainingJobStatus, Verdict | None]:
    """The status after a second look at the failure that is still provisional, and whether the job fails permanently for that failure."""
    record = _state(status, facts).provisional
    if record is None:
        return status, None
    status = attempts.with_correction(status, facts, record)
    return status, attempts.verdict(status, facts, attempt=record.attempt)


def _with_end_of_open_attempt(status: TrainingJobStatus, facts: Facts) -> tuple[TrainingJobStatus, Verdict | None]:
    """Ends the open attempt if the user suspends the job, its queue takes the quota back, its world is broken or hangs, its gang has only a
    part of its nodes, or it needs another world.

    An earlier failure that is still provisional becomes final.
    """
    state = _state(status, facts)
    if not isinstance(state, Open):
        return status, None
    cause = None if facts.spec.suspend or facts.waits_for_quota else cause_of_break(status, facts) or cause_of_hang(status, facts)
    if facts.spec.suspend:
        status = attempts.with_end(status, facts, Reason.SUSPENDED)
    elif facts.waits_for_quota and facts.observed.quota:
        status = attempts.with_end(status, facts, Reason.EVICTED_BY_QUEUE, message=facts.observed.quota.message)
    elif cause:
        status = attempts.with_failure(status, facts, cause)
    elif elastic.is_outgrown(status, facts):
        status = attempts.with_end(status, facts, Reason.SCALED)
    elif replacing.is_misplaced(status, facts):
        status = attempts.with_end(status, facts, Reason.RESCHEDULED)
    elif split := requeueing.due(status, facts):
        status = attempts.with_end(status, facts, Reason.GANG_REQUEUED, message=split.message)
    elif resize := elastic.due_resize(status, facts):
        status = attempts.with_end(status, facts, Reason.SCALED, message=resize.message)
    else:
        return status, None
    verdict = None
    if state.provisional:
        status = attempts.with_settled(status, state.provisional.attempt)
        verdict = attempts.verdict(status, facts, attempt=state.provisional.attempt)
    return (status, verdict) if verdict else _reviewed(status, facts)


def _may_begin(status: TrainingJobStatus, facts: Facts) -> bool:
    """Whether the next attempt begins. It may also begin while a failure is provisional, unless the job would fail permanently for that
    failure."""
    state = _state(status, facts)
    if isinstance(state, Open) or facts.spec.suspend or facts.problems or facts.waits_for_quota:
        return False
    return state.provisional is None or budget.verdict(status, facts, state.provisional) is None


def _completed(status: TrainingJobStatus, facts: Facts) -> Ended:
    """The end of a job that has succeeded. If the program reported nothing, only its exit code is known."""
    if facts.counts_steps(status) or status.progress is not None or status.checkpoint is not None:
        return Ended(Reason.COMPLETED, "completed")
    return Ended(Reason.COMPLETED_WITHOUT_REPORT, "the program ended with exit code 0, and reported no step and no checkpoint")


def _with_job_ended(status: TrainingJobStatus, facts: Facts) -> TrainingJobStatus:
    return replace(status, completion_time=facts.stamp, next_attempt_time=None)


def _state(status: TrainingJobStatus, facts: Facts) -> State:
    return state_of(status, suspend=facts.spec.suspend)
