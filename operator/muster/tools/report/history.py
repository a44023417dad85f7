"""Reads the events of a run directory: those of every replica in every attempt, ordered by time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from muster.local.event_files import recorded_events
from muster_contract.events import Commit, Evaluation, Event, Fingerprint, Load, Resumed, Step, TrainingMeasurement

_T = TypeVar("_T", bound=Event)


class ReportError(ValueError):
    """No report can be made of a run. The message has the reason."""


@dataclass(frozen=True)
class History:
    """The events of a run. Starts and evaluations are those of rank 0. Steps and commits are those of rank 0, and those of ranks that save
    alone after they have lost rank 0."""

    steps: tuple[Step, ...]
    commits: tuple[Commit, ...]
    starts: tuple[Resumed, ...]
    evaluations: tuple[Evaluation, ...]
    fingerprints: tuple[Fingerprint, ...]
    attempt_spans: dict[int, tuple[float, float]]
    """Attempt -> time of the first and last event of its processes, in Unix seconds."""
    trainings: tuple[TrainingMeasurement, ...] = ()
    loads: tuple[Load, ...] = ()
    """What the supervisors have measured."""

    @property
    def curve(self) -> dict[int, Step]:
        """The last execution of each step, by step."""
        return {step.step: step for step in sorted(self.steps, key=lambda step: (step.attempt, step.step))}

    @property
    def attempts(self) -> list[int]:
        """The attempts that did at least one step, in order."""
        return sorted({step.attempt for step in self.steps})

    @property
    def redone(self) -> tuple[Step, ...]:
        """Executions whose results were lost, because a later attempt did the step again."""
        curve = self.curve
        return tuple(step for step in self.steps if curve[step.step] is not step)


def read_history(run: Path) -> History:
    """The history of the run in this directory. Raises ReportError if there is none."""
    if not run.is_dir():
        raise ReportError(f"{run}: no such run directory; `muster run` writes runs/<job name>")
    history = history_of(recorded_events(run))
    if not history.attempt_spans and not history.loads:
        raise ReportError(f"{run}: holds no events; is it the run directory of a `muster run` that trained a task or module?")
    return history


def history_of(unordered: Iterable[Event]) -> History:
    """The history that follows from these events."""
    events = sorted(unordered, key=lambda event: event.time)
    spans: dict[int, tuple[float, float]] = {}
    for event in (event for event in events if not isinstance(event, Load)):
        first, last = spans.get(event.attempt, (event.time, event.time))
        spans[event.attempt] = (min(first, event.time), max(last, event.time))
    of_rank_0 = [event for event in events if event.rank == 0]
    return History(
        steps=_of_type(Step, _without_repeats(events)),
        commits=_of_type(Commit, _without_repeats(events)),
        starts=_of_type(Resumed, of_rank_0),
        evaluations=tuple(event for event in _of_type(Evaluation, of_rank_0) if event.metrics),
        fingerprints=_of_type(Fingerprint, events),
        attempt_spans=spans,
        trainings=_of_type(TrainingMeasurement, events),
        loads=_of_type(Load, events),
    )


def _without_repeats(events: Iterable[Event]) -> list[Event]:
    """The steps and commits, without those that rank 0, or a lower rank, also reports in the same attempt. An attempt may report once more
    the step that it resumed from, or saves before it resumes. It has not done that step again."""
    events = list(events)
    progress = [event for event in events if isinstance(event, Step | Commit)]
    reported = {(type(event), event.attempt, event.step) for event in progress if event.rank == 0}
    of_ranks = sorted((event for event in events if isinstance(event, Resumed)), key=lambda event: event.rank, reverse=True)
    resumed = {event.attempt: event.step for event in of_ranks}  # rank 0 counts: in an own loop, another may read a newer commit of it
    done: dict[int, str | None] = {}
    single: list[Event] = []
    for event in progress:
        key = (type(event), event.attempt, event.step)
        if event.rank != 0 and key in reported:
            continue
        if isinstance(event, Step):
            same = event.loss_hex is not None and event.loss_hex == done.get(event.step)
            if event.step in done and (event.step <= resumed[event.attempt] if event.attempt in resumed else resumed and same):
                continue
            done[event.step] = event.loss_hex
        reported.add(key)
        single.append(event)
    return single


def _of_type(cls: type[_T], events: Iterable[Event]) -> tuple[_T, ...]:
    return tuple(event for event in events if isinstance(event, cls))
