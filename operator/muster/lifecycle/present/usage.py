"""The device-hours of a job in its status. `facts/ledger.py` counts them; this module splits them up as the goodput splits the time.

Nothing is written for the sake of the count: each write that is due anyway brings it up to date. The one exception is a job that has ended:
once its last pod has let go of its devices, one more write closes the account.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from muster.api.status import MAX_AMOUNT, Goodput, TrainingJobStatus, Usage
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.facts.ledger import HOUR

_PARTS = {
    "queued_seconds": "waiting_seconds",
    "starting_seconds": "waiting_seconds",
    "unreported_seconds": "unreported_seconds",
    "productive_seconds": "useful_seconds",
    "checkpoint_seconds": "checkpoint_seconds",
    "redone_seconds": "redone_seconds",
    "recovering_seconds": "recovering_seconds",
    "suspended_seconds": "idle_seconds",
}
"""The part of the use that the devices have while the time is in this part of the goodput."""
_IDLE = "idle_seconds"


def with_usage(old: TrainingJobStatus, new: TrainingJobStatus, facts: Facts) -> TrainingJobStatus:
    """The status to write, with the use of devices until now."""
    if new == old and not _closes(old, facts):
        return new
    account = facts.account
    if not facts.observed.knows_nodes or (old.usage is None and not account.devices):
        return new
    before = old.usage or Usage(counted_until=facts.created)
    spares = {view.uid for view in facts.standing_by}
    idle = sum(seconds for uid, seconds in account.added.items() if uid in spares)
    working = sum(account.added.values()) + account.gone_seconds - idle
    parts = _split(before, old.goodput, new.goodput, working=working)
    parts[_IDLE] += idle
    return replace(
        new,
        usage=Usage(
            counted_until=facts.stamp,
            device_seconds=round(account.device_seconds, 3),
            uncertain_seconds=_bounded(before.uncertain_seconds + account.gone_seconds),
            cost=None if account.cost is None else round(account.cost, 6),
            hourly_cost=None if account.hourly_cost is None else round(account.hourly_cost, 6),
            devices=account.devices,
            summary=summary(account.device_seconds, account.cost),
            **{name: _bounded(seconds) for name, seconds in parts.items()},
        ),
    )


def _bounded(seconds: float) -> float:
    return round(max(0.0, min(MAX_AMOUNT, seconds)), 3)


def summary(device_seconds: float, cost: float | None) -> str:
    """Device-hours and cost in short."""
    return f"{device_seconds / HOUR:.2f} device-h" + ("" if cost is None else f", {cost:.2f}")


def _closes(old: TrainingJobStatus, facts: Facts) -> bool:
    """Whether the last pod of an ended job has just let go of its devices."""
    return old.phase.final and old.usage is not None and any(each.open for each in old.usage.devices) and not facts.account.open


def _split(before: Usage, old: Goodput | None, new: Goodput | None, *, working: float) -> dict[str, float]:
    """The parts, with the device-seconds of the time since the last count. Time that the goodput moves from one part to another takes its
    share of the device-seconds along. After the end of the job, devices are idle."""
    parts = {name: vars(before)[name] for name in dict.fromkeys(_PARTS.values())}
    then, now = _times(old), _times(new)
    gains = {name: now[name] - then[name] for name in parts if now[name] > then[name]}
    moving = working
    for name in parts:
        if now[name] < then[name]:
            share = parts[name] * (then[name] - now[name]) / then[name]
            parts[name], moving = parts[name] - share, moving + share
    gained = sum(gains.values())
    for name, seconds in gains.items():
        parts[name] += moving * seconds / gained
    if not gained:
        parts[_IDLE] += moving
    return parts


def _times(goodput: Goodput | None) -> Mapping[str, float]:
    times: dict[str, float] = defaultdict(float)
    for name, part in _PARTS.items():
        times[part] += (vars(goodput)[name] or 0.0) if goodput else 0.0
    return times
