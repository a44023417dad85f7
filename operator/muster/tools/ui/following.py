"""Reads the events of a run directory while it grows."""

from __future__ import annotations

from pathlib import Path

from muster.local.event_files import events_in
from muster.local.follow import LogFollower
from muster.tools.report.history import History, history_of
from muster_contract.events import Event, Pace, PhaseEvent, Step

MOST_STEPS = 20_000


class RunFollower:
    """The history of a run. Each call reads the events written since the last one. If there are very many steps, it stores only every
    second, fourth, ..."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._follower = LogFollower()
        self._identity: tuple[int, int] | None = None
        self._events: list[Event] = []
        self._steps: list[Step] = []
        self._stride = 1

    def history(self) -> History | None:
        """The history so far. None if there is no event yet."""
        self._begin_anew_if_replaced()
        for path in sorted(self._run.glob("attempts/*/*/events.jsonl")):
            while lines := self._follower.lines(path):
                self._take(lines)
        events = [*self._events, *self._steps]
        return history_of(events) if events else None

    def _begin_anew_if_replaced(self) -> None:
        """Starts over if another run is in the directory."""
        stat = self._run.stat()
        if self._identity not in (None, (stat.st_dev, stat.st_ino)):
            self._follower, self._events, self._steps, self._stride = LogFollower(), [], [], 1
        self._identity = stat.st_dev, stat.st_ino

    def _take(self, lines: list[str]) -> None:
        for event in events_in("\n".join(lines)):
            if isinstance(event, Step):
                if self._is_stored(event):
                    self._steps.append(event)
            elif not isinstance(event, Pace | PhaseEvent):
                self._events.append(event)
        while len(self._steps) > MOST_STEPS:
            self._stride *= 2
            self._steps = [step for step in self._steps if self._is_stored(step)]

    def _is_stored(self, step: Step) -> bool:
        """Step 0, which a program may report many times, is a multiple of every stride, and so must not stay."""
        return self._stride == 1 or (step.step > 0 and step.step % self._stride == 0)
