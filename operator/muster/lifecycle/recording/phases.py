"""The duration of each phase of a start or a recovery. The phases add up to the whole time until the first step.

The operator observes when replicas run. The processes report their activity. Muster limits the times of their clocks to the interval that
the operator has observed.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from itertools import accumulate, pairwise

from muster.api.status import AttemptRecord, Phases, TrainingJobStatus
from muster.api.times import milliseconds, reported_time
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.job_state import newest, record_before, with_record
from muster_contract.reports import Marks


def with_start_phases(status: TrainingJobStatus, facts: Facts) -> TrainingJobStatus:
    """The status of an attempt whose processes now run. If the program reports no steps, no more can be measured."""
    record, world = newest(status), status.world
    assert record is not None
    assert world is not None
    detect, schedule = _durations(*_beginning(status, record), world.ready_time or facts.stamp)
    return with_record(status, replace(record, phases=Phases(detect_seconds=detect, schedule_seconds=schedule)))


def with_phases(status: TrainingJobStatus, facts: Facts, marks: Marks) -> TrainingJobStatus:
    """The status of an attempt whose first step was just reported, with the time of that step and the phases before it."""
    record, world = newest(status), status.world
    assert record is not None
    assert world is not None
    stepped = reported_time(marks.stepped, fallback=facts.stamp)
    resumed = reported_time(marks.resumed, fallback=stepped)
    restoring = reported_time(marks.restoring, fallback=resumed)
    reported = (min(milliseconds(time), facts.stamp) for time in (restoring, resumed, stepped))
    times = (*_beginning(status, record), world.ready_time or record.start_time, *reported)
    detect, schedule, start, load, first_step = _durations(*times)
    phases = Phases(detect_seconds=detect, schedule_seconds=schedule, start_seconds=start, load_seconds=load, first_step_seconds=first_step)
    status = with_record(status, replace(record, phases=phases))
    return replace(status, world=replace(world, first_step_time=max(times)))


def recovery_sentence(phases: Phases) -> str:
    """A phrase such as `trains again 1.25 s after the failure (detect 0.10, schedule 0.31, ...)`."""
    parts = ", ".join(f"{name.removesuffix('_seconds').replace('_', ' ')} {seconds:.2f}" for name, seconds in phases.measured.items())
    outcome = "trains again" if phases.first_step_seconds is not None else "runs again"
    return f"{outcome} {phases.total_seconds:.2f} s after the failure ({parts})"


def _durations(*times: datetime) -> list[float]:
    """The seconds between successive times. A time that lies before its predecessor counts as equal to it."""
    return [round((later - earlier).total_seconds(), 3) for earlier, later in pairwise(accumulate(times, max))]


def _beginning(status: TrainingJobStatus, record: AttemptRecord) -> tuple[datetime, datetime]:
    """When the event that led to this attempt happened, and when Muster detected it."""
    before = record_before(status)
    failed = before if before and before.failure_class else None
    return (failed.failed_time if failed else None) or record.start_time, (failed.end_time if failed else None) or record.start_time
