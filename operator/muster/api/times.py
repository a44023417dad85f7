"""Times in objects of the API server (metav1.Time): RFC 3339, UTC, whole seconds."""

from __future__ import annotations

from datetime import UTC, datetime

from muster_contract.wire import TIME_FORMAT


def format_time(time: datetime) -> str:
    """The time as the API server writes it."""
    return time.astimezone(UTC).strftime(TIME_FORMAT)


def parse_time(text: str) -> datetime:
    """A time that the API server has written. Raises ValueError if it is none."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{text!r:.80} is no time of the years 1 to 9999 in UTC") from error
