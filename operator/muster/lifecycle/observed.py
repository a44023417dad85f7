"""What the lifecycle core sees: plain frozen data, made by the caller from pods or from process groups."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from muster.api.reports import LastWords, Report
from muster.api.spec import RoleName


class ReplicaPhase(StrEnum):
    """A pod's phase, as far as its trainer container goes: side-cars do not count."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def ended(self) -> bool:
        return self in (ReplicaPhase.SUCCEEDED, ReplicaPhase.FAILED)


@dataclass(frozen=True)
class ReplicaView:
    """One replica that exists, or whose object still does."""

    name: str
    uid: str
    role: RoleName
    index: int
    attempt: int
    phase: ReplicaPhase
    created: datetime
    finished: datetime | None = None
    """When its trainer container ended."""
    deleting: datetime | None = None
    """When its deletion was asked for, by whomever: a pod's deletionTimestamp less its grace period."""
    due: datetime | None = None
    """When it should have gone at the latest, once its deletion was asked for: a pod's deletionTimestamp."""
    exit_code: int | None = None
    """Of the trainer container; 128+n for signal n."""
    last_words: LastWords | None = None
    report: Report | None = None
    """The newest report of its supervisor."""
    reported: datetime | None = None
    """When that came."""
    disruption: str | None = None
    """Reason of a DisruptionTarget condition (EvictionByEvictionAPI, PreemptionByScheduler, ...)."""
    reason: str = ""
    """The pod's own reason (Evicted, NodeLost, Shutdown, ...) or, while Pending, its container's (ImagePullBackOff, ...)."""
    message: str = ""
    oom_killed: bool = False
    node: str = ""
    standby: bool = False
    """It was made to train nothing until a world takes it in."""
    form: str = ""
    """A digest of what it was made of; empty where that is not known."""
    lingers: bool = False
    """Its trainer container has ended and another container of its own has not: it still holds its node's resources."""
    empty: bool = False
    """None of its containers runs any more, as its node says: nothing is left to end."""
    spent: bool = False
    """Its processes have ended, as its last words say, and its supervisor waits for what follows."""

    @property
    def over(self) -> bool:
        """Whether nothing of it trains any more."""
        return self.phase.ended or self.spent

    @property
    def stays(self) -> bool:
        """Whether it runs and nobody has asked it to go."""
        return self.phase is ReplicaPhase.RUNNING and self.deleting is None and self.disruption is None

    @property
    def place(self) -> tuple[str, int]:
        """Role and index."""
        return self.role.value, self.index

    @property
    def label(self) -> str:
        """role-index, as people say it."""
        return f"{self.role.value}-{self.index}"


@dataclass(frozen=True)
class ClaimView:
    """The PersistentVolumeClaim that a job's checkpoints lie on."""

    access_modes: tuple[str, ...] = ()
    """Empty: there is no such claim."""


@dataclass(frozen=True)
class Observed:
    """All that is known of a job's children at one moment."""

    replicas: tuple[ReplicaView, ...] = ()
    live: bool = True
    """False when this comes from a cache: then a replica's absence proves nothing. True promises that the job, too, is what there was when
    the replicas were looked at: a caller that has it from a cache does nothing before a write of its status, or a read, has shown that."""
    service: bool = False
    """Whether the headless service exists."""
    refused: str = ""
    """What the API server said when it last refused to make a replica or the service (quota, admission); empty once it no longer does."""
    claim: ClaimView | None = None
    """None: the job has none, or nobody looked."""
    form: str = ""
    """What replicas that were made now would have as theirs; empty where that is not known."""
    standing_by: tuple[ReplicaView, ...] = ()
    """Of the replicas those outside the world, which wait to be taken in: told apart by the core itself."""

    @property
    def everyone(self) -> tuple[ReplicaView, ...]:
        return (*self.replicas, *self.standing_by)
