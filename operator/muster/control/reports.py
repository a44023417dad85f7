"""The newest report of each replica. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from muster_contract.reports import Report

PAUSE_SECONDS = 4.0
"""Without a report for so long, the operator itself may have stood still, or have been cut off."""


@dataclass(frozen=True)
class Received:
    """A report and its time of arrival."""

    report: Report
    time: datetime


class Reports:
    """The newest report of each replica, by the uid of its pod."""

    def __init__(self) -> None:
        self._newest: dict[str, Received] = {}
        self._waiting: set[str] = set()
        self._last: datetime | None = None
        self.listening: datetime | None = None
        """Since when reports have come without a pause."""

    def record(self, pod_uid: str, report: Report, now: datetime) -> bool:
        """Records the report, and returns whether it is the newest of its pod. An older one is dropped, because reports may arrive out of
        order.

        A newer report has a higher attempt, or the same attempt and a higher sequence number. A report of the fetcher is older than any of
        the supervisor.
        """
        if self._last is None or not timedelta() <= now - self._last <= timedelta(seconds=PAUSE_SECONDS):
            self.listening = now
        self._last = now
        newest = self._newest.get(pod_uid)
        if newest is not None and _order(report) <= _order(newest.report):
            return False
        self._newest[pod_uid] = Received(report, now)
        (self._waiting.add if report.waiting else self._waiting.discard)(pod_uid)
        return True

    def of(self, pod_uid: str) -> Received | None:
        """The newest report of the pod. None if it has sent none."""
        return self._newest.get(pod_uid)

    def forget(self, pod_uid: str) -> None:
        """Drops the report of a pod that is gone."""
        self._newest.pop(pod_uid, None)
        self._waiting.discard(pod_uid)

    @property
    def waiting(self) -> int:
        """How many replicas wait for a world."""
        return len(self._waiting)

    def __len__(self) -> int:
        return len(self._newest)


def _order(report: Report) -> tuple[bool, int, int]:
    return not report.inputs, report.attempt, report.sequence
