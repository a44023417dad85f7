"""Reads the events and termination messages of an attempt from the run directory. Supervisors write them even without an operator."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from muster.lifecycle.observed import ReplicaPhase, ReplicaView
from muster.local.event_files import recorded_events
from muster.local.processes import read_termination_message
from muster_contract.reports import Report, TerminationMessage
from muster_contract.run_state import RunState, apply, with_state

_LONGEST_INDEX = 6


@dataclass(frozen=True)
class Traces:
    """The replicas of an attempt as they were when they ended. `last_event` is the time of the newest event; None: there is none."""

    replicas: tuple[ReplicaView, ...]
    last_event: datetime | None


def traces_of(run: Path, attempt: int) -> Traces:
    """The traces of an attempt whose replicas have ended. A replica that was started for an earlier attempt writes to its old folder."""
    states: dict[tuple[str, int], RunState] = {}
    times: dict[tuple[str, int], float] = {}
    for event in recorded_events(run):
        if event.attempt == attempt:
            replica = event.role, event.index
            times[replica] = max(times.get(replica, 0.0), event.time)
            states[replica] = apply(states.get(replica, RunState()), event)
    termination = _termination_message(run, attempt)
    newest = max(times.values(), default=0.0)
    views = (
        _view(replica, states.get(replica, RunState()), attempt, termination=termination.get(replica), end_time=times.get(replica, 0.0))
        for replica in dict.fromkeys([*states, *termination])
    )
    return Traces(tuple(views), datetime.fromtimestamp(newest, UTC) if newest else None)


def _termination_message(run: Path, attempt: int) -> dict[tuple[str, int], TerminationMessage]:
    by_replica = {}
    for path in run.glob("attempts/*/*/termination.json"):
        role, _, index = path.parent.name.rpartition("-")
        termination = read_termination_message(path) if index.isdecimal() and len(index) <= _LONGEST_INDEX else None
        if termination is not None and termination.attempt == attempt:
            by_replica[role, int(index)] = termination
    return by_replica


def _view(
    replica: tuple[str, int], state: RunState, attempt: int, *, termination: TerminationMessage | None, end_time: float
) -> ReplicaView:
    role, index = replica
    label = f"{role}-{index}"
    report = Report(job="", pod=label, role=role, index=index, attempt=attempt, termination=termination)
    ended = datetime.fromtimestamp(end_time, UTC)
    phase = ReplicaPhase.SUCCEEDED if termination is not None and termination.code == 0 else ReplicaPhase.FAILED
    report = with_state(report, state)
    return ReplicaView(label, label, role, index, attempt, phase, ended, finished=ended, report=report, termination=termination)
