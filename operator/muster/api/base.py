"""The base of every API type: camelCase on the wire, snake_case in Python, immutable, unknown fields refused."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, PlainSerializer
from pydantic.alias_generators import to_camel

from muster.api.times import EARLIEST, LATEST, format_time


class ApiModel(BaseModel):
    """A part of a TrainingJob. Instances are values: make a changed one with `model_copy(update=...)`."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, use_enum_values=False)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with other values. Raises TypeError for a name that is no field; pydantic itself would accept it."""
        if unknown := set(update or ()) - set(type(self).model_fields):
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(unknown))}")
        return super().model_copy(update=update, deep=deep)

    def wire(self) -> dict[str, Any]:
        """The object as it goes into YAML or to the API server: camelCase, absent fields left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def _whole_seconds_utc(value: datetime) -> datetime:
    return _utc(value).replace(microsecond=0)


def _utc(value: datetime) -> datetime:
    aware = value if value.tzinfo else value.replace(tzinfo=UTC)
    if not EARLIEST <= aware <= LATEST:
        raise ValueError(f"must be a time of the years {EARLIEST.year} to {LATEST.year}")
    return aware.astimezone(UTC)


Time = Annotated[
    datetime,
    AfterValidator(_whole_seconds_utc),
    PlainSerializer(format_time, when_used="json"),
]
"""metav1.Time: RFC 3339, UTC, whole seconds. A time near the end of the calendar is refused, so that no sum with it overflows."""


def _milliseconds_utc(value: datetime) -> datetime:
    aware = _utc(value)
    return aware.replace(microsecond=aware.microsecond // 1000 * 1000)


Moment = Annotated[
    datetime,
    AfterValidator(_milliseconds_utc),
    PlainSerializer(lambda value: value.isoformat(timespec="milliseconds").replace("+00:00", "Z"), when_used="json"),
]
"""RFC 3339, UTC, milliseconds, because the phases of a recovery often take less than a second."""
