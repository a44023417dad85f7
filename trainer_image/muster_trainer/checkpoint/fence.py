"""The fence of an attempt: what makes writes of an older world count for nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

_TIME = "%Y%m%dT%H%M%SZ"
_PATTERN = re.compile(r"([0-9]{8}T[0-9]{6}Z)-([0-9]{4,9})")


@dataclass(frozen=True, order=True)
class Fence:
    """(creation time of the job in UTC, attempt). Fences compare; as text they sort alike up to attempt 9999."""

    created: datetime
    attempt: int

    def __str__(self) -> str:
        return f"{self.created.astimezone(UTC).strftime(_TIME)}-{self.attempt:04d}"

    @classmethod
    def parse(cls, text: str) -> Fence | None:
        """The fence that `text` is, or None where it is none."""
        match = _PATTERN.fullmatch(text)
        if match is None:
            return None
        try:
            created = datetime.strptime(match[1], _TIME).replace(tzinfo=UTC)
        except ValueError:
            return None
        return cls(created, int(match[2]))
