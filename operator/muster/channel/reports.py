"""The newest report of each replica. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from muster.channel.report_gaps import ReportGaps
from muster_contract.events import Activity
from muster_contract.reports import Report, SnapshotServer

PAUSE_SECONDS = 1.0
"""If no report at all comes for longer, the operator itself may stand still, or be cut off. So the rest of the pause proves no silence."""


@dataclass(frozen=True)
class Received:
    """A report and its time of arrival."""

    report: Report
    time: datetime
    missed_seconds: float
    """The sum of all earlier pauses, less `PAUSE_SECONDS` for each."""


class Reports:
    """The newest report of each replica, by the uid of its pod."""

    def __init__(self) -> None:
        self._newest: dict[str, Received] = {}
        self._waiting: set[str] = set()
        self._disconnected: dict[str, datetime] = {}
        self._last: datetime | None = None
        self._missed_seconds = 0.0
        self._gaps = ReportGaps()

    def record(self, pod_uid: str, report: Report, now: datetime) -> bool:
        """Records the report, and returns whether it is the newest of its pod. Drops an older report, because reports may arrive out of
        order.

        A newer report has a higher attempt, or the same attempt and a higher sequence number. A report of the fetcher is older than any
        report of the supervisor.
        """
        since_last = (now - self._last).total_seconds() if self._last else 0.0
        self._missed_seconds += max(0.0, since_last - PAUSE_SECONDS)
        self._last = now
        newest = self._newest.get(pod_uid)
        if newest is not None and _order(report) <= _order(newest.report):
            return False
        if newest is not None and _trains(newest.report):
            self._gaps.add((now - newest.time).total_seconds() - self.missed_since(newest), now)
        self._newest[pod_uid] = Received(report, now, self._missed_seconds)
        (self._waiting.add if report.waiting else self._waiting.discard)(pod_uid)
        return True

    def start(self, pod_uid: str, attempt: int) -> None:
        """Records that the supervisor gets a reply with the world of this attempt. From then on its processes may run, even if its next
        report comes late."""
        newest = self._newest.get(pod_uid)
        if newest is None or not newest.report.waiting:
            return
        old = newest.report
        report = Report(
            job=old.job,
            pod=old.pod,
            role=old.role,
            index=old.index,
            attempt=attempt,
            job_uid=old.job_uid,
            pod_uid=old.pod_uid,
            sequence=old.sequence,
            phase=Activity.STARTING,
            in_place=old.in_place,
            snapshot_server=old.snapshot_server,
        )
        self._newest[pod_uid] = replace(newest, report=report)
        self._waiting.discard(pod_uid)

    def disconnect(self, pod_uid: str, now: datetime) -> bool:
        """Records that the supervisor has no connection now, and returns whether it has reported before."""
        if pod_uid not in self._newest:
            return False
        self._disconnected[pod_uid] = now
        return True

    def connect(self, pod_uid: str) -> None:
        """Records that the supervisor has a connection."""
        self._disconnected.pop(pod_uid, None)

    def disconnected_since(self, pod_uid: str) -> datetime | None:
        """When the supervisor lost its connection. None if it has one, or if that is unknown."""
        return self._disconnected.get(pod_uid)

    def of(self, pod_uid: str) -> Received | None:
        """The newest report of the pod. None if it has sent none."""
        return self._newest.get(pod_uid)

    def snapshot_server_of(self, pod_uid: str) -> SnapshotServer | None:
        """Where the replica gives its snapshots to spares. None if it does not."""
        received = self._newest.get(pod_uid)
        return received.report.snapshot_server if received else None

    def missed_since(self, received: Received) -> float:
        """For how many seconds since this report the operator may have missed reports, because none came from any replica."""
        return self._missed_seconds - received.missed_seconds

    def longest_gap(self, now: datetime) -> float | None:
        """The longest recent time in seconds between two reports of one replica that trains. None if there were too few reports."""
        return self._gaps.longest(now)

    def forget(self, pod_uid: str) -> None:
        """Drops the report of a pod that is gone."""
        self._newest.pop(pod_uid, None)
        self._disconnected.pop(pod_uid, None)
        self._waiting.discard(pod_uid)

    @property
    def waiting(self) -> int:
        """How many replicas wait for a world."""
        return len(self._waiting)

    def __len__(self) -> int:
        return len(self._newest)


def _trains(report: Report) -> bool:
    return report.phase == Activity.TRAINING and not report.waiting


def _order(report: Report) -> tuple[bool, int, int]:
    return not report.inputs, report.attempt, report.sequence
