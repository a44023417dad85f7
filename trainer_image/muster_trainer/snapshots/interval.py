"""After which steps snapshots are taken: after each Nth, or so that they cost a small share of the time."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

MOST = 0.02
"""Share of the time that snapshots may cost."""
FIRST_STEPS = 10
"""Until the first snapshots of an attempt have shown what they cost."""
_RECENT = 5
_STEPS = 32


@dataclass(frozen=True)
class Cost:
    """What a snapshot took of one rank, in seconds. Training waited for `blocked`. Its other threads had processors for `beside`, which
    training might have used. It was complete after `whole`. `step` is how long a step takes."""

    blocked: float
    beside: float
    whole: float
    step: float


class StepsBetween:
    """The steps between snapshots. They are fixed, or chosen from what snapshots cost. All ranks choose the same.

    Where workers do not wait for one another, a snapshot has to: it costs as many steps as they have batches, `drained`."""

    def __init__(self, fixed: int | None, *, drained: int = 0) -> None:
        self.fixed, self._drained = fixed, drained
        self.steps = fixed or FIRST_STEPS
        self.newest = 0
        """The step of the newest snapshot."""
        self._next = 0
        self._costs: deque[float] = deque(maxlen=_RECENT)
        self._flights: deque[float] = deque(maxlen=_RECENT)
        self._steps: deque[float] = deque(maxlen=_STEPS)

    def start(self, step: int) -> None:
        """Training begins after `step`, or a snapshot is taken after it."""
        self.newest = step
        self._next = step + self.steps

    def is_due(self, step: int) -> bool:
        """Whether a snapshot is to be taken after `step`."""
        return step == self.next_after(step - 1)

    def next_after(self, step: int) -> int:
        """The first step after `step` after which one is to be taken."""
        if self.fixed:
            return (step // self.fixed + 1) * self.fixed
        return max(self._next, step + 1)

    def add_step(self, seconds: float) -> None:
        """Adds the duration of a step of this rank."""
        self._steps.append(seconds)

    @property
    def step_seconds(self) -> float:
        """How long a step of this rank takes."""
        return statistics.median(self._steps) if self._steps else 0.0

    def measure(self, costs: Sequence[Cost]) -> None:
        """Chooses anew after a snapshot, from its `costs` in all ranks. The slowest rank decides, because the others wait for it."""
        step = min(each.step for each in costs)
        if self.fixed or step <= 0:
            return
        self._costs.append(max(each.blocked + each.beside for each in costs) / step + self._drained)
        self._flights.append(max(each.whole for each in costs) / step)
        cost, flight = statistics.median(self._costs), statistics.median(self._flights)
        self.steps = max(1, math.ceil(cost / MOST), math.ceil(flight))
