"""Times as the status holds them, and times of other machines."""

from __future__ import annotations

from datetime import UTC, datetime


def milliseconds(moment: datetime) -> datetime:
    """Down to milliseconds, in UTC."""
    moment = moment.astimezone(UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def whole_seconds(moment: datetime) -> datetime:
    """Down to seconds, in UTC."""
    return moment.astimezone(UTC).replace(microsecond=0)


def reported_time(seconds: float | None, *, fallback: datetime) -> datetime:
    """The time that a supervisor reports in Unix seconds; `fallback` if it reports none, or one that is no time."""
    if seconds is None:
        return fallback
    try:
        return datetime.fromtimestamp(seconds, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return fallback
