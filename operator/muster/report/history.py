"""Reads a run directory: the events of every replica of every attempt, in the order in which they happened."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class ReportError(ValueError):
    """A run that cannot be reported on, with the reason."""


@dataclass(frozen=True)
class Step:
    """One training step as rank 0 saw it end at `time` (Unix seconds) after `seconds`."""

    attempt: int
    step: int
    time: float
    seconds: float
    loss: float
    loss_hex: str
    samples: int
    input_seconds: float = 0.0
    """of `seconds`, the longest time that a rank waited for its samples"""
    total_steps: int | None = None


@dataclass(frozen=True)
class Commit:
    """A checkpoint becoming valid at `time` after `seconds` of saving, for `blocked_seconds` of which training waited."""

    attempt: int
    step: int
    time: float
    seconds: float
    blocked_seconds: float
    bytes: int
    reason: str


@dataclass(frozen=True)
class Start:
    """An attempt finding its starting point: `step` it goes on from, the newest commit `found`, and what it passed over."""

    attempt: int
    time: float
    step: int
    found: int | None
    skipped: tuple[str, ...]


@dataclass(frozen=True)
class History:
    """All that a run's processes said."""

    steps: tuple[Step, ...]
    commits: tuple[Commit, ...]
    starts: tuple[Start, ...]
    evaluations: tuple[tuple[int, dict[str, float]], ...]
    fingerprints: tuple[dict[str, Any], ...]
    attempt_spans: dict[int, tuple[float, float]]
    """attempt -> time of its first and last event"""
    trainings: tuple[dict[str, Any], ...] = ()
    """the measurement `training` of each process that came to the end of its steps"""

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
    for path in sorted(run.glob("attempts/*/*/events.jsonl")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue  # the last line of a killed writer may be cut
            if isinstance(event, dict) and "event" in event and "time" in event:
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

    def of(kind: str, *, chief: bool = True) -> list[dict[str, Any]]:
        return [event for event in events if event["event"] == kind and (not chief or event.get("rank", 0) == 0)]

    return History(
        steps=tuple(
            Step(
                attempt=event["attempt"],
                step=event["step"],
                time=event["time"],
                seconds=event["seconds"],
                loss=float(event["loss"]),
                loss_hex=event["lossHex"],
                samples=event["samples"],
                input_seconds=event.get("inputSeconds", 0.0),
                total_steps=event.get("totalSteps"),
            )
            for event in of("step")
        ),
        commits=tuple(
            Commit(
                attempt=event["attempt"],
                step=event["step"],
                time=event["time"],
                seconds=event["seconds"],
                blocked_seconds=event.get("blockedSeconds", event["seconds"]),
                bytes=event["bytes"],
                reason=event["reason"],
            )
            for event in of("commit")
        ),
        starts=tuple(
            Start(
                attempt=event["attempt"],
                time=event["time"],
                step=event["step"],
                found=event.get("found"),
                skipped=tuple(f"{skipped['path']}: {skipped['reason']}" for skipped in event.get("skipped", ())),
            )
            for event in of("resumed")
        ),
        evaluations=tuple((event["step"], event["metrics"]) for event in of("evaluation")),
        fingerprints=tuple(of("fingerprint", chief=False)),
        attempt_spans=spans,
        trainings=tuple(event for event in of("measurement", chief=False) if event.get("what") == "training"),
    )
