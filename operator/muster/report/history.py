"""Reads a run directory: the events of every replica of every attempt, in the order in which they happened."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, WrapValidator

from muster.api import reports
from muster.api.text import printable


class ReportError(ValueError):
    """A run that cannot be reported on, with the reason."""


def _otherwise(default: object) -> WrapValidator:
    """Takes `default` in place of a value that is out of bounds or of another type."""

    def validated(value: object, handler: Any) -> object:
        try:
            return handler(value)
        except ValidationError:
            return default

    return WrapValidator(validated)


def _passed_over(value: object) -> list[str]:
    """The checkpoints of the list `skipped`, each with its reason."""
    entries = [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
    return [printable(f"{entry.get('path', 'a checkpoint')}: {entry.get('reason', 'no reason was given')}") for entry in entries]


def _numbers(value: object) -> dict[str, float]:
    """The entries of a mapping that are numbers."""
    found = {}
    for name, number in value.items() if isinstance(value, dict) else ():
        try:
            found[printable(str(name))] = _NUMBER.validate_python(number)
        except ValidationError:
            continue
    return found


def _text(value: object) -> str:
    """A property of an environment. A list (of devices) becomes one text."""
    return printable("" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value))


_NUMBER = TypeAdapter(reports.Figure)
_Seconds = Annotated[reports.Seconds, _otherwise(0.0)]
_Text = Annotated[str, BeforeValidator(_text)]


class Entry(reports.WireModel):
    """An event: when it was written (Unix seconds), and in which attempt. A figure that it lacks, or that is wrong, has its default."""

    attempt: reports.Attempt
    time: reports.UnixSeconds


T = TypeVar("T", bound=Entry)


class _Origin(Entry):
    """What every event has, whatever the program writes, because the supervisor sees to it."""

    event: str
    role: reports.Name
    index: reports.Rank


class Step(Entry):
    """One training step as rank 0 saw it end at `time` after `seconds`."""

    step: reports.Step
    seconds: _Seconds = 0.0
    loss: Annotated[float, _otherwise(math.nan)] = math.nan
    loss_hex: Annotated[str, _otherwise("")] = ""
    """Empty where it is not known."""
    samples: Annotated[reports.Step, _otherwise(0)] = 0
    input_seconds: _Seconds = 0.0
    """of `seconds`, the longest time that a rank waited for its samples"""
    total_steps: Annotated[reports.Step | None, _otherwise(None)] = None


class Commit(Entry):
    """The checkpoint of `step` becoming valid at `time` after `seconds` of saving, for `blocked_seconds` of which training waited."""

    step: Annotated[reports.Step, _otherwise(0)] = 0
    seconds: _Seconds = 0.0
    blocked_seconds: Annotated[reports.Seconds | None, _otherwise(None)] = None
    """None: all of `seconds`."""


class Start(Entry):
    """An attempt finding its starting point: `step` it goes on from, the newest commit `found`, and what it passed over."""

    step: reports.Step
    found: Annotated[reports.Step | None, _otherwise(None)] = None
    skipped: Annotated[tuple[str, ...], BeforeValidator(_passed_over)] = ()


class Evaluation(Entry):
    """The metrics of the model after `step`."""

    step: reports.Step
    metrics: Annotated[dict[str, float], BeforeValidator(_numbers), Field(min_length=1)]


class Process(Entry):
    """The software and the devices of one process."""

    role: reports.Name
    index: reports.Rank
    rank: Annotated[reports.Rank, _otherwise(0)] = 0
    framework: _Text = ""
    version: _Text = ""
    python: _Text = ""
    devices: _Text = ""
    host: _Text = ""


class Training(Entry):
    """The measurement of a process that came to the end of its steps."""

    what: Literal["training"]
    seconds: _Seconds = 0.0
    own_seconds: Annotated[reports.Seconds | None, _otherwise(None)] = None
    """of `seconds`, those in which it worked, as against waiting for others"""
    peak_bytes: Annotated[reports.Step | None, _otherwise(None)] = None


@dataclass(frozen=True)
class History:
    """All that a run's processes said."""

    steps: tuple[Step, ...]
    commits: tuple[Commit, ...]
    starts: tuple[Start, ...]
    evaluations: tuple[Evaluation, ...]
    fingerprints: tuple[Process, ...]
    attempt_spans: dict[int, tuple[float, float]]
    """attempt -> time of its first and last event"""
    trainings: tuple[Training, ...] = ()

    @property
    def curve(self) -> dict[int, Step]:
        """step -> the execution of it that counts: the one of the last attempt that did it."""
        return {step.step: step for step in sorted(self.steps, key=lambda step: (step.attempt, step.step))}

    @property
    def attempts(self) -> list[int]:
        """The attempts that did a step, in order."""
        return sorted({step.attempt for step in self.steps})

    @property
    def redone(self) -> tuple[Step, ...]:
        """Executions whose results were lost, because a later attempt did the step again."""
        counted = self.curve
        return tuple(step for step in self.steps if counted[step.step] is not step)


def events_of(run: Path) -> Iterator[dict[str, Any]]:
    """The events of a run directory as they were written. Lines that are no event are left out."""
    for path in sorted(run.glob("attempts/*/*/events.jsonl")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                event = json.loads(line)
                _Origin.model_validate(event, strict=True)
            except (ValueError, RecursionError):
                continue  # the last line of a killed writer may be cut
            yield event


def read_history(run: Path) -> History:
    """The history of the run in this directory; ReportError when there is none."""
    if not run.is_dir():
        raise ReportError(f"{run}: no such run directory; `muster run` writes runs/<job name>")
    events = sorted(events_of(run), key=lambda event: float(event["time"]))
    if not events:
        raise ReportError(f"{run}: holds no events; is it the run directory of a `muster run` that trained a task or module?")
    spans: dict[int, tuple[float, float]] = {}
    for event in events:
        first, last = spans.get(event["attempt"], (event["time"], event["time"]))
        spans[event["attempt"]] = (min(first, event["time"]), max(last, event["time"]))

    def of(model: type[T], kind: str, *, chief: bool = True) -> tuple[T, ...]:
        found = (event for event in events if event["event"] == kind and (not chief or event.get("rank", 0) == 0))
        return tuple(entry for event in found if (entry := _read(model, event)) is not None)

    return History(
        steps=of(Step, "step"),
        commits=of(Commit, "commit"),
        starts=of(Start, "resumed"),
        evaluations=of(Evaluation, "evaluation"),
        fingerprints=of(Process, "fingerprint", chief=False),
        attempt_spans=spans,
        trainings=of(Training, "measurement", chief=False),
    )


def _read(model: type[T], event: dict[str, Any]) -> T | None:
    """None where the event of a user's own program lacks what such an event must have, or that is wrong."""
    try:
        return model.model_validate(event)
    except ValidationError:
        return None
