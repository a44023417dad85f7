"""Since when a job that should run does not run."""

from __future__ import annotations

from datetime import datetime, timedelta

from muster.api.status import ConditionType, TrainingJobStatus
from muster.lifecycle.facts.facts import Facts


def not_running_since(status: TrainingJobStatus, facts: Facts) -> datetime | None:
    """None if it runs, is suspended, or has ended. A job that was resumed counts from then."""
    ready, suspended = status.condition(ConditionType.READY), status.condition(ConditionType.SUSPENDED)
    is_halted = status.phase.final or facts.suspends or bool(facts.problems) or (suspended is not None and suspended.status == "True")
    if is_halted or ready is None or ready.status == "True":
        return None
    times = [each.last_transition_time for each in (ready, suspended) if each is not None]
    return max((time for time in times if time is not None), default=None)


def due(status: TrainingJobStatus, facts: Facts) -> datetime | None:
    """When the job counts as stalled, unless it runs before."""
    since = not_running_since(status, facts)
    return since + timedelta(seconds=facts.policy.stalled_seconds) if since else None
