"""Delays that grow with each failure. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_MOST_DOUBLINGS = 30


@dataclass(frozen=True)
class Delays:
    """Seconds before the next attempt. There is no pause after the first `free` failures in a row without progress. Then the pause is
    `first`, and each further failure doubles it, up to `longest`."""

    first: float
    longest: float
    free: int = 0

    def after(self, failures: int) -> float:
        """Seconds before the attempt that follows this many failures in a row, from 1."""
        delayed_failures = failures - self.free
        return min(self.first * 2.0 ** min(delayed_failures - 1, _MOST_DOUBLINGS), self.longest) if delayed_failures > 0 else 0.0
