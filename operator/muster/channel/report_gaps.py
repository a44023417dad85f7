"""Measures how regularly supervisors report. If reports come regularly, a silent supervisor counts as lost sooner. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from muster.lifecycle.policy import DEFAULT_POLICY

WINDOW = timedelta(seconds=30)
"""The time, at least, in which the longest gap is searched. The time is at most twice as long."""
LONGEST_SECONDS = DEFAULT_POLICY.silence_seconds
"""A longer gap comes from a node that was lost and came back. Such a gap does not count."""
FEWEST = 50
"""With fewer gaps than this, the longest gap is unknown."""


class ReportGaps:
    """The longest time between two reports of one supervisor whose processes train, over all supervisors."""

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
        """The longest gap in seconds. None if there were too few gaps recently."""
        self._turn(now)
        (before, one), (count, other) = self._before, self._now
        return max(one, other) if before + count >= FEWEST else None

    def _turn(self, now: datetime) -> None:
        """Begins a new window when the current one is over. The window before counts too, unless it is too old."""
        age = None if self._began is None else now - self._began
        if age is not None and timedelta() <= age < WINDOW:
            return
        is_next = age is not None and WINDOW <= age < 2 * WINDOW
        self._before, self._now, self._began = (self._now if is_next else (0, 0.0)), (0, 0.0), now
