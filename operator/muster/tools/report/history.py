"""Reads the events of a run directory: those of every replica in every attempt, ordered by time."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, TypeVar

from muster.tools.report.storage import open_regular
from muster_contract.events import Commit, Evaluation, Event, Fingerprint, Resumed, Step, TrainingMeasurement, decode_event

MOST_EVENT_TEXT = 1 << 30
"""The number of characters of a file of events that are read."""
MOST_INVALID = 10_000
"""The number of lines without an event after which the rest of a file is not read. A supervisor writes none but a last one, if it is
killed."""
_LONGEST_LINE = 8 << 20
_LINE = re.compile(rf"[^\n]{{1,{_LONGEST_LINE}}}")
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
    """Attempt -> time of its first and last event, in Unix seconds."""
    trainings: tuple[TrainingMeasurement, ...] = ()

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


def recorded_events(run: Path) -> Iterator[Event]:
    """The events of a run directory, in the order in which each replica wrote them. Omits lines without a valid event, and files of another
    kind."""
    for path in sorted(run.glob("attempts/*/*/events.jsonl")):
        with suppress(OSError), os.fdopen(open_regular(path), encoding="utf-8", errors="replace", newline="\n") as file:
            yield from _events(_lines(file))


def events_in(text: str) -> Iterator[Event]:
    """The events in the text of an `events.jsonl`. Omits lines without a valid event, and all that follows MOST_INVALID of them."""
    return _events(line[0] for line in _LINE.finditer(text))  # not splitlines: the list of a file of empty lines takes eight times its size


def _lines(file: TextIO) -> Iterator[str]:
    """The lines of a file, one at a time, because a file may be large. Nothing follows a line that is too long: no supervisor wrote it."""
    left = MOST_EVENT_TEXT
    while left > 0 and (line := file.readline(_LONGEST_LINE)):
        left -= len(line)
        yield line
        if len(line) == _LONGEST_LINE:
            return


def _events(lines: Iterable[str]) -> Iterator[Event]:
    invalid = 0
    for line in lines:
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            document = None  # the last line of a killed writer may be cut
        if isinstance(document, dict) and _is_recorded(document):
            yield decode_event(document)
        elif (invalid := invalid + 1) == MOST_INVALID:
            return


def _is_recorded(document: dict[str, object]) -> bool:
    """Whether a supervisor wrote the event: it has a name, and its time, replica and attempt are within their bounds."""
    origin = decode_event({**document, "event": ""})
    decoded = (origin.time, origin.role, origin.index, origin.attempt)
    return isinstance(document.get("event"), str) and decoded == tuple(map(document.get, ("time", "role", "index", "attempt")))


def read_history(run: Path) -> History:
    """The history of the run in this directory. Raises ReportError if there is none."""
    if not run.is_dir():
        raise ReportError(f"{run}: no such run directory; `muster run` writes runs/<job name>")
    history = history_of(recorded_events(run))
    if not history.attempt_spans:
        raise ReportError(f"{run}: holds no events; is it the run directory of a `muster run` that trained a task or module?")
    return history


def history_of(unordered: Iterable[Event]) -> History:
    """The history that follows from these events."""
    events = sorted(unordered, key=lambda event: event.time)
    spans: dict[int, tuple[float, float]] = {}
    for event in events:
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
