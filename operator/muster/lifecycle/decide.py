"""Decides about a job in three stages: facts, transition, presentation. Also decides when to look at the job again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from muster.api.constants import ORPHAN_FINALIZER
from muster.api.job import TrainingJob
from muster.api.problems import Problem
from muster.api.status import Reason, TrainingJobStatus
from muster.lifecycle.actions import Action, Decision, LookLive, deletion, shortening
from muster.lifecycle.facts import devices, silence
from muster.lifecycle.facts.facts import Facts, read
from muster.lifecycle.observed import Observed
from muster.lifecycle.policy import DEFAULT_POLICY, Policy
from muster.lifecycle.present.goodput import booked_until, with_goodput
from muster.lifecycle.present.present import is_write_postponed, next_write_time, present
from muster.lifecycle.recording.inputs import due_write
from muster.lifecycle.recording.progress import with_progress
from muster.lifecycle.recording.recording import with_late_last_step
from muster.lifecycle.state import Ended, State
from muster.lifecycle.transition import attempts, clean_up, deadline, elastic, nodes, replacing, requeueing
from muster.lifecycle.transition.attempts import with_end
from muster.lifecycle.transition.fence import acknowledge_due, acknowledging
from muster.lifecycle.transition.pods import has_failed_outside_the_world, keeps_its_log, silence_due
from muster.lifecycle.transition.transition import must_look_live, transition

_AT_ONCE = timedelta(milliseconds=1)


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
    step = transition(old, facts)
    facts = step.facts
    status = present(step.status, step.state, facts)
    # The replicas of an ended job report for a short time only, so nothing is postponed.
    postponed = not isinstance(step.state, Ended) and is_write_postponed(old, status, facts)
    wake = _wake_time(status, step.state, facts, next_write=next_write_time(facts) if postponed else None)
    if _begins_acknowledged(old, status, facts):
        wake = now + _AT_ONCE
    return Decision(old if postponed else with_goodput(old, status, facts), step.actions, wake)


def caught_up(job: TrainingJob, observed: Observed, now: datetime, *, message: str) -> TrainingJobStatus:
    """The status of a job that no operator watched, updated once from the traces of its replicas. Its attempt ends as if the job was
    suspended at `now`, the time of the last event of the job. The time after that does not count as training time."""
    old = job.status
    facts = read(job, observed, now)
    facts = replace(facts, now=max(now, booked_until(old, facts)))
    status = with_end(with_progress(old, facts), facts, Reason.SUSPENDED, message=message)
    return with_goodput(old, with_late_last_step(status, facts), facts)


def _of_deleted_job(job: TrainingJob, observed: Observed, now: datetime) -> tuple[Action, ...]:
    """Deletes the pods of a job that is being deleted.

    The garbage collector deletes pods only when the job is gone, and a finalizer of the user can delay that without limit. If the user
    deletes the job with `--cascade=orphan`, the pods stay.
    """
    if ORPHAN_FINALIZER in job.metadata.finalizers:
        return ()
    return (*(action for view in observed.replicas for action in deletion(view)), *shortening(observed.replicas, now))


def _wake_time(status: TrainingJobStatus, state: State, facts: Facts, *, next_write: datetime | None) -> datetime | None:
    """The earliest time at which a decision changes without an event. `next_write` is when postponed figures may be written."""
    if isinstance(state, Ended):
        times = clean_up.wake_times(status, facts)
    else:
        times = [
            *_world_times(status, facts),
            elastic.wake_time(status, facts),
            requeueing.wake_time(status, facts),
            attempts.settles_at(status, facts),
            deadline.due(status, facts),
            due_write(status, facts),
            nodes.due(status),
            next_write,
        ]
    return min((time for time in times if time and time > facts.now), default=None)


def _begins_acknowledged(old: TrainingJobStatus, status: TrainingJobStatus, facts: Facts) -> bool:
    """Whether this decision begins an attempt that a replica has acknowledged already, by its last words. It reports nothing more until it
    gets the world, so no event follows."""
    if status.attempt == old.attempt or status.world is None:
        return False
    awaited = {member.uid for member in status.world.members if member.awaited}
    return any(view.uid in awaited for view in facts.in_world_of(status).replicas_of(status.attempt))


def _world_times(status: TrainingJobStatus, facts: Facts) -> list[datetime | None]:
    """When to look again at the replicas of a job that has not ended."""
    awaited = acknowledging(status, facts)
    uids = {view.uid for view in awaited}
    leaving = (view for view in facts.older_than(status.attempt) if view.uid not in uids)
    are_deleted = any(view.deleting for view in (*facts.replicas, *facts.left_behind))
    must_look = are_deleted or any(not keeps_its_log(status, facts, view) for view in leaving)
    return [
        *(facts.retry_time(view) for view in facts.replicas_of(status.attempt) if has_failed_outside_the_world(view, facts)),
        silence_due(status, facts),
        acknowledge_due(status, facts) if awaited else None,
        *(time for view in (*facts.everyone, *facts.left_behind) for time in clean_up.times_of_leaving(view, facts)),
        *silence.times(status, facts),
        *replacing.wake_times(status, facts),
        facts.now + timedelta(seconds=facts.policy.look_seconds) if must_look else None,
        devices.due(status, facts),
        status.next_attempt_time,
    ]
