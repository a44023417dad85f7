"""How long a rank works in a step by itself: what makes it a straggler, though in a synchronous world all steps take equally long."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

TELL_SECONDS = 1.0  # between two events: they tell as well that this rank goes on
WINDOW_SECONDS = 5.0
LEAST_STEPS = 8


class Pace:
    """Medians over windows of steps, so that a pause in one of them says nothing. What lies between steps (saves, say) is not in them."""

    def __init__(self) -> None:
        self._since = self._told = time.monotonic()
        self._seconds: list[float] = []
        self._own: list[float] = []
        self._medians: dict[str, float] = {}
        self._steps = 0
        self._sums = {"seconds": 0.0, "ownSeconds": 0.0}
        self._tells = False

    def sums(self) -> dict[str, Any]:
        """All steps but the first, in which frameworks prepare: how many, their `seconds`, and where the strategy tells all of them
        the `ownSeconds` in which this rank worked."""
        told = self._sums if self._tells else {"seconds": self._sums["seconds"]}
        return {"steps": max(0, self._steps - 1), **{name: round(value, 6) for name, value in told.items()}}

    def add(self, *, seconds: float, own: float | None, whole: bool) -> dict[str, Any] | None:
        """Takes in a step of `seconds`, of which this rank worked `own` (None: its strategy cannot tell) and waited for others in the
        rest (`whole`: all through the step); gives the fields of an event when one is due: the medians of the last full window, if any."""
        now = time.monotonic()
        self._steps += 1
        self._tells = whole and own is not None
        if self._steps > 1:
            self._sums["seconds"] += seconds
            self._sums["ownSeconds"] += min(own or 0.0, seconds)
        if own is not None:
            self._seconds.append(seconds)
            self._own.append(own)
        if len(self._own) >= LEAST_STEPS and now - self._since >= WINDOW_SECONDS:
            self._medians = {"seconds": round(median(self._seconds), 6), "ownSeconds": round(median(self._own), 6)}
            self._since, self._seconds, self._own = now, [], []
        if now - self._told < TELL_SECONDS:
            return None
        self._told = now
        return self._medians
