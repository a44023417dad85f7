"""Unix seconds from other machines, as times that can be trusted to be times."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(seconds: float | None, *, fallback: datetime) -> datetime:
    """The moment that a supervisor wrote; `fallback` where it wrote none or nonsense."""
    if seconds is None:
        return fallback
    try:
        return datetime.fromtimestamp(seconds, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return fallback
