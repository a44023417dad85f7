"""What did it take to get to the first step? The seconds of each phase of a start or a recovery, which add up to the whole.

When replicas run is seen here, what their processes do is told by them: their clocks are believed only within what is known here.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

from muster.api.reports import Marks
from muster.api.status import Phases, TrainingJobStatus
from muster.lifecycle import records
from muster.lifecycle.moments import moment
from muster.lifecycle.situation import Situation, milliseconds


def measured(case: Situation, status: TrainingJobStatus, marks: Marks) -> TrainingJobStatus:
    """The status of an attempt whose first step has just been told of, with when that was and what led to it."""
    record, before, world = records.current(status), records.before(status), status.world
    assert record is not None
    assert world is not None
    failed = before if before and before.failure_class else None
    began = (failed.failed_time if failed else None) or record.start_time
    seen = (failed.end_time if failed else None) or record.start_time
    ready = world.ready_time or record.start_time
    stepped = moment(marks.stepped, fallback=case.stamp)
    resumed = moment(marks.resumed, fallback=stepped)
    told = (moment(marks.restoring, fallback=resumed), resumed, stepped)
    points = list(accumulate((began, seen, ready, *(min(milliseconds(time), case.stamp) for time in told)), max))
    parts = (round((later - earlier).total_seconds(), 3) for earlier, later in pairwise(points))
    found = Phases(**dict(zip(Phases.model_fields, parts, strict=True)))
    status = records.amend(status, record.attempt, phases=found)
    return status.model_copy(update={"world": world.model_copy(update={"first_step_time": points[-1]})})


def spelled(phases: Phases) -> str:
    """For people: `1.25 s after the failure (detect 0.10, schedule 0.31, ...)`."""
    parts = ", ".join(f"{name.removesuffix('_seconds').replace('_', ' ')} {seconds:.2f}" for name, seconds in phases)
    return f"{phases.total_seconds:.2f} s after the failure ({parts})"
