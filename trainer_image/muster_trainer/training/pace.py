"""Measures the time in which a rank works in a step without waiting. It shows stragglers, while the time of a whole step does not, because
all ranks of a synchronous world take the same time for a step."""

from __future__ import annotations

import time
from statistics import median

from muster_contract.events import Pace as PaceEvent
from muster_contract.events import TrainingMeasurement

EVENT_SECONDS = 1.0  # time between two events, which also show that this rank is alive
WINDOW_SECONDS = 5.0
LEAST_STEPS = 8


class Pace:
    """Medians over windows of steps, so that a single slow step does not matter. Time between steps, such as saves, is not included."""

    def __init__(self) -> None:
        self._since = self._sent = time.monotonic()
        self._seconds: list[float] = []
        self._own: list[float] = []
        self._medians = PaceEvent()
        self._steps = 0
        self._sum = self._own_sum = 0.0
        self._measures_all = False

    def sums(self) -> TrainingMeasurement:
        """The sums over all steps except the first, in which frameworks compile and warm up. `own_seconds` is set only if the strategy
        measures all of a step."""
        own = round(self._own_sum, 6) if self._measures_all else None
        return TrainingMeasurement(steps=max(0, self._steps - 1), seconds=round(self._sum, 6), own_seconds=own)

    def add(self, *, seconds: float, own: float | None, whole: bool) -> PaceEvent | None:
        """Adds a step of `seconds`, in which this rank worked for `own` seconds. `own` is None if the strategy does not measure it.

        `whole` is True if `own` includes the forward and backward passes. Returns an event when one is due, with the medians of the last
        full window.
        """
        now = time.monotonic()
        self._steps += 1
        self._measures_all = whole and own is not None
        if self._steps > 1:
            self._sum += seconds
            self._own_sum += min(own or 0.0, seconds)
        if own is not None:
            self._seconds.append(seconds)
            self._own.append(own)
        if len(self._own) >= LEAST_STEPS and now - self._since >= WINDOW_SECONDS:
            self._medians = PaceEvent(seconds=round(median(self._seconds), 6), own_seconds=round(median(self._own), 6))
            self._since, self._seconds, self._own = now, [], []
        if now - self._sent < EVENT_SECONDS:
            return None
        self._sent = now
        return self._medians
