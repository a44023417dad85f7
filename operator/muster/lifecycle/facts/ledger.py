"""The use of devices by the pods of a job, from the timestamps of the pods.

A pod holds its devices from the assignment of its node until its last container ends, or until it is gone. The status has the sum up to
one moment, `countedUntil`. Each write of the status adds, for each pod, the part of its life that lies between this moment and now. So the
sum does not depend on which operator counts, on how often it counts, or on how long it was away.

A pod that is gone without anybody having seen it go was there at the last write, because the status has the number of devices at that
time. It counts until now, and the status shows that part as uncertain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from muster.api.capacity import Classes
from muster.api.status import MAX_AMOUNT, MAX_DEVICE_KINDS, DeviceUsage, Usage
from muster.lifecycle.observed import POD, Observed, ReplicaView

HOUR = 3600.0
_HOUR = 3600e6
"""An hour in microseconds."""
Kind = tuple[str, str]
"""Capacity class and device."""


@dataclass(frozen=True)
class Account:
    """The use up to now."""

    devices: tuple[DeviceUsage, ...]
    added: Mapping[str, float]
    """The device-seconds of each pod since the last count, by uid."""
    gone_seconds: float
    """The device-seconds since then of pods that are gone and were not seen to go."""
    cost: float | None
    hourly_cost: float | None
    """The cost of an hour of what is held now."""

    @property
    def device_seconds(self) -> float:
        return min(MAX_AMOUNT, sum(each.seconds for each in self.devices))

    @property
    def open(self) -> int:
        """The devices that are held now."""
        return sum(each.open for each in self.devices)


def account(before: Usage | None, observed: Observed, now: datetime) -> Account:
    """The use up to now. `before` is what is counted so far."""
    start = min(before.counted_until, now) if before else None  # a user may have written a time in the future
    used: dict[Kind, int] = defaultdict(int)  # in microseconds, so that the order of the pods does not change the sum
    held: dict[Kind, list[int]] = defaultdict(lambda: [0, 0])
    seen: dict[Kind, int] = defaultdict(int)
    added: dict[str, float] = {}
    bill = Bill(observed.classes)
    departed = {view.uid for view in observed.departed}
    for view in _each_once(observed):
        began = view.placed or view.created
        if not (view.node or view.placed) or began > now:
            continue
        begin, end = max(began, start or began), min(view.released or now, now)
        lasted = _microseconds(begin, end)
        name = observed.capacity_classes.get(view.node, "")
        is_open = view.released is None and view.uid not in departed
        for device, count in view.devices:
            kind = name, device
            used[kind] += lasted * count
            if view.uid not in departed:
                held[kind][not is_open] += count
            if start is not None and began <= start:
                seen[kind] += count
            bill.add(name, device, count, node=view.node, begin=begin, end=end, is_open=is_open)
        added[view.uid] = lasted * sum(count for _, count in view.devices) / 1e6
    gone = _gone(before, seen)
    lost = _microseconds(start or now, now)
    for kind, count in gone.items():
        used[kind] += count * lost
    devices = _devices(before, {kind: total / 1e6 for kind, total in used.items()}, held)
    known = before.cost if before else None
    cost = bill.cost + (sum(bill.of_gone(before, kind, count) for kind, count in gone.items()) * lost / _HOUR if before else 0.0)
    return Account(
        devices=devices,
        added=added,
        gone_seconds=sum(gone.values()) * lost / 1e6,
        cost=None if known is None and not bill.has_prices else min(MAX_AMOUNT, (known or 0.0) + cost),
        hourly_cost=min(MAX_AMOUNT, bill.hourly_cost) if bill.has_prices else None,
    )


class Bill:
    """The cost of pods in an interval, at the prices of the capacity classes.

    `pricePerDeviceHour` is for the accelerators of pods. `pricePerNodeHour` is for the whole node while any pod is on it. If a class has
    both, the first is for pods with accelerators, and the second for the others. If it has one, that is for all pods.
    """

    def __init__(self, classes: Classes) -> None:
        self._classes = classes
        self._devices: dict[str, int] = defaultdict(int)
        self._open_devices: dict[str, int] = defaultdict(int)
        self._nodes: dict[tuple[str, str], list[tuple[datetime, datetime]]] = defaultdict(list)
        self._open_nodes: set[tuple[str, str]] = set()

    @property
    def has_prices(self) -> bool:
        return any(each.has_price for each in self._classes.values())

    def add(self, name: str, device: str, count: int, *, node: str, begin: datetime, end: datetime, is_open: bool) -> None:
        """Adds devices of a pod that is on the node from begin to end."""
        if name not in self._classes:
            return
        if self._is_by_device(name, device):
            self._devices[name] += _microseconds(begin, end) * count
            self._open_devices[name] += count * is_open
        else:
            self._nodes[name, node].append((begin, end))
            if is_open:
                self._open_nodes.add((name, node))

    def of_gone(self, before: Usage, kind: Kind, count: int) -> float:
        """The cost of an hour of so many devices that are gone. Which nodes they were on is unknown, so at the price of a node they get
        their share of the cost of all devices that were held."""
        name, device = kind
        if name not in self._classes or self._is_by_device(name, device):
            return count * self._device_price(name)
        return (before.hourly_cost or 0.0) * count / max(1, sum(each.open for each in before.devices))

    def _is_by_device(self, name: str, device: str) -> bool:
        price = self._classes[name]
        return price.price_per_node_hour is None or (device != POD and price.price_per_device_hour is not None)

    def _device_price(self, name: str) -> float:
        return (self._classes[name].price_per_device_hour or 0.0) if name in self._classes else 0.0

    def _node_price(self, name: str) -> float:
        return self._classes[name].price_per_node_hour or 0.0

    @property
    def cost(self) -> float:
        devices = sum(used * self._device_price(name) for name, used in sorted(self._devices.items()))
        return (devices + sum(_union(times) * self._node_price(name) for (name, _), times in sorted(self._nodes.items()))) / _HOUR

    @property
    def hourly_cost(self) -> float:
        """The cost of an hour of the devices and nodes that are held at the end."""
        devices = sum(count * self._device_price(name) for name, count in sorted(self._open_devices.items()))
        return devices + sum(self._node_price(name) for name, _ in sorted(self._open_nodes))


def _union(times: Iterable[tuple[datetime, datetime]]) -> int:
    """Microseconds that lie in at least one of the intervals."""
    total, until = 0, None
    for begin, end in sorted(times):
        begin = begin if until is None else max(begin, until)
        total += _microseconds(begin, end)
        until = end if until is None else max(until, end)
    return total


def _each_once(observed: Observed) -> Iterator[ReplicaView]:
    """All pods. A stale cache may still show one that has departed."""
    departed = {view.uid for view in observed.departed}
    yield from observed.departed
    yield from (view for view in observed.replicas if view.uid not in departed)


def _microseconds(begin: datetime, end: datetime) -> int:
    """The time between both. 0 if the end comes first."""
    return max(0, (end - begin) // timedelta(microseconds=1))


def _gone(before: Usage | None, seen: Mapping[Kind, int]) -> dict[Kind, int]:
    """The devices that were held at the last count and whose pods are gone. The class of a node may be known only at one of both times, so
    what is missing in all is the limit."""
    devices = before.devices if before else ()
    missing = sum(each.open + each.ended for each in devices) - sum(seen.values())
    gone = {}
    for each in devices:
        kind = each.capacity_class, each.device
        count = min(each.open, each.open + each.ended - seen.get(kind, 0), missing)
        if count > 0:
            gone[kind], missing = count, missing - count
    return gone


def _devices(before: Usage | None, seconds: Mapping[Kind, float], held: Mapping[Kind, list[int]]) -> tuple[DeviceUsage, ...]:
    old = {(each.capacity_class, each.device): each.seconds for each in (before.devices if before else ())}
    kinds: Iterable[Kind] = sorted({*old, *seconds, *held})
    every = [
        DeviceUsage(
            capacity_class=kind[0],
            device=kind[1],
            seconds=round(min(MAX_AMOUNT, old.get(kind, 0.0) + seconds.get(kind, 0.0)), 3),
            open=held[kind][0] if kind in held else 0,
            ended=held[kind][1] if kind in held else 0,
        )
        for kind in kinds
    ]
    return tuple(sorted(every, key=lambda each: -each.seconds)[:MAX_DEVICE_KINDS])
