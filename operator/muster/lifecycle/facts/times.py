"""Times as the status holds them, and times of other machines."""

from __future__ import annotations

from datetime import UTC, datetime


def milliseconds(moment: datetime) -> datetime:
    """The time in UTC, rounded down to milliseconds."""
    moment = moment.astimezone(UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def whole_seconds(moment: datetime) -> datetime:
    """The time in UTC, rounded down to seconds."""
    return moment.astimezone(UTC).replace(microsecond=0)


def reported_time(seconds: float | None, *, fallback: datetime) -> datetime:
    """The time that a supervisor reports in Unix seconds. `fallback` if the value is absent or is not a valid time."""
    if seconds is None:
        return fallback
    try:
        return datetime.fromtimestamp(seconds, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return fallback
