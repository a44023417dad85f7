"""What the supervisors of a job have said: the newest report of each replica, and whether their environments agree. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from muster.api.reports import Report

COMPARED = ("python", "framework", "version", "devices")
"""Properties of a fingerprint in which the ranks of one world should be equal, beside the versions of its libraries."""


@dataclass(frozen=True)
class Received:
    """A report and the moment it came."""

    report: Report
    time: datetime


class Reports:
    """The newest report of each replica, by the uid of its pod."""

    def __init__(self) -> None:
        self._newest: dict[str, Received] = {}

    def record(self, pod_uid: str, report: Report, now: datetime) -> bool:
        """Takes in a report unless a later one of the same pod is known; says whether it was news.

        A later report has a higher attempt, or the same attempt and a higher sequence number: reports may overtake each other.
        """
        known = self._newest.get(pod_uid)
        if known is not None and (report.attempt, report.sequence) <= (known.report.attempt, known.report.sequence):
            return False
        self._newest[pod_uid] = Received(report, now)
        return True

    def of(self, pod_uid: str) -> Received | None:
        """The newest report of the pod, if it ever sent one."""
        return self._newest.get(pod_uid)

    def keep_only(self, pod_uids: Iterable[str]) -> None:
        """Forgets every pod but these."""
        kept = set(pod_uids)
        self._newest = {uid: received for uid, received in self._newest.items() if uid in kept}

    def __len__(self) -> int:
        return len(self._newest)

    def differences(self, pod_uids: Iterable[str]) -> list[str]:
        """A sentence for each rank and property in which its environment differs from most other ranks of these pods.

        In a draw the group with the lowest rank counts as the others. Roles are compared apart: they may differ by design.
        """
        by_role: dict[str, dict[str, Mapping[str, Any]]] = defaultdict(dict)
        for uid in pod_uids:
            received = self._newest.get(uid)
            for fingerprint in received.report.fingerprints if received else ():
                assert received is not None
                rank = fingerprint.get("rank", received.report.index)
                by_role[received.report.role][f"{received.report.role}-{received.report.index} (rank {rank})"] = fingerprint
        return [sentence for ranks in by_role.values() for sentence in _differences(ranks)]


def _differences(fingerprints: Mapping[str, Mapping[str, Any]]) -> list[str]:
    flat = {who: _flat(fingerprint) for who, fingerprint in sorted(fingerprints.items())}
    names = sorted({name for properties in flat.values() for name in properties})
    return [sentence for name in names for sentence in _differences_in(name, flat)]


def _flat(fingerprint: Mapping[str, Any]) -> dict[str, str]:
    """Property -> value as text; each library is a property of its own."""
    properties = {name: _shown(fingerprint[name]) for name in COMPARED if name in fingerprint}
    libraries = fingerprint.get("libraries")
    if isinstance(libraries, Mapping):
        properties |= {str(name): _shown(version) for name, version in libraries.items()}
    return properties


def _differences_in(name: str, flat: Mapping[str, Mapping[str, str]]) -> list[str]:
    holders: dict[str, list[str]] = defaultdict(list)
    for who, properties in flat.items():
        holders[properties.get(name, "no version")].append(who)
    usual = max(holders, key=lambda value: len(holders[value]))  # the first of equals, which holds the lowest name
    others = "the others have" if len(holders[usual]) > 1 else f"{holders[usual][0]} has"
    return [f"{who} has {name} {value}, {others} {usual}" for value, group in holders.items() if value != usual for who in group]


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
