"""Times in objects of the API server (metav1.Time: RFC 3339, UTC, whole seconds), in the status, and of other machines."""

from __future__ import annotations

from datetime import UTC, datetime

from muster_contract.events import MAX_TIME
from muster_contract.wire import TIME_FORMAT

EARLIEST = datetime.fromtimestamp(0, UTC)
LATEST = datetime.fromtimestamp(MAX_TIME, UTC)
"""The times that Muster reads lie between these two. Users, kubelets and programs write some of them, and no sum with one overflows."""


def format_time(time: datetime) -> str:
    """The time as the API server writes it."""
    return time.astimezone(UTC).strftime(TIME_FORMAT)


def parse_time(text: str) -> datetime:
    """A time that the API server has written, or `EARLIEST` or `LATEST` if it lies beyond. Raises ValueError if it is none."""
    if text.startswith("0000-"):  # Go has this year, and Python has not
        return EARLIEST
    time = datetime.fromisoformat(text)
    return max(EARLIEST, min(LATEST, time if time.tzinfo else time.replace(tzinfo=UTC))).astimezone(UTC)


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
