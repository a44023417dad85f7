"""What the events of a replica add up to: the content of its reports. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from muster_trainer.supervisor.events import LARGEST_NUMBER, LONGEST_TIME, Event, duration, number, whole

RATE_STEPS = 20  # samples per second are taken over so many steps

# The coordinator refuses a report that exceeds these. It cuts texts at the same lengths.
MOST_NOTICES = 50
MOST_SKIPPED = 100
MOST_METRICS = 64
MOST_LIBRARIES = 64
MOST_RANKS = 64
LONGEST_WORD, LONGEST_LINE = 64, 1024
_PROPERTIES = ("rank", "python", "framework", "version", "devices", "threads", "libraries")


class Observations:
    """State built up from events. Readers of a report may rely on the types: an event of a user's own script that
    lacks its step tells nothing, and any other field that is not what the contract says is None or left out."""

    def __init__(self, ranks: list[int]) -> None:
        self._ranks = ranks
        self._rates: deque[tuple[float, float]] = deque(maxlen=RATE_STEPS)
        self.phase = "Starting"
        self.progress: dict[str, Any] | None = None
        self.checkpoint: dict[str, Any] | None = None
        self.resumed: dict[str, Any] | None = None
        self.rescues = False
        self.evaluation: dict[str, Any] | None = None
        self.fingerprints: dict[int, dict[str, Any]] = {}
        self.marks: dict[str, float] = {}
        self.saved_seconds = 0.0
        self.paces: dict[int, dict[str, Any]] = {}
        self.notices: list[str] = []
        self.errors: dict[int, Event] = {}
        self.commit_reasons: set[str] = set()

    @property
    def step(self) -> int | None:
        return self.progress["step"] if self.progress else None

    @property
    def loss(self) -> str | None:
        return self.progress["loss"] if self.progress else None

    @property
    def evaluated(self) -> tuple[int, Mapping[str, float]] | None:
        return (self.evaluation["step"], self.evaluation["metrics"]) if self.evaluation else None

    @property
    def resumed_step(self) -> int | None:
        return self.resumed["step"] if self.resumed else None

    @property
    def commit(self) -> tuple[int, str] | None:
        """Step and path of the last commit."""
        return (self.checkpoint["step"], self.checkpoint["path"]) if self.checkpoint else None

    @property
    def saved(self) -> bool:
        """Whether the last step told is in the newest commit. Of a program that tells no steps that is not known."""
        return self.step is not None and self.commit is not None and self.commit[0] >= self.step

    def notice(self, message: str) -> None:
        message = message[:LONGEST_LINE]
        if message not in self.notices and len(self.notices) < MOST_NOTICES:
            self.notices.append(message)

    def apply(self, event: Event, *, stop_asked: bool) -> None:
        match event["event"]:
            case "phase":
                self._on_phase(event)
            case "step":
                self._on_step(event)
            case "commit":
                self._on_commit(event, stop_asked=stop_asked)
            case "resumed":
                self._on_resumed(event)
            case "evaluation":
                self._on_evaluation(event)
            case "fingerprint":
                self._on_fingerprint(event)
            case "pace":
                self._on_pace(event)
            case "notice":
                self.notice(str(event.get("message")))
            case "error":
                self.errors[event["rank"]] = event

    def _on_phase(self, event: Event) -> None:
        phase = _text(event.get("phase"), LONGEST_WORD)
        if phase and event["rank"] == self._ranks[0]:
            self.phase = phase
            if phase == "Restoring":
                self.marks.setdefault("restoring", event["time"])

    def _on_resumed(self, event: Event) -> None:
        step = whole(event.get("step"))
        if step is None:
            return
        self.marks.setdefault("resumed", event["time"])
        self.rescues = event.get("rescues") is True
        skipped = event.get("skipped")
        self.resumed = {
            "found": whole(event.get("found")),
            "step": step,
            "path": _text(event.get("path"), LONGEST_LINE),
            "skipped": [
                {"path": str(item.get("path"))[:LONGEST_LINE], "reason": str(item.get("reason"))[:LONGEST_LINE]}
                for item in (skipped if isinstance(skipped, list) else [])[:MOST_SKIPPED]
                if isinstance(item, dict)
            ],
        }

    def _on_step(self, event: Event) -> None:
        step, samples, seconds = whole(event.get("step")), number(event.get("samples")), number(event.get("seconds"))
        if step is None:
            return
        self.marks.setdefault("stepped", event["time"])
        if samples is not None and seconds is not None and seconds >= 0:
            self._rates.append((samples, seconds))
        time = sum(seconds for _, seconds in self._rates)
        rate = round(sum(samples for samples, _ in self._rates) / time, 3) if time > 1e-9 else None
        self.progress = {
            "step": step,
            "totalSteps": whole(event.get("totalSteps")),
            "epoch": whole(event.get("epoch")),
            "loss": None if event.get("loss") is None else str(event["loss"])[:LONGEST_WORD],
            "samplesPerSecond": rate if rate is not None and abs(rate) <= LARGEST_NUMBER else None,
            "updatedAt": event["time"],
        }

    def _on_commit(self, event: Event, *, stop_asked: bool) -> None:
        step, path = whole(event.get("step")), _text(event.get("path"), LONGEST_LINE)
        reason = _text(event.get("reason"), LONGEST_WORD) or "Periodic"
        times = {name: duration(event.get(name)) for name in ("seconds", "blockedSeconds")}
        blocked = times["seconds"] if times["blockedSeconds"] is None else times["blockedSeconds"]
        self.saved_seconds = min(LONGEST_TIME, self.saved_seconds + (blocked or 0.0))
        if step is not None:
            self.checkpoint = {"step": step, "path": path or "", "committedAt": event["time"], **times}
        if stop_asked or reason in ("Stop", "Final"):
            self.commit_reasons.add(reason)

    def _on_evaluation(self, event: Event) -> None:
        step, metrics = whole(event.get("step")), event.get("metrics")
        if step is not None and isinstance(metrics, dict):
            kept = {name[:LONGEST_WORD]: value for name, raw in metrics.items() if (value := number(raw)) is not None}
            self.evaluation = {"step": step, "metrics": dict(sorted(kept.items())[:MOST_METRICS]), "updatedAt": event["time"]}

    def _on_fingerprint(self, event: Event) -> None:
        found = {name: event[name] for name in _PROPERTIES if name in event}
        if isinstance(found.get("libraries"), dict):
            found["libraries"] = dict(list(found["libraries"].items())[:MOST_LIBRARIES])
        self.fingerprints[event["rank"]] = found

    def _on_pace(self, event: Event) -> None:
        figures = {"seconds": duration(event.get("seconds")), "ownSeconds": duration(event.get("ownSeconds"))}
        self.paces[event["rank"]] = {"rank": event["rank"], "step": whole(event.get("step")), "updatedAt": event["time"], **figures}

    def as_report(self) -> Mapping[str, Any]:
        """The part of a report that comes from events; safe to hand to another thread."""
        return {
            "phase": self.phase,
            "progress": self.progress,
            "checkpoint": self.checkpoint,
            "resumed": self.resumed,
            "evaluation": self.evaluation,
            "fingerprints": [self.fingerprints[rank] for rank in sorted(self.fingerprints)[:MOST_RANKS]],
            "marks": dict(self.marks),
            "savedSeconds": round(self.saved_seconds, 3),
            "ranks": [self.paces[rank] for rank in sorted(self.paces)[:MOST_RANKS]],
            "notices": list(self.notices),
        }


def _text(value: object, most: int) -> str | None:
    return value[:most] if isinstance(value, str) else None
