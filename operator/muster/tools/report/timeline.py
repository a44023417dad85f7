"""The use of wall-clock time in a run. Every moment belongs to one kind, so the parts add up to the whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from muster.tools.report.history import History


class Kind(StrEnum):
    """The use of a moment, in the same words as status.goodput."""

    STARTING = "starting"
    UNREPORTED = "unreported"
    PRODUCTIVE = "productive"
    CHECKPOINT = "checkpoint"
    REDONE = "redone"
    RECOVERING = "recovering"
    SUSPENDED = "suspended"


@dataclass(frozen=True)
class Span:
    """The time [begin, end) of an attempt, in Unix seconds."""

    kind: Kind
    attempt: int
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin


def timeline(history: History, *, begin: float, end: float, suspended_after: Iterable[int] = ()) -> list[Span]:
    """The run from `begin` to `end`, in Unix seconds, as spans without gaps.

    A step covers its seconds before the time of its event. A save covers the seconds at its beginning in which training waited. The time
    before an attempt's first step is its start. The time between two attempts is recovery, or suspension if the earlier attempt is in
    `suspended_after`. Evaluation and the loop itself are productive. If a program reports no steps, the time of its processes is
    unreported.
    """
    paused = set(suspended_after)
    lost = {(step.attempt, step.step) for step in history.redone}
    marks: dict[int, list[tuple[float, float, Kind]]] = {attempt: [] for attempt in history.attempt_spans}
    for step in history.steps:
        kind = Kind.REDONE if (step.attempt, step.step) in lost else Kind.PRODUCTIVE
        marks[step.attempt].append((step.time - step.seconds, step.time, kind))
    for commit in history.commits:
        saved_from = commit.time - (commit.seconds or 0.0)
        marks[commit.attempt].append((saved_from, saved_from + commit.waited_seconds, Kind.CHECKPOINT))

    spans: list[Span] = []
    now = begin
    previous: int | None = None
    for attempt in sorted(history.attempt_spans):
        first, last = history.attempt_spans[attempt]
        if previous is None:
            waiting = Kind.STARTING
        elif previous in paused:
            now = _extend(spans, Kind.SUSPENDED, attempt, now, first)
            waiting = Kind.STARTING
        else:
            waiting = Kind.RECOVERING
        current = waiting
        if not history.steps:
            now, current = _extend(spans, waiting, attempt, now, first), Kind.UNREPORTED
        for mark_begin, mark_end, kind in sorted(marks[attempt]):
            now = _extend(spans, current, attempt, now, mark_begin)
            now = _extend(spans, kind, attempt, now, mark_end)
            current = Kind.PRODUCTIVE if kind is Kind.CHECKPOINT else kind
        now = _extend(spans, current, attempt, now, last)
        previous = attempt
    if previous is not None:
        ran = Kind.PRODUCTIVE if history.steps else Kind.UNREPORTED
        _extend(spans, Kind.SUSPENDED if previous in paused else ran, previous, now, end)
    return spans


def _extend(spans: list[Span], kind: Kind, attempt: int, begin: float, end: float) -> float:
    """Appends [begin, end) unless it is empty, and joins it to the last span if both have one kind and attempt. Returns the new end."""
    if end <= begin:
        return begin
    if spans and spans[-1].kind is kind and spans[-1].attempt == attempt:
        begin = spans.pop().begin
    spans.append(Span(kind, attempt, begin, end))
    return end


def coarse(spans: Iterable[Span], *, least: float) -> list[Span]:
    """The spans of each attempt. A span shorter than `least` seconds is joined to the next one. The joined span has the kind of the longer
    one."""
    joined: list[Span] = []
    for span in spans:
        before = joined[-1] if joined and joined[-1].attempt == span.attempt else None
        if before is not None and before.seconds < least:
            kind = before.kind if before.seconds >= span.seconds else span.kind
            joined[-1] = Span(kind, span.attempt, before.begin, span.end)
        else:
            joined.append(span)
    return joined


def seconds_by_kind(spans: Iterable[Span]) -> Mapping[Kind, float]:
    """Seconds of each kind, for all kinds."""
    totals = dict.fromkeys(Kind, 0.0)
    for span in spans:
        totals[span.kind] += span.seconds
    return totals


def goodput(totals: Mapping[Kind, float]) -> float | None:
    """Productive time / (wall time - suspension), as status.goodput.ratio. None if the program has reported no step."""
    if totals[Kind.UNREPORTED]:
        return None
    wall = sum(totals.values()) - totals[Kind.SUSPENDED]
    return totals[Kind.PRODUCTIVE] / wall if wall > 0 else 0.0
