"""How regularly supervisors report. The operator takes one for silent sooner if reports come regularly. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from muster.lifecycle.policy import DEFAULT_POLICY

WINDOW = timedelta(seconds=30)
"""How far back the longest gap is looked for, at least. At most it is twice as far."""
LONGEST_SECONDS = DEFAULT_POLICY.silence_seconds
"""A longer gap is that of a node that was lost and came back. It says nothing of the others."""
FEWEST = 50
"""Fewer gaps than this say nothing."""


class ReportGaps:
    """The longest time between two reports of one supervisor whose processes train, of all supervisors."""

    def __init__(self) -> None:
        self._began: datetime | None = None
        self._before = (0, 0.0)
        self._now = (0, 0.0)
        """The number of gaps in this window, and the longest."""

    def add(self, seconds: float, now: datetime) -> None:
        """Adds a gap that ends now."""
        if seconds > LONGEST_SECONDS:
            return
        self._turn(now)
        count, longest = self._now
        self._now = (count + 1, max(longest, seconds))

    def longest(self, now: datetime) -> float | None:
        """In seconds. None if there were too few gaps lately."""
        self._turn(now)
        (before, one), (count, other) = self._before, self._now
        return max(one, other) if before + count >= FEWEST else None

    def _turn(self, now: datetime) -> None:
        """Begins a new window if it is time for that. The window before counts too, unless it is long ago."""
        age = None if self._began is None else now - self._began
        if age is not None and timedelta() <= age < WINDOW:
            return
        is_next = age is not None and WINDOW <= age < 2 * WINDOW
        self._before, self._now, self._began = (self._now if is_next else (0, 0.0)), (0, 0.0), now
