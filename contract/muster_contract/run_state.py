"""The state of a run, computed from the events of its processes. The supervisor, the local runner and the report page share it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from muster_contract.events import (
    MAX_PROCESSES,
    MAX_SECONDS,
    Activity,
    Commit,
    ErrorEvent,
    Evaluation,
    Event,
    Fingerprint,
    NoticeEvent,
    Pace,
    PhaseEvent,
    Resumed,
    Save,
    Snapshot,
    Step,
    WholeState,
)
from muster_contract.notices import Notice
from muster_contract.reports import MAX_NOTICES, Marks, Progress, Report

RATE_STEPS = 20
"""The number of last steps over which samples per second are averaged."""
_LARGEST_RATE = 1e300

_T = TypeVar("_T")


@dataclass(frozen=True)
class RunState:
    """The newest event of each kind. `first_rank` is the rank whose phase counts. None stands for any rank."""

    first_rank: int | None = None
    phase: str = Activity.STARTING
    progress: Progress | None = None
    checkpoint: Commit | None = None
    snapshot: Snapshot | None = None
    resumed: Resumed | None = None
    rescues: bool = False
    """Whether a process saves the state after its last step if it loses its peers."""
    waits: bool = False
    """Whether a process that loses its peers waits for the next attempt."""
    evaluation: Evaluation | None = None
    fingerprints: Mapping[int, Fingerprint] = field(default_factory=dict)
    ranks: Mapping[int, Pace] = field(default_factory=dict)
    errors: Mapping[int, ErrorEvent] = field(default_factory=dict)
    marks: Marks = field(default_factory=Marks)
    saved_seconds: float = 0.0
    notices: tuple[Notice, ...] = ()
    recent: tuple[tuple[int, float], ...] = ()
    """Samples and seconds of the last steps."""

    @property
    def is_saved(self) -> bool:
        """Whether the newest commit has all steps. False for a program that reports no steps, because it may have done more."""
        return self.progress is not None and self.checkpoint is not None and self.checkpoint.step >= self.progress.step


def apply(state: RunState, event: Event) -> RunState:
    """The state after the event."""
    match event:
        case PhaseEvent():
            return _with_phase(state, event)
        case Step():
            return _with_step(state, event)
        case Save():
            saved = min(MAX_SECONDS, state.saved_seconds + event.waited_seconds)
            return replace(state, checkpoint=_newest_commit(state, event), saved_seconds=saved)
        case Snapshot():
            return replace(state, snapshot=event)
        case Resumed():
            return replace(state, resumed=event, marks=_marked(state.marks, "resumed", event))
        case WholeState():
            return replace(state, rescues=True, waits=state.waits or event.waits)
        case Evaluation():
            return replace(state, evaluation=event)
        case Fingerprint():
            return replace(state, fingerprints=_with_rank(state.fingerprints, event.rank, event))
        case Pace():
            return replace(state, ranks=_with_rank(state.ranks, event.rank, event))
        case NoticeEvent():
            return with_notice(state, event.notice)
        case ErrorEvent():
            return replace(state, errors=_with_rank(state.errors, event.rank, event))
    return state


def with_notice(state: RunState, notice: Notice) -> RunState:
    """The state with the notice. It does not change if it has the notice already, or if there is no room."""
    if notice in state.notices or len(state.notices) >= MAX_NOTICES:
        return state
    return replace(state, notices=(*state.notices, notice))


def with_state(report: Report, state: RunState) -> Report:
    """The report, with the state that follows from the events."""
    return replace(
        report,
        phase=state.phase,
        progress=state.progress,
        checkpoint=state.checkpoint,
        snapshot=state.snapshot,
        resumed=state.resumed,
        evaluation=state.evaluation,
        fingerprints=tuple(each for _, each in sorted(state.fingerprints.items())),
        ranks=tuple(each for _, each in sorted(state.ranks.items())),
        marks=state.marks,
        saved_seconds=round(state.saved_seconds, 3),
        notices=state.notices,
    )


def _with_phase(state: RunState, event: PhaseEvent) -> RunState:
    if state.first_rank not in (None, event.rank):
        return state
    marks = _marked(state.marks, "restoring", event) if event.phase == Activity.RESTORING else state.marks
    return replace(state, phase=event.phase, marks=marks)


def _newest_commit(state: RunState, event: Save) -> Commit | None:
    """The newest commit. Several ranks that have lost their peers may save, and each saves its own last step."""
    old = state.checkpoint
    return event if isinstance(event, Commit) and not (event.rank and old and event.step <= old.step) else old


def _with_step(state: RunState, event: Step) -> RunState:
    if event.rank and state.progress and event.step <= state.progress.step:
        return state  # the event of a rank that has lost its peers; another rank has reported this step
    recent = (*state.recent, (event.samples, event.seconds))[-RATE_STEPS:]
    seconds = sum(seconds for _, seconds in recent)
    rate = round(sum(samples for samples, _ in recent) / seconds, 3) if seconds > 1e-9 else None
    progress = Progress(
        step=event.step,
        total_steps=event.total_steps,
        epoch=event.epoch,
        loss=event.loss if event.loss is not None or state.progress is None else state.progress.loss,
        samples_per_second=rate if rate is not None and rate <= _LARGEST_RATE else None,
        remaining_seconds=event.remaining_seconds,
        updated_at=event.time,
    )
    is_new = state.resumed is None or event.step > state.resumed.step  # the last step before a snapshot in memory is reported again
    return replace(state, recent=recent, progress=progress, marks=_marked(state.marks, "stepped", event) if is_new else state.marks)


def _marked(marks: Marks, name: str, event: Event) -> Marks:
    return replace(marks, **{name: event.time}) if getattr(marks, name) is None else marks


def _with_rank(by_rank: Mapping[int, _T], rank: int, value: _T) -> Mapping[int, _T]:
    if rank not in by_rank and len(by_rank) >= MAX_PROCESSES:
        return by_rank
    return {**by_rank, rank: value}
