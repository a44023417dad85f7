"""Where did the time go? Every second since the job's creation is in exactly one of the parts.

Time is booked when the status is written anyway, on what the status until then said that the job did. The sum of the parts is therefore
the moment up to which all is booked, and needs no field. What is known only afterwards moves its share of the productive time: saves, by
what they took; from the moment of a failure to its discovery, to recovering; steps that are lost, to redone.

Of a program that has reported no step nobody knows what was productive: the time in which its processes ran is unreported, and there is no
ratio. Once it reports its first step, what was unreported until then has been its start.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from muster.api.status import Goodput, Phase, TrainingJobStatus
from muster.lifecycle import records, suspend
from muster.lifecycle.situation import Situation

_PARTS = (
    "queued_seconds",
    "starting_seconds",
    "unreported_seconds",
    "productive_seconds",
    "checkpoint_seconds",
    "redone_seconds",
    "recovering_seconds",
    "suspended_seconds",
)
_RUNNING = ("unreported_seconds", "productive_seconds")
_OF_STEPS = ("productive_seconds", "checkpoint_seconds", "redone_seconds", "productive_steps")
"""What can be said only of a program that reports its steps."""


def is_known(case: Situation, status: TrainingJobStatus) -> bool:
    """Whether it can be said what the job's time was spent on: its program has reported a step, or is one that does."""
    return case.counts_steps(status.restarts.best_step) or (status.progress is not None and status.progress.step > 0)


def account(case: Situation, old: TrainingJobStatus, new: TrainingJobStatus) -> TrainingJobStatus:
    """The status to write, with the time since the last write booked."""
    if old.phase.final or new == old:
        return new
    books = old.goodput or Goodput()
    passed = max(0.0, (case.now - booked(case, old)).total_seconds())
    part = _part(case, old)
    books = books.model_copy(update={part: round(_seconds(books, part) + passed, 3)})
    if part in _RUNNING:
        books = _moved(books, part, "recovering_seconds", _unnoticed(case, old, new))
    if is_known(case, new):
        books = books.model_copy(update={name: getattr(books, name) or 0 for name in _OF_STEPS})
        books = _moved(books, part, "productive_seconds", _unseen_training(case, old, new) if part != "productive_seconds" else 0.0)
        books = _moved(books, "unreported_seconds", "starting_seconds", _seconds(books, "unreported_seconds"))
        books = _moved(books, "productive_seconds", "checkpoint_seconds", _saved(old, new))
        books = _stepped(books, old, new)
        books = books.model_copy(update={"ratio": _ratio(books), "unreported_seconds": None})
    return new.model_copy(update={"goodput": books})


def booked(case: Situation, status: TrainingJobStatus) -> datetime:
    """Up to when all time is booked."""
    books = status.goodput or Goodput()
    return case.created + timedelta(seconds=sum(_seconds(books, part) for part in _PARTS))


def _seconds(books: Goodput, part: str) -> float:
    return getattr(books, part) or 0.0


def _part(case: Situation, status: TrainingJobStatus) -> str:
    world = status.world
    if status.phase is Phase.SUSPENDED or suspend.is_suspended(status):
        return "suspended_seconds"
    if world and (world.ready_time or world.first_step_time) and records.is_open(status):
        if not is_known(case, status):
            return "unreported_seconds"
        if world.first_step_time:
            return "productive_seconds"
        return "recovering_seconds" if records.last_failure(status) else "starting_seconds"
    if records.last_failure(status):
        return "recovering_seconds"
    return "starting_seconds" if status.start_time else "queued_seconds"


def _moved(books: Goodput, source: str, target: str, seconds: float) -> Goodput:
    moved = max(0.0, min(seconds, _seconds(books, source)))
    changed = {source: round(_seconds(books, source) - moved, 3), target: round(_seconds(books, target) + moved, 3)}
    return books.model_copy(update=changed) if moved else books


def _saved(old: TrainingJobStatus, new: TrainingJobStatus) -> float:
    """Seconds that saves have taken since the last write; those of a world that was never written are not known."""
    if new.world is None or old.world is None or new.world.attempt != old.world.attempt:
        return 0.0
    return new.world.saved_seconds - old.world.saved_seconds


def _unnoticed(case: Situation, old: TrainingJobStatus, new: TrainingJobStatus) -> float:
    """Seconds from the failure of the attempt that was open until now."""
    record = next((record for record in new.attempts if record.attempt == old.attempt and records.is_open(old)), None)
    return (case.now - record.failed_time).total_seconds() if record and record.failed_time else 0.0


def _unseen_training(case: Situation, old: TrainingJobStatus, new: TrainingJobStatus) -> float:
    """Seconds from the first step of the attempt until now, when it is first seen."""
    first = new.world.first_step_time if new.world else None
    known = old.world.first_step_time if old.world and new.world and old.world.attempt == new.world.attempt else None
    return (case.now - first).total_seconds() if first and known is None else 0.0


def _stepped(books: Goodput, old: TrainingJobStatus, new: TrainingJobStatus) -> Goodput:
    """Books new steps; steps that were lost take their share of productive time along."""
    if new.progress is None:
        return books
    before = old.progress.step if old.progress else _base(new)
    gained, steps = new.progress.step - before, books.productive_steps or 0
    if gained >= 0:
        return books.model_copy(update={"productive_steps": steps + gained})
    lost = min(-gained, steps)
    share = _seconds(books, "productive_seconds") * lost / steps if steps else 0.0
    books = _moved(books, "productive_seconds", "redone_seconds", share)
    return books.model_copy(update={"productive_steps": steps - lost})


def _base(status: TrainingJobStatus) -> int:
    """The step that the job's first attempt began at: a job applied again goes on from the commits of the one before."""
    record = records.current(status)
    return (record.step_resumed or 0) if record else 0


def _ratio(books: Goodput) -> float:
    awake = sum(_seconds(books, part) for part in _PARTS) - books.suspended_seconds
    return round(min(1.0, _seconds(books, "productive_seconds") / awake), 4) if awake > 0 else 0.0
