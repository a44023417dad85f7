"""The input of the lifecycle core: plain frozen data, which the caller makes from pods or from local processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from muster.api.capacity import Classes
from muster.api.spec import RoleName
from muster.api.status import NodeNotice
from muster_contract.inputs import InputProgress
from muster_contract.reports import Report, TerminationMessage

Replica = tuple[str, int]
"""Role and index."""


POD = "pod"
"""The device of a pod without accelerators: the pod itself."""
CLAIM = "claim"
"""A device, or several, from a ResourceClaim. The pod does not show how many."""


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
class Incarnation:
    """Processes that restarts of other roles have left running. Their supervisor reports the attempt that started them."""

    number: int
    """The attempt that started them."""
    attempt: int
    """The attempt that they take part in. What their supervisor reports about `number` is about this attempt."""
    is_recorded: bool
    """Whether the record of an attempt has the details of their start."""


@dataclass(frozen=True)
class ReplicaView:
    """A replica whose pod, or local process, still exists."""

    name: str
    uid: str
    role: RoleName
    index: int
    attempt: int
    phase: ReplicaPhase
    created: datetime
    suffix: int | None = None
    """The number at the end of the pod's name. Present if an earlier pod of this replica does not answer, so that this one has a new
    name."""
    finished: datetime | None = None
    """When the trainer container of the replica ended."""
    released: datetime | None = None
    """When the last container of the pod ended, or the pod was gone. From then on it holds no devices."""
    devices: tuple[tuple[str, int], ...] = ((POD, 1),)
    """The devices that the pod holds while it has a node: the resource name and the number of each kind."""
    deleting: datetime | None = None
    """When the deletion of the pod was requested: its deletionTimestamp less its grace period."""
    due: datetime | None = None
    """The end of the grace period of a pod whose deletion was requested: its deletionTimestamp."""
    exit_code: int | None = None
    """Exit code of the trainer container; 128+n for signal n."""
    termination: TerminationMessage | None = None
    report: Report | None = None
    """The newest report of its supervisor."""
    inputs: tuple[InputProgress, ...] = ()
    """What the fetcher of the inputs reports. Empty after the supervisor has reported."""
    fetch_failed: bool = False
    """Whether the fetcher failed, so that the trainer container never ran. Then `termination` is that of the fetcher."""
    reported: datetime | None = None
    """When the newest report came."""
    missed_seconds: float = 0.0
    """For how many seconds after that report the operator may have missed reports, because none came from any replica."""
    disconnected: datetime | None = None
    """When its supervisor lost its connection to the operator. None if it has one, or if that is unknown."""
    disruption: str | None = None
    """The reason of the pod's DisruptionTarget condition (EvictionByEvictionAPI, PreemptionByScheduler, ...)."""
    reason: str = ""
    """The reason of the pod (Evicted, NodeLost, Shutdown, ...) or, while it is Pending, of its container (ImagePullBackOff, ...)."""
    message: str = ""
    waits_for: str = ""
    """While Pending: the reason and cause in one short sentence for users (`explain.brief`). Empty if the cause is unknown."""
    waits_for_gang: bool = False
    """While Pending: whether the scheduler says only that the pods of the gang start together or not at all."""
    oom_killed: bool = False
    unhealthy_devices: tuple[str, ...] = ()
    """Devices of the trainer container that the node reports as unhealthy: resource, identifier, and the cause as far as the node reports
    one."""
    node: str = ""
    placed: datetime | None = None
    """When the pod was bound to the node. None if it has no node, or if the time is unknown."""
    unschedulable: bool = False
    """Whether the scheduler found no node for the pod."""
    standby: bool = False
    """Whether the replica was created to wait outside the world until a world takes it in."""
    template_hash: str = ""
    """A digest of the pod's template; empty if unknown."""
    side_car_runs: bool = False
    """Whether the trainer container has ended while a side-car still runs, so that the pod still uses resources of its node."""
    closing: bool = False
    """Whether only side-cars among the init containers still run. The kubelet ends these, but gives them the whole grace period."""
    empty: bool = False
    """Whether the node reports that no container of the pod runs, so that nothing is left to end."""
    excluded_nodes: tuple[str, ...] = ()
    """Nodes that the pod may not go to, because pods that do not answer were on them."""
    capacity_classes: tuple[str, ...] = ()
    """The capacity classes whose nodes the pod may use. Empty: any node."""
    has_reported_end: bool = False
    """Whether the replica has reported its exit and awaits the next attempt."""
    incarnation: Incarnation | None = None
    """Present if restarts have left its processes running."""

    def with_report(self, report: Report, *, time: datetime, missed_seconds: float, disconnected: datetime | None = None) -> ReplicaView:
        """The replica with the newest report of its supervisor. A pass does this for thousands of replicas, and `dataclasses.replace` takes
        six times as long."""
        copy = object.__new__(ReplicaView)
        copy.__dict__.update(self.__dict__, report=report, reported=time, missed_seconds=missed_seconds, disconnected=disconnected)
        return copy

    def about(self, reported: int | None) -> int | None:
        """The attempt that a report, termination message or a stack of this replica is about. `reported` is the attempt that it names."""
        incarnation = self.incarnation
        return incarnation.attempt if incarnation is not None and reported == incarnation.number else reported

    def report_about(self, attempt: int) -> Report | None:
        """The newest report, if it is about this attempt."""
        return self.report if self.report is not None and self.about(self.report.attempt) == attempt else None

    @property
    def start_is_recorded(self) -> bool:
        """Whether the record of an earlier attempt has the details of the start of its processes."""
        return self.incarnation is not None and self.incarnation.is_recorded

    @property
    def over(self) -> bool:
        """Whether none of its processes trains any more."""
        return self.phase.ended or self.has_reported_end

    @property
    def only_side_cars_run(self) -> bool:
        """Whether the trainer container has ended while the pod still uses resources of its node."""
        return self.phase.ended and (self.side_car_runs or self.closing)

    @property
    def is_active(self) -> bool:
        """Whether the replica runs and its end was not requested."""
        return self.phase is ReplicaPhase.RUNNING and self.deleting is None and self.disruption is None

    @property
    def can_continue(self) -> bool:
        """Whether the supervisor of the replica can start another attempt, on healthy devices."""
        return self.report is not None and self.report.in_place and self.is_active and not self.unhealthy_devices

    @property
    def is_ready(self) -> bool:
        """Whether a replica that stands by can take a place in a world at once."""
        return self.can_continue and self.report is not None and self.report.waiting

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
    """How nodes may mount it. Empty if there is no such claim."""


