"""Compares the ranks of a world: their speed, and their software and devices.

In a synchronous world all steps take equally long. So Muster compares how long each rank works in a step.

Each rank reports medians over its last steps. A rank is slow if it works much longer than the median of the others, and if the difference
is a notable share of each step. A slow rank stays slow until a lower bound, so that the condition does not flap. Another rank becomes slow
at the higher bound only. Otherwise two ranks that are about equal would take turns.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from muster.api.status import Straggler, TrainingJobStatus
from muster.lifecycle.facts.facts import Facts
from muster_contract.events import Fingerprint, Pace
from muster_contract.reports import Report

_MOST = 8
_LACKING = "no version"


@dataclass(frozen=True)
class _Bounds:
    """A rank is slow if it works `times` as long as the others, and longer than them by this `share` of the step."""

    times: float
    share: float


_SLOW = _Bounds(times=1.5, share=0.1)
_STILL_SLOW = _Bounds(times=1.25, share=0.05)


def with_stragglers(status: TrainingJobStatus, facts: Facts) -> TrainingJobStatus:
    """The status with its slow ranks. They stay as they are until enough ranks of this attempt have reported. They also stay while the same
    ranks are slow, because their figures change all the time, and each change would be a write."""
    paces = _paces(status, facts)
    if not _suffice(paces, status):
        return status
    slow = _slow(paces, {(each.rank, each.replica) for each in status.stragglers})[:_MOST]
    unchanged = [(each.rank, each.replica) for each in slow] == [(each.rank, each.replica) for each in status.stragglers]
    return status if unchanged else replace(status, stragglers=tuple(slow))


def can_be_compared(status: TrainingJobStatus, facts: Facts) -> bool:
    """Whether enough ranks of this attempt have reported how long they work."""
    return _suffice(_paces(status, facts), status)


def _paces(status: TrainingJobStatus, facts: Facts) -> list[tuple[str, Pace]]:
    return [(view.label, pace) for view, report in facts.reports(status.attempt) for pace in report.ranks if pace.own_seconds is not None]


def _suffice(paces: list[tuple[str, Pace]], status: TrainingJobStatus) -> bool:
    return len(paces) >= max(2, status.world.size if status.world else 0)


def _slow(paces: list[tuple[str, Pace]], before: Collection[tuple[int, str]]) -> list[Straggler]:
    """The slow ranks. `before` has the ranks that were slow."""
    stragglers = []
    ordered = sorted(pace.own_seconds or 0.0 for _, pace in paces)
    for label, pace in paces:
        seconds = pace.own_seconds or 0.0
        bounds = _STILL_SLOW if (pace.rank, label) in before else _SLOW
        others = _median_without(ordered, seconds)
        if seconds > others * bounds.times and seconds - others > bounds.share * (pace.seconds or seconds):
            stragglers.append(Straggler(rank=pace.rank, replica=label, seconds=seconds, others_seconds=others))
    return stragglers


def _median_without(ordered: Sequence[float], value: float) -> float:
    """The median of the other values of a sorted list. For each of many ranks, a sum over all others would take seconds."""
    own, count = bisect_left(ordered, value), len(ordered) - 1
    low, high = (ordered[at + (at >= own)] for at in ((count - 1) // 2, count // 2))
    return low if low == high else (low + high) / 2


def differences(reports: Iterable[Report]) -> list[str]:
    """A sentence for each rank and property in which its environment differs from most other ranks.

    In a draw, the group with the lowest name counts as the others. Each role is compared by itself, because roles may differ by design.
    """
    by_role: dict[str, dict[str, Fingerprint]] = defaultdict(dict)
    for report in reports:
        for fingerprint in report.fingerprints:
            by_role[report.role][f"{report.role}-{report.index} (rank {fingerprint.rank})"] = fingerprint
    return [sentence for ranks in by_role.values() for sentence in _differences(ranks)]


def _differences(fingerprints: Mapping[str, Fingerprint]) -> list[str]:
    holders: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for label, fingerprint in sorted(fingerprints.items()):
        for name, value in fingerprint.properties.items():
            holders[name][value].append(label)
    labels = sorted(fingerprints)
    return [sentence for name in sorted(holders) for sentence in _differences_in(name, holders[name], labels)]


def _differences_in(name: str, holders: dict[str, list[str]], labels: Sequence[str]) -> list[str]:
    """`holders` has the ranks of each value. A program may report thousands of names that no other rank has, so the ranks without a value
    are listed only if they are not the majority."""
    lacking = len(labels) - sum(map(len, holders.values()))
    if lacking > max(map(len, holders.values())):
        usual, others = _LACKING, "the others have"
    else:
        having = {label for group in holders.values() for label in group}
        if lacking:
            holders[_LACKING] += [label for label in labels if label not in having]
        usual = min(holders, key=lambda value: (-len(holders[value]), holders[value][0]))
        others = "the others have" if len(holders[usual]) > 1 else f"{holders[usual][0]} has"
    return [f"{label} has {name} {value}, {others} {usual}" for value, group in holders.items() if value != usual for label in group]
