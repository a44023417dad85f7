"""What the lifecycle core sees: plain frozen data, which the caller makes from pods or from local processes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from muster.api.spec import RoleName
from muster_contract.inputs import InputProgress
from muster_contract.reports import LastWords, Report

Replica = tuple[str, int]
"""Role and index."""


class ReplicaPhase(StrEnum):
    """The phase of a pod's trainer container. Side-cars do not count."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def ended(self) -> bool:
        return self in (ReplicaPhase.SUCCEEDED, ReplicaPhase.FAILED)


@dataclass(frozen=True)
class ReplicaView:
    """One replica that exists, or whose pod object still does."""

    name: str
    uid: str
    role: RoleName
    index: int
    attempt: int
    phase: ReplicaPhase
    created: datetime
    suffix: int | None = None
    """The number at the end of its name, if it has a new one because the pod before it does not answer."""
    finished: datetime | None = None
    """When its trainer container ended."""
    deleting: datetime | None = None
    """When its deletion was requested. This is a pod's deletionTimestamp less its grace period."""
    due: datetime | None = None
    """The end of its grace period, once its deletion was requested: a pod's deletionTimestamp."""
    exit_code: int | None = None
    """Of the trainer container; 128+n for signal n."""
    last_words: LastWords | None = None
    report: Report | None = None
    """The newest report of its supervisor."""
    inputs: tuple[InputProgress, ...] = ()
    """What its fetcher reports. Empty once its supervisor reports."""
    fetch_failed: bool = False
    """Whether its fetcher failed, so that its trainer container never ran. `last_words` are then those of the fetcher."""
    reported: datetime | None = None
    """When that report came."""
    missed_seconds: float = 0.0
    """For how long since then the operator may have missed reports, because none came from any replica."""
    disruption: str | None = None
    """Reason of a DisruptionTarget condition (EvictionByEvictionAPI, PreemptionByScheduler, ...)."""
    reason: str = ""
    """The pod's own reason (Evicted, NodeLost, Shutdown, ...) or, while Pending, its container's (ImagePullBackOff, ...)."""
    message: str = ""
    waits_for: str = ""
    """While Pending: reason and cause in one short sentence for users (`explain.brief`). Empty if the cause is unknown."""
    oom_killed: bool = False
    unhealthy_devices: tuple[str, ...] = ()
    """Devices of its trainer container that its node reports as unhealthy: resource, identifier and what is known of the cause."""
    node: str = ""
    placed: datetime | None = None
    """When its pod was bound to that node. None: unknown, or it has none."""
    unschedulable: bool = False
    """Whether the scheduler says that it finds no node for the pod."""
    standby: bool = False
    """It was created to wait outside the world until a world takes it in."""
    form: str = ""
    """A digest of the pod's template; empty if unknown."""
    lingers: bool = False
    """Its trainer container has ended and a side-car still runs, so it still holds its node's resources."""
    empty: bool = False
    """Its node reports that none of its containers runs, so nothing is left to end."""
    excluded_nodes: tuple[str, ...] = ()
    """Nodes that its pod may not go to, because pods that do not answer were on them."""
    spent: bool = False
    """Its last words say that its processes have ended, and its supervisor waits for the next attempt."""

    @property
    def over(self) -> bool:
        """Whether none of its processes trains any more."""
        return self.phase.ended or self.spent

    @property
    def stays(self) -> bool:
        """Whether it runs and its end was not requested."""
        return self.phase is ReplicaPhase.RUNNING and self.deleting is None and self.disruption is None

    @property
    def replica(self) -> Replica:
        return self.role, self.index

    @property
    def label(self) -> str:
        """role-index, such as worker-1."""
        return f"{self.role}-{self.index}"


@dataclass(frozen=True)
class ClaimView:
    """The PersistentVolumeClaim that holds a job's checkpoints."""

    access_modes: tuple[str, ...] = ()
    """Empty: there is no such claim."""


@dataclass(frozen=True)
class QueuePosition:
    """Where a job waits. Positions begin at 1."""

    in_local_queue: int
    in_cluster_queue: int


@dataclass(frozen=True)
class QuotaView:
    """What the queue says about a job that it holds."""

    admitted: bool
    """Whether the job may run now."""
    message: str = ""
    """Why it may not."""
    workers: int | None = None
    """Of an elastic job that is admitted: for how many workers there is quota. None: for all that the spec asks for."""
    position: QueuePosition | None = None
    """Where it waits. None if that is unknown."""


@dataclass(frozen=True)
class Observed:
    """The children of a job at one moment."""

    replicas: tuple[ReplicaView, ...] = ()
    live: bool = True
    """False when this comes from a cache: then a missing replica proves nothing. True also promises that the job is no older than the
    replicas. A caller with a cached job does nothing until a write of its status, or a read, has proved that it is current."""
    service: bool = False
    """Whether the headless service exists."""
    refused: str = ""
    """The message with which the API server refuses to create a replica or the service (quota, admission); empty if it does not."""
    refusal: str = ""
    """The cause of `refused` in one short sentence for users. Empty if it is unknown."""
    claim: ClaimView | None = None
    """None: the job has none, or the caller did not read it."""
    form: str = ""
    """The digest of the template of pods that would be created now; empty if unknown."""
    hears: bool = False
    """Whether supervisors must report to the caller. Otherwise silence proves nothing, as in a local run."""
    gap_seconds: float | None = None
    """The longest time between two reports of one replica that trains, of all jobs, lately. None: unknown."""
    report_delay_seconds: float = 0.0
    """By how much reports come later than usual, because so many supervisors report."""
    quota: QuotaView | None = None
    """None: no queue holds the job."""
