"""When to look at a job again if nothing happens before."""

from __future__ import annotations

from datetime import datetime, timedelta

from muster.api.status import TrainingJobStatus
from muster.lifecycle.facts import capacity, devices, silence, stalled
from muster.lifecycle.facts.acknowledging import acknowledge_due, acknowledging
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.facts.leaving import times_of_leaving
from muster.lifecycle.facts.waiting import silence_due
from muster.lifecycle.job_state import Ended, State
from muster.lifecycle.recording.inputs import due_write
from muster.lifecycle.transition import attempts, avoided_nodes, clean_up, deadline, elastic, moving, replacing, requeueing
from muster.lifecycle.transition.pods import has_failed_outside_the_world, keeps_its_log

_AT_ONCE = timedelta(milliseconds=1)


def wake_time(
    old: TrainingJobStatus, status: TrainingJobStatus, state: State, *, facts: Facts, next_write: datetime | None
) -> datetime | None:
    """The earliest time at which a decision changes without an event. `old` is the status before the pass. `next_write` is when postponed
    figures may be written."""
    if _begins_acknowledged(old, status, facts):
        return facts.now + _AT_ONCE
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
            avoided_nodes.due(status),
            stalled.due(status, facts),
            *moving.wake_times(status, facts),
            *capacity.wake_times(status, facts),
            next_write,
        ]
    return min((time for time in times if time and time > facts.now), default=None)


def _begins_acknowledged(old: TrainingJobStatus, status: TrainingJobStatus, facts: Facts) -> bool:
    """Whether this decision begins an attempt that the termination message of a replica has acknowledged. It reports nothing more until it
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
    are_deleted = any(view.deleting for view in (*facts.replicas, *facts.orphaned))
    must_look = are_deleted or any(not keeps_its_log(status, facts, view) for view in leaving)
    return [
        *(facts.retry_time(view) for view in facts.replicas_of(status.attempt) if has_failed_outside_the_world(view, facts)),
        silence_due(status, facts),
        acknowledge_due(status, facts) if awaited else None,
        *(time for view in (*facts.everyone, *facts.orphaned) for time in times_of_leaving(view, facts)),
        *silence.times(status, facts),
        *replacing.wake_times(status, facts),
        facts.now + timedelta(seconds=facts.policy.look_seconds) if must_look else None,
        devices.due(status, facts),
        status.next_attempt_time,
    ]
