"""The limits of what a job may use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from muster.api.spec import LimitAction, UsageLimits
from muster.api.status import Reason
from muster.lifecycle.facts.ledger import HOUR, Account

_CLOSE_SECONDS = 0.0005
"""A limit counts as reached this long before, so that the pass at that time sees it as reached."""


@dataclass(frozen=True)
class Limit:
    """A limit. `used` and `rate` are what is used until now, and what an hour adds now."""

    reason: Reason
    field: str
    used: float
    most: float
    rate: float
    action: LimitAction

    @property
    def hours_left(self) -> float:
        """Until the limit is reached. Infinite if nothing is held."""
        return (self.most - self.used) / self.rate if self.rate > 0 else 0.0 if self.used >= self.most else float("inf")

    @property
    def is_reached(self) -> bool:
        return self.used >= self.most or self.hours_left <= _CLOSE_SECONDS / HOUR

    @property
    def sentence(self) -> str:
        """What is used and what is allowed."""
        if self.reason is Reason.COST_LIMIT:
            return f"the job has cost {self.used:.2f} of {self.most:g} ({self.field})"
        return f"the job has used {self.used:.2f} of {self.most:g} device-hours ({self.field})"


def reached(limits: UsageLimits, account: Account) -> Limit | None:
    """The limit that is reached, if one is."""
    return next((each for each in _limits(limits, account) if each.is_reached), None)


def due(limits: UsageLimits, account: Account, now: datetime) -> datetime | None:
    """When the next limit is reached if the job goes on with what it holds now."""
    hours = min((each.hours_left for each in _limits(limits, account) if not each.is_reached), default=float("inf"))
    return now + timedelta(hours=hours) if hours < _LONGEST_HOURS else None


_LONGEST_HOURS = 24.0 * 3650


def _limits(limits: UsageLimits, account: Account) -> Iterator[Limit]:
    if limits.device_hours is not None:
        used, field = account.device_seconds / HOUR, "spec.usageLimits.deviceHours"
        yield Limit(Reason.DEVICE_HOURS_LIMIT, field, used, limits.device_hours, account.open, limits.action)
    if limits.cost is not None:
        field = "spec.usageLimits.cost"
        yield Limit(Reason.COST_LIMIT, field, account.cost or 0.0, limits.cost, account.hourly_cost or 0.0, limits.action)
