"""Do the processes of one world run the same software on the same devices? Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from muster.api.reports import Fingerprint, Report

COMPARED = ("python", "framework", "version", "devices", "threads")
"""Properties in which the ranks of one world should be equal, beside the versions of their libraries."""


def differences(reports: Iterable[Report]) -> list[str]:
    """A sentence for each rank and property in which its environment differs from most other ranks.

    In a draw the group with the lowest name counts as the others. Roles are compared apart: they may differ by design.
    """
    by_role: dict[str, dict[str, Fingerprint]] = defaultdict(dict)
    for report in reports:
        for fingerprint in report.fingerprints:
            rank = report.index if fingerprint.rank is None else fingerprint.rank
            by_role[report.role][f"{report.role}-{report.index} (rank {rank})"] = fingerprint
    return [sentence for ranks in by_role.values() for sentence in _differences(ranks)]


def _differences(fingerprints: Mapping[str, Fingerprint]) -> list[str]:
    flat = {who: _flat(fingerprint) for who, fingerprint in sorted(fingerprints.items())}
    names = sorted({name for properties in flat.values() for name in properties})
    return [sentence for name in names for sentence in _differences_in(name, flat)]


def _flat(fingerprint: Fingerprint) -> dict[str, str]:
    """Property -> value as text; each library is a property of its own."""
    properties = {name: value for name in COMPARED if (value := getattr(fingerprint, name)) is not None}
    return properties | fingerprint.libraries


def _differences_in(name: str, flat: Mapping[str, Mapping[str, str]]) -> list[str]:
    holders: dict[str, list[str]] = defaultdict(list)
    for who, properties in flat.items():
        holders[properties.get(name, "no version")].append(who)
    usual = max(holders, key=lambda value: len(holders[value]))  # the first of equals, which holds the lowest name
    others = "the others have" if len(holders[usual]) > 1 else f"{holders[usual][0]} has"
    return [f"{who} has {name} {value}, {others} {usual}" for value, group in holders.items() if value != usual for who in group]
