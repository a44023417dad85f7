"""How long may a world take to start, and a job to run?"""

from __future__ import annotations

from datetime import datetime, timedelta

from muster.api.status import Reason, TrainingJobStatus
from muster.lifecycle import messages, records, suspend
from muster.lifecycle.budget import Verdict
from muster.lifecycle.situation import Situation


def missed(case: Situation, status: TrainingJobStatus) -> Verdict | None:
    """The deadline that has passed, if one has."""
    active = _active_until(case, status)
    if active and case.now >= active:
        return Verdict(Reason.ACTIVE_DEADLINE, f"the job did not end within {case.spec.active_deadline_seconds} s")
    startup = _startup_until(case, status)
    if startup and case.now >= startup:
        waiting = messages.waiting(case, status)
        return Verdict(Reason.STARTUP_DEADLINE, f"not all replicas ran within {case.spec.startup_deadline_seconds} s: {waiting}")
    return None


def due(case: Situation, status: TrainingJobStatus) -> datetime | None:
    """The earliest deadline to come."""
    return min((time for time in (_active_until(case, status), _startup_until(case, status)) if time), default=None)


def _active_until(case: Situation, status: TrainingJobStatus) -> datetime | None:
    """Counted from the job's creation; time suspended does not count, and while it is suspended the clock stands."""
    limit = case.spec.active_deadline_seconds
    if limit is None or suspend.is_suspended(status) or case.spec.suspend:
        return None
    suspended = status.goodput.suspended_seconds if status.goodput else 0.0
    return case.created + timedelta(seconds=limit + suspended)


def _startup_until(case: Situation, status: TrainingJobStatus) -> datetime | None:
    """Counted from the attempt's world, or from the end of its back-off."""
    if status.world is None or status.world.ready_time or not records.is_open(status) or case.problems:
        return None
    start = max(status.world.created_time, status.next_attempt_time or status.world.created_time)
    return start + timedelta(seconds=case.spec.startup_deadline_seconds)
