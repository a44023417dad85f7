"""What the supervisors of a job have said: the newest report of each replica. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from muster.api.reports import Report


@dataclass(frozen=True)
class Received:
    """A report and the moment it came."""

    report: Report
    time: datetime


class Reports:
    """The newest report of each replica, by the uid of its pod."""

    def __init__(self) -> None:
        self._newest: dict[str, Received] = {}
        self._waiting: set[str] = set()

    def record(self, pod_uid: str, report: Report, now: datetime) -> bool:
        """Takes in a report unless a later one of the same pod is known; says whether it was news.

        A later report has a higher attempt, or the same attempt and a higher sequence number: reports may overtake each other.
        """
        known = self._newest.get(pod_uid)
        if known is not None and (report.attempt, report.sequence) <= (known.report.attempt, known.report.sequence):
            return False
        self._newest[pod_uid] = Received(report, now)
        (self._waiting.add if report.waiting else self._waiting.discard)(pod_uid)
        return True

    def of(self, pod_uid: str) -> Received | None:
        """The newest report of the pod, if it ever sent one."""
        return self._newest.get(pod_uid)

    def forget(self, pod_uid: str) -> None:
        """The pod is no more."""
        self._newest.pop(pod_uid, None)
        self._waiting.discard(pod_uid)

    @property
    def waiting(self) -> int:
        """How many replicas wait for a world."""
        return len(self._waiting)

    def __len__(self) -> int:
        return len(self._newest)
