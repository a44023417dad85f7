"""What the replicas of an attempt have left in the run directory: supervisors go on, and save, when nobody hears their reports any more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from muster.api.reports import Evaluation, LastWords, Marks, Report, ReportedCommit, ReportedProgress, Resumed
from muster.api.spec import RoleName
from muster.lifecycle.observed import ReplicaPhase, ReplicaView
from muster.local.processes import read_last_words
from muster.report.history import events_of


@dataclass
class _Trace:
    """What the events of one replica add up to, as its supervisor would report it."""

    seen: float = 0.0
    saved_seconds: float = 0.0
    told: dict[str, Any] = field(default_factory=dict)
    marks: dict[str, float] = field(default_factory=dict)

    def add(self, event: Mapping[str, Any]) -> None:
        """Raises ValidationError for an event of a user's own script that is not what the contract says."""
        self.seen = max(self.seen, event["time"])
        match event["event"]:
            case "phase" if event.get("phase") == "Restoring":
                self.marks.setdefault("restoring", event["time"])
            case "resumed":
                self.told["resumed"] = Resumed.model_validate(event)
                self.marks.setdefault("resumed", event["time"])
            case "step":
                loss = None if event.get("loss") is None else str(event["loss"])
                self.told["progress"] = ReportedProgress.model_validate({**event, "loss": loss})
                self.marks.setdefault("stepped", event["time"])
            case "commit":
                commit = ReportedCommit.model_validate({"path": "", **event, "committedAt": event["time"]})
                self.told["checkpoint"] = commit
                blocked = commit.seconds if commit.blocked_seconds is None else commit.blocked_seconds
                self.saved_seconds += max(0.0, blocked or 0.0)
            case "evaluation":
                self.told["evaluation"] = Evaluation.model_validate(event)


@dataclass(frozen=True)
class Traces:
    """The replicas of an attempt as they were when they ended; `seen` is the last that is known of any, None where nothing is."""

    replicas: tuple[ReplicaView, ...]
    seen: datetime | None


def traces_of(run: Path, attempt: int) -> Traces:
    """The traces of an attempt, none of whose replicas may run any more. One that was kept from an earlier attempt writes to that one's
    folder."""
    found: dict[tuple[str, int], _Trace] = {}
    for event in events_of(run):
        if event.get("attempt") == attempt:
            trace = found.setdefault((event["role"], event["index"]), _Trace())
            try:
                trace.add(event)
            except ValidationError:
                continue
    words = _last_words(run, attempt)
    for place in words:
        found.setdefault(place, _Trace())
    seen = max((trace.seen for trace in found.values()), default=0.0)
    last = datetime.fromtimestamp(seen, UTC) if seen else None
    return Traces(tuple(_view(place, trace, attempt, words.get(place)) for place, trace in found.items()), last)


def _last_words(run: Path, attempt: int) -> dict[tuple[str, int], LastWords]:
    found = {}
    for path in run.glob("attempts/*/*/termination.json"):
        words = read_last_words(path)
        if words is not None and words.attempt == attempt:
            role, _, index = path.parent.name.rpartition("-")
            found[role, int(index)] = words
    return found


def _view(place: tuple[str, int], trace: _Trace, attempt: int, words: LastWords | None) -> ReplicaView:
    role, index = place
    label = f"{role}-{index}"
    report = Report(
        job="",
        pod=label,
        role=role,
        index=index,
        attempt=attempt,
        marks=Marks(**trace.marks),
        saved_seconds=trace.saved_seconds,
        last_words=words,
        **trace.told,
    )
    ended = datetime.fromtimestamp(trace.seen, UTC)
    phase = ReplicaPhase.SUCCEEDED if words is not None and words.code == 0 else ReplicaPhase.FAILED
    return ReplicaView(label, label, RoleName(role), index, attempt, phase, ended, finished=ended, report=report, last_words=words)