@dataclass(frozen=True)
class QueuePosition:
    """Where a job waits. Positions begin at 1."""

    in_local_queue: int
    in_cluster_queue: int


@dataclass(frozen=True)
class QuotaView:
    """The state of a job in its queue."""

    admitted: bool
    """Whether the job may run now."""
    message: str = ""
    """Why it may not."""
    workers: int | None = None
    """The number of workers for which an admitted elastic job has quota. None if there is quota for all that the spec asks for."""
    position: QueuePosition | None = None
    """Where the job waits. None if that is unknown."""


@dataclass(frozen=True)
class Observed:
    """The children of a job at one moment."""

    replicas: tuple[ReplicaView, ...] = ()
    live: bool = True
    """False if the observation comes from a cache. Then a missing replica proves nothing. True also means that the job is at least as new
    as the replicas. A caller with a cached job does nothing until a write of its status, or a read, proves that the job is current."""
    service: bool = False
    """Whether the headless service exists."""
    refused: str = ""
    """The message with which the API server refuses to create a replica or the service (quota, admission). Empty if there is no refusal."""
    refusal: str = ""
    """The cause of `refused` in one short sentence for users. Empty if it is unknown."""
    claim: ClaimView | None = None
    """The claim for checkpoints. None if the job has none, or if the caller did not read it."""
    template_hash: str = ""
    """The digest of the template of pods that would be created now; empty if unknown."""
    expects_reports: bool = False
    """Whether supervisors must report to the caller. If not, as in a local run, silence proves nothing."""
    gap_seconds: float | None = None
    """The longest recent time between two reports of one training replica, over all jobs. None if unknown."""
    report_delay_seconds: float = 0.0
    """Seconds by which reports are late because very many supervisors report."""
    quota: QuotaView | None = None
    """The state of the job in its queue. None if no queue holds the job."""
    notices: Mapping[str, NodeNotice] | None = None
    """The notices of the cluster's nodes, by node. None if they are unknown."""
    capacity_classes: Mapping[str, str] = field(default_factory=dict)
    """The capacity class of each node that has one, as far as it is known."""
    departed: tuple[ReplicaView, ...] = ()
    """Replicas that the caller saw go since the last write of the status, as they were at last, each with `released`."""
    classes: Classes = field(default_factory=dict)
    """The capacity classes of the installation, with their prices."""
    knows_nodes: bool = True
    """Whether the classes of the nodes are known. If not, as in a new leader, the use of devices is not counted yet."""
