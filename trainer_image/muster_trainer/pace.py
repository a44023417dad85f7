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

    def add(self, *, seconds: float, own: float | None) -> dict[str, Any] | None:
        """Takes in a step of `seconds`, of which this rank worked `own` (None: its strategy cannot tell) and waited for others in
        the rest; gives the fields of an event when one is due: the medians of the last full window, if there was one."""
        now = time.monotonic()
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
