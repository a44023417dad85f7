"""The use of time. Every second since the job's creation is in exactly one of the parts.

Each write of the status adds the time since the last write to the part that the old status shows. So the sum of all parts is the time up
to which everything is counted. Some reports come late, and then move a share of the productive time: saves to their part, by duration; the
time from a failure to its detection to recovering; lost steps to redone.

If a program has reported no step, its productive time is unknown. The time in which its processes ran is then unreported, and there is
no ratio. Once it reports its first step, the unreported time was its start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from enum import Enum, auto

from muster.api.status import ConditionType, Goodput, Phase, Reason, TrainingJobStatus
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.job_state import SUSPENSIONS, is_open, last_failure, newest, record_of


class Part(Enum):
    QUEUED = auto()
    STARTING = auto()
    UNREPORTED = auto()
    PRODUCTIVE = auto()
    CHECKPOINT = auto()
    REDONE = auto()
    RECOVERING = auto()
    SUSPENDED = auto()


_Parts = Mapping[Part, float]
"""Seconds of each part."""


def reports_steps(status: TrainingJobStatus, facts: Facts) -> bool:
    """Whether the program reports its steps, so that the use of its time is known."""
    return facts.counts_steps(status) or (status.progress is not None and status.progress.step > 0)


def with_goodput(old: TrainingJobStatus, new: TrainingJobStatus, facts: Facts) -> TrainingJobStatus:
    """The status to write, with the time since the last write added."""
    if old.phase.final or new == old:
        return new
    part, parts = _part_of(old, facts), _parts(old.goodput)
    passed = (facts.now - counted_until(old, facts)).total_seconds()
    parts = _added(parts, part, max(0.0, passed))
    if part in (Part.UNREPORTED, Part.PRODUCTIVE):
        parts = _moved(parts, part, Part.RECOVERING, seconds=_undetected(old, new, facts))
    if not reports_steps(new, facts):
        return replace(new, goodput=_goodput(parts, old.goodput or Goodput()))
    steps, gained = (old.goodput.productive_steps if old.goodput else None) or 0, _steps_gained(old, new)
    if lost := min(max(-gained, _steps_lost(old, new)), steps):
        parts = _moved(parts, Part.PRODUCTIVE, Part.REDONE, seconds=parts[Part.PRODUCTIVE] * lost / steps)
    if part is not Part.PRODUCTIVE:
        parts = _moved(parts, part, Part.PRODUCTIVE, seconds=_uncounted_training(old, new, facts))
    parts = _moved(parts, Part.UNREPORTED, Part.STARTING, seconds=parts[Part.UNREPORTED])
    parts = _moved(parts, Part.PRODUCTIVE, Part.CHECKPOINT, seconds=_saved(old, new))
    return replace(new, goodput=_reported(parts, steps=max(0, steps + gained)))


def counted_until(status: TrainingJobStatus, facts: Facts) -> datetime:
    """Up to when all time is counted."""
    return facts.created + timedelta(seconds=sum(_parts(status.goodput).values()))


def _part_of(status: TrainingJobStatus, facts: Facts) -> Part:
    """What a job with this status does."""
    world, record = status.world, newest(status)
    quota = status.condition(ConditionType.QUOTA_RESERVED)
    if quota is not None and quota.reason is Reason.WAITING_FOR_QUOTA and not is_open(status):
        return Part.QUEUED
    if status.phase is Phase.SUSPENDED or (record is not None and record.reason in SUSPENSIONS):
        return Part.SUSPENDED
    runs = world is not None and bool(world.ready_time or world.first_step_time) and is_open(status)
    if runs and not reports_steps(status, facts):
        return Part.UNREPORTED
    if runs and world and world.first_step_time:
        return Part.PRODUCTIVE
    if last_failure(status):
        return Part.RECOVERING
    return Part.STARTING if runs or status.start_time else Part.QUEUED


def _parts(goodput: Goodput | None) -> _Parts:
    seconds = goodput or Goodput()
    return {
        Part.QUEUED: seconds.queued_seconds,
        Part.STARTING: seconds.starting_seconds,
        Part.UNREPORTED: seconds.unreported_seconds or 0.0,
        Part.PRODUCTIVE: seconds.productive_seconds or 0.0,
        Part.CHECKPOINT: seconds.checkpoint_seconds or 0.0,
        Part.REDONE: seconds.redone_seconds or 0.0,
        Part.RECOVERING: seconds.recovering_seconds,
        Part.SUSPENDED: seconds.suspended_seconds,
    }


def _goodput(parts: _Parts, old: Goodput) -> Goodput:
    """The parts of a program that has reported no step."""
    return replace(
        old,
        queued_seconds=parts[Part.QUEUED],
        starting_seconds=parts[Part.STARTING],
        unreported_seconds=parts[Part.UNREPORTED] if old.unreported_seconds is not None else parts[Part.UNREPORTED] or None,
        recovering_seconds=parts[Part.RECOVERING],
        suspended_seconds=parts[Part.SUSPENDED],
    )


def _reported(parts: _Parts, *, steps: int) -> Goodput:
    """The parts of a program that reports its steps."""
    awake = sum(parts.values()) - parts[Part.SUSPENDED]
    return Goodput(
        ratio=round(min(1.0, parts[Part.PRODUCTIVE] / awake), 4) if awake > 0 else 0.0,
        queued_seconds=parts[Part.QUEUED],
        starting_seconds=parts[Part.STARTING],
        productive_seconds=parts[Part.PRODUCTIVE],
        checkpoint_seconds=parts[Part.CHECKPOINT],
        redone_seconds=parts[Part.REDONE],
        recovering_seconds=parts[Part.RECOVERING],
        suspended_seconds=parts[Part.SUSPENDED],
        productive_steps=steps,
    )


def _added(parts: _Parts, part: Part, seconds: float) -> _Parts:
    return {**parts, part: round(parts[part] + seconds, 3)}


def _moved(parts: _Parts, source: Part, target: Part, *, seconds: float) -> _Parts:
    moved = max(0.0, min(seconds, parts[source]))
    return _added(_added(parts, source, -moved), target, moved)


def _saved(old: TrainingJobStatus, new: TrainingJobStatus) -> float:
    """Seconds that saves have taken since the last write. 0 if the old status has another world."""
    if new.world is None or old.world is None or new.world.attempt != old.world.attempt:
        return 0.0
    return new.world.saved_seconds - old.world.saved_seconds


def _undetected(old: TrainingJobStatus, new: TrainingJobStatus, facts: Facts) -> float:
    """Seconds from the failure of the attempt that was open until now."""
    record = record_of(new, old.attempt) if is_open(old) else None
    return (facts.now - record.failed_time).total_seconds() if record and record.failed_time else 0.0


def _uncounted_training(old: TrainingJobStatus, new: TrainingJobStatus, facts: Facts) -> float:
    """Seconds from the first step of the attempt until now, when that step is first reported."""
    first = new.world.first_step_time if new.world else None
    before = old.world.first_step_time if old.world and new.world and old.world.attempt == new.world.attempt else None
    return (facts.now - first).total_seconds() if first and before is None else 0.0


def _steps_lost(old: TrainingJobStatus, new: TrainingJobStatus) -> int:
    """The steps that the attempt must redo, when it has resumed since the last write. It may have redone them since then as well."""
    record, before = newest(new), record_of(old, new.attempt)
    return (record.steps_lost or 0) if record is not None and (before is None or before.step_resumed is None) else 0


def _steps_gained(old: TrainingJobStatus, new: TrainingJobStatus) -> int:
    """The number of new steps, negative if steps were lost. If a job was created again, its first attempt starts at the commits of the
    earlier job."""
    if new.progress is None:
        return 0
    record = newest(new)
    began = (record.step_resumed or 0) if record else 0
    return new.progress.step - (old.progress.step if old.progress else began)
