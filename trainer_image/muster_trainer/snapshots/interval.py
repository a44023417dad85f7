"""Decides after which steps snapshots are taken: after each Nth step, or so that they take a small share of the time."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

MOST = 0.02
"""The share of the time that snapshots may take."""
SPREAD = 2
"""The measured cost of the slowest rank counts so many times. `bench.memory` found that snapshots take 1.2 to 1.7 times that cost, probably
because delays of different ranks add up when ranks wait for each other."""
FIRST_STEPS = 1
"""The steps between snapshots until the first snapshots of an attempt have been measured."""
_RECENT = 5
_STEPS = 32


@dataclass(frozen=True)
class Cost:
    """The cost of a snapshot on one rank, in seconds.

    Training waited for the time `blocked`. Other threads worked on the snapshot for `beside`, which is processor time that training might
    have used. The snapshot was complete after `whole`. `step` is the duration of a step.
    """

    blocked: float
    beside: float
    whole: float
    step: float


class StepsBetween:
    """The number of steps between snapshots. It is fixed, or chosen by the cost of snapshots. All ranks choose the same number."""

    def __init__(self, fixed: int | None) -> None:
        self.fixed = fixed
        self.steps = fixed or FIRST_STEPS
        self.newest = 0
        """The step of the newest snapshot."""
        self._next = 0
        self._costs: deque[float] = deque(maxlen=_RECENT)
        self._flights: deque[float] = deque(maxlen=_RECENT)
        self._steps: deque[float] = deque(maxlen=_STEPS)

    def start(self, step: int) -> None:
        """Records that training begins after `step`, or that a snapshot is taken after `step`."""
        self.newest = step
        self._next = step + self.steps

    def is_due(self, step: int) -> bool:
        """Whether a snapshot is due after `step`."""
        return step == self.next_after(step - 1)

    def next_after(self, step: int) -> int:
        """The first later step than `step` after which a snapshot is due."""
        if self.fixed:
            return (step // self.fixed + 1) * self.fixed
        return max(self._next, step + 1)

    def add_step(self, seconds: float) -> None:
        """Adds the duration of a step of this rank."""
        self._steps.append(seconds)

    @property
    def step_seconds(self) -> float:
        """The duration of a step of this rank."""
        return statistics.median(self._steps) if self._steps else 0.0

    def measure(self, costs: Sequence[Cost]) -> None:
        """Chooses the number of steps again after a snapshot, from its `costs` on all ranks. The slowest rank decides, because the others
        wait for it."""
        step = min(each.step for each in costs)
        if self.fixed or step <= 0:
            return
        self._costs.append(SPREAD * max(each.blocked + each.beside for each in costs) / step)
        self._flights.append(max(each.whole for each in costs) / step)
        cost, flight = statistics.median(self._costs), statistics.median(self._flights)
        self.steps = max(1, math.ceil(cost / MOST), math.ceil(flight))
