"""What did it take to get to the first step? The seconds of each phase of a start or a recovery, which add up to the whole.

When replicas run is seen here, what their processes do is told by them: their clocks are believed only within what is known here.
"""

from __future__ import annotations

from datetime import datetime
from itertools import accumulate, pairwise

from muster.api.reports import Marks
from muster.api.status import AttemptRecord, Phases, TrainingJobStatus
from muster.lifecycle import records
from muster.lifecycle.moments import moment
from muster.lifecycle.situation import Situation, milliseconds


def running_again(case: Situation, status: TrainingJobStatus) -> TrainingJobStatus:
    """The status of an attempt whose processes have just been seen to run. Of a program that reports no steps no more may ever be known."""
    record, world = records.current(status), status.world
    assert record is not None
    assert world is not None
    began, seen = _beginning(status, record)
    points = list(accumulate((began, seen, world.ready_time or case.stamp), max))
    detect, schedule = (round((later - earlier).total_seconds(), 3) for earlier, later in pairwise(points))
    return records.amend(status, record.attempt, phases=Phases(detect_seconds=detect, schedule_seconds=schedule))


def measured(case: Situation, status: TrainingJobStatus, marks: Marks) -> TrainingJobStatus:
    """The status of an attempt whose first step has just been told of, with when that was and what led to it."""
    record, world = records.current(status), status.world
    assert record is not None
    assert world is not None
    began, seen = _beginning(status, record)
    ready = world.ready_time or record.start_time
    stepped = moment(marks.stepped, fallback=case.stamp)
    resumed = moment(marks.resumed, fallback=stepped)
    told = (moment(marks.restoring, fallback=resumed), resumed, stepped)
    points = list(accumulate((began, seen, ready, *(min(milliseconds(time), case.stamp) for time in told)), max))
    parts = (round((later - earlier).total_seconds(), 3) for earlier, later in pairwise(points))
    found = Phases(**dict(zip(Phases.model_fields, parts, strict=True)))
    status = records.amend(status, record.attempt, phases=found)
    return status.model_copy(update={"world": world.model_copy(update={"first_step_time": points[-1]})})


def recovered(phases: Phases) -> str:
    """For people: `reached its first new step 1.25 s after the failure (detect 0.10, schedule 0.31, ...)`."""
    parts = ", ".join(f"{name.removesuffix('_seconds').replace('_', ' ')} {seconds:.2f}" for name, seconds in phases.known.items())
    what = "reached its first new step" if phases.first_step_seconds is not None else "runs again, and has reported no step,"
    return f"{what} {phases.total_seconds:.2f} s after the failure ({parts})"


def _beginning(status: TrainingJobStatus, record: AttemptRecord) -> tuple[datetime, datetime]:
    """When what led to this attempt happened, and when that was seen."""
    before = records.before(status)
    failed = before if before and before.failure_class else None
    return (failed.failed_time if failed else None) or record.start_time, (failed.end_time if failed else None) or record.start_time
