"""The observed state of a TrainingJob. Only the lifecycle core writes it.

Its parts are frozen dataclasses, so that mypy checks every change made with `dataclasses.replace`. pydantic validates what comes from the
API server and makes the schema. The docstring of a field is its description in the CRD (`described`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import cache, cached_property
from itertools import groupby
from operator import attrgetter
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, SerializerFunctionWrapHandler, TypeAdapter, WrapSerializer
from pydantic.alias_generators import to_camel

from muster.api.base import Moment, Time
from muster.api.capacity import MAX_CLASSES, ClassName
from muster.api.compact import RANGES, in_ranges, ranges, short_uid, whole_uid
from muster.api.constants import IMAGE
from muster.api.spec import MAX_ROLES
from muster_contract.codes import FailureClass as FailureClass
from muster_contract.events import MAX_ATTEMPT, MAX_SECONDS, ResumeSource
from muster_contract.inputs import MAX_INPUTS, MAX_REVISION
from muster_contract.notices import NoticeReason, notice_of
from muster_contract.wire import LARGEST_INT

MAX_ATTEMPT_RECORDS = 10
MAX_NODE_NOTICES = 64
MOST_LISTED_MEMBERS = 128
"""A status lists the members of a world one by one up to this number, and by role if there are more."""
LONGEST_SIGNAL = 400
EXPIRY = "spec.expireAfter of its NodeClaim"
DELETION = "the node is being deleted"
KARPENTER_SIGNALS = frozenset({"taint karpenter.sh/disrupted", "taint karpenter.sh/disruption", EXPIRY, DELETION})
MAX_ORPHANED = 1000
MAX_AWAITED = 4
MAX_DEVICE_KINDS = 64
LARGEST_FIGURE = 1e300
"""The largest figure that a program may report."""


MAX_AMOUNT = 1e15
"""The largest number of device-seconds, and the highest cost, in a status."""


def _within(least: float, most: float) -> AfterValidator:
    """Refuses numbers outside these limits, so that no sum with one overflows. Users may write a status.

    The schema has no such limit. The API server would refuse a status in which Muster has added to the largest number. Muster reads that
    number as absent instead.
    """

    def check(value: float) -> float:
        if not least <= value <= most:  # not so for NaN
            raise ValueError(f"must be a number from {least} to {most}")
        return value

    return AfterValidator(check)


Count = Annotated[int, Field(ge=0), _within(0, LARGEST_INT)]
AttemptNumber = Annotated[int, Field(ge=0), _within(0, MAX_ATTEMPT - 1)]
"""Leaves room for one more attempt."""
Seconds = Annotated[float, Field(ge=0), _within(0, MAX_SECONDS)]
Rate = Annotated[float, Field(ge=0), _within(0, LARGEST_FIGURE)]
Figure = Annotated[float, _within(-LARGEST_FIGURE, LARGEST_FIGURE)]
Amount = Annotated[float, Field(ge=0), _within(0, MAX_AMOUNT)]
LONGEST_TEXT = 4096
"""Characters of a text in a status."""
Message = Annotated[str, Field(max_length=LONGEST_TEXT)]
RestartTimes = Annotated[tuple[Moment, ...], Field(max_length=1000)]


def _image(name: str | None) -> str | None:
    """Refuses what no pod can have as its image. It then counts as absent, as a number out of bounds does."""
    if name is not None and not re.fullmatch(IMAGE, name):
        raise ValueError("must be the name of an image")
    return name


class Phase(StrEnum):
    """The phase of a job."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    RECOVERING = "Recovering"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def final(self) -> bool:
        return self in (Phase.SUCCEEDED, Phase.FAILED)


FINAL_PHASES = tuple(phase.value for phase in Phase if phase.final)


class ConditionType(StrEnum):
    VALID = "Valid"
    READY = "Ready"
    COMPLETE = "Complete"
    FAILED = "Failed"
    SUSPENDED = "Suspended"
    RESUME_REGRESSION = "ResumeRegression"
    STORAGE_SHARED = "StorageShared"
    STRAGGLING = "Straggling"
    GRACE_SUFFICIENT = "GraceSufficient"
    GANG_SCHEDULED = "GangScheduled"
    QUOTA_RESERVED = "QuotaReserved"
    SPREAD_OVER_NODES = "SpreadOverNodes"
    NODES_STAY = "NodesStay"
    CAPACITY_PREFERRED = "CapacityPreferred"
    STALLED = "Stalled"


class Reason(StrEnum):
    """The reasons of conditions and of the ends of attempts, in one list."""

    ACCEPTED = "Accepted"
    INVALID = "Invalid"
    WAITING_FOR_REPLICAS = "WaitingForReplicas"
    REPLICAS_REFUSED = "ReplicasRefused"
    ALL_REPLICAS_RUNNING = "AllReplicasRunning"
    COMPLETED = "Completed"
    COMPLETED_WITHOUT_REPORT = "CompletedWithoutReport"
    SUSPENDED = "Suspended"
    RESUMED = "Resumed"
    NOT_SUSPENDED = "NotSuspended"
    RESTARTING = "Restarting"
    # ends of an attempt, and of a job
    USER_ERROR = "UserError"
    LOSS_NOT_FINITE = "LossNotFinite"
    BAD_CONFIGURATION = "BadConfiguration"
    PEER_LOST = "PeerLost"
    PREEMPTED = "Preempted"
    PREEMPTED_NOT_SAVED = "PreemptedNotSaved"
    CHECKPOINT_DAMAGED = "CheckpointDamaged"
    STORAGE_UNAVAILABLE = "StorageUnavailable"
    STORAGE_FULL = "StorageFull"
    STORAGE_READ_ONLY = "StorageReadOnly"
    STORAGE_FORBIDDEN = "StorageForbidden"
    INPUT_UNAVAILABLE = "InputUnavailable"
    INPUT_DISK_FULL = "InputDiskFull"
    INPUT_REFUSED = "InputRefused"
    INPUT_NOT_FOUND = "InputNotFound"
    INPUT_FORBIDDEN = "InputForbidden"
    PROCESS_KILLED = "ProcessKilled"
    OUT_OF_MEMORY = "OutOfMemory"
    DISRUPTED = "Disrupted"
    DEVICE_UNHEALTHY = "DeviceUnhealthy"
    DEVICE_TAINTED = "DeviceTainted"
    EVICTED = "Evicted"
    NODE_LOST = "NodeLost"
    POD_DELETED = "PodDeleted"
    REPLICA_LOST = "ReplicaLost"
    START_FAILED = "StartFailed"
    INIT_CONTAINER_FAILED = "InitContainerFailed"
    SUPERVISOR_NOT_COPIED = "SupervisorNotCopied"
    HANG = "Hang"
    SCALED = "Scaled"
    RESCHEDULED = "Rescheduled"
    MOVED = "Moved"
    # ends of a job only
    PREEMPTION_LIMIT = "PreemptionLimitExceeded"
    INFRASTRUCTURE_LIMIT = "InfrastructureLimitExceeded"
    APPLICATION_LIMIT = "ApplicationLimitExceeded"
    REPEATED_ERROR = "RepeatedError"
    NO_PROGRESS = "NoProgress"
    STARTUP_DEADLINE = "StartupDeadlineExceeded"
    ACTIVE_DEADLINE = "ActiveDeadlineExceeded"
    # ends of a job, or of an attempt that is suspended
    DEVICE_HOURS_LIMIT = "DeviceHoursLimitReached"
    COST_LIMIT = "CostLimitReached"
    # ResumeRegression
    RESUMED_AT_COMMIT = "ResumedAtCommit"
    STARTED_OVER = "StartedOver"
    # StorageShared
    MANY_NODES = "ManyNodes"
    ONE_NODE = "OneNode"
    ONE_POD = "OnePod"
    # SpreadOverNodes, which also has ManyNodes
    WORLD_ON_ONE_NODE = "WorldOnOneNode"
    # NodesStay
    NODE_GOES = "NodeGoes"
    NO_NEW_PODS = "NodeTakesNoPods"
    NO_NOTICE = "NoNotice"
    CLAIM_NOT_FOUND = "ClaimNotFound"
    # CapacityPreferred
    WAITING_FOR_CLASS = "WaitingForClass"
    FELL_BACK = "FellBack"
    RETURNING = "Returning"
    ON_PREFERRED_CLASS = "OnPreferredClass"
    # Straggling
    SLOW_RANK = "SlowRank"
    EVEN = "RanksAreEven"
    # GraceSufficient
    GRACE_TOO_SHORT = "GraceTooShort"
    SAVED_IN_TIME = "SavedInTime"
    # GangScheduled, Valid, and the end of an attempt
    WAITING_FOR_GANG = "WaitingForGang"
    GANG_PLACED = "GangPlaced"
    GANG_UNAVAILABLE = "GangUnavailable"
    GANG_REQUEUED = "GangRequeued"
    # QuotaReserved, Valid, and the end of an attempt
    WAITING_FOR_QUOTA = "WaitingForQuota"
    QUOTA_RESERVED = "QuotaReserved"
    QUEUE_UNAVAILABLE = "QueueUnavailable"
    EVICTED_BY_QUEUE = "EvictedByQueue"


LIMIT_REASONS = (Reason.DEVICE_HOURS_LIMIT, Reason.COST_LIMIT)
"""Why a limit of use has ended or suspended a job."""


class StatusPart:
    """The base of all parts: camelCase on the wire, unknown fields refused."""

    __pydantic_config__ = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")


@contextmanager
def described() -> Iterator[None]:
    """Schemas that are made inside have descriptions. pydantic then parses the source of each class, which would slow every import."""
    StatusPart.__pydantic_config__["use_attribute_docstrings"] = True
    try:
        yield
    finally:
        del StatusPart.__pydantic_config__["use_attribute_docstrings"]


@dataclass(frozen=True, kw_only=True)
class Condition(StatusPart):
    """metav1.Condition."""

    type: ConditionType
    """Type of the condition. Each type occurs once."""
    status: Literal["True", "False", "Unknown"]
    """Whether the condition holds."""
    reason: Reason
    """Reason for the status, in one word."""
    message: Annotated[str, Field(max_length=32768)] = ""
    """The same, as a sentence."""
    last_transition_time: Time
    """When status last changed."""
    observed_generation: Count | None = None
    """metadata.generation that the condition was set for."""


@dataclass(frozen=True, kw_only=True)
class Member(StatusPart):
    """A replica of the current world."""

    role: str
    """Role of the replica."""
    index: Count
    """Index of the replica in its role."""
    uid: str = ""
    """Uid of the replica's pod. Empty until the pod exists."""
    awaited: bool = False
    """Whether the replica's pod is from the attempt before and has not yet confirmed that its old processes have ended."""
    incarnation: AttemptNumber | None = None
    """The attempt in which the replica's processes started, if they kept running when other replicas restarted."""
    succeeded: bool = False
    """Whether the replica succeeded. Its pod may be removed before the others end."""
    unhealthy_since: Moment | None = None
    """Since when its node reports a device of the replica as unhealthy. Absent if all its devices are healthy."""
    suffix: Count | None = None
    """Number at the end of the names of the replica's pod and host. Absent if the names have no such number."""

    @property
    def replica(self) -> tuple[str, int]:
        """Role and index."""
        return self.role, self.index

    @property
    def label(self) -> str:
        return f"{self.role}-{self.index}"


Ranges = Annotated[str, Field(pattern=f"^{RANGES}$")]
"""Indexes of replicas, such as `0-99,120`."""


@dataclass(frozen=True, kw_only=True)
class AlikeMembers(StatusPart):
    """What some members of a role have in common, with the words of a single member."""

    indexes: Ranges
    """Their indexes."""
    awaited: bool = False
    """Whether their pods are from the attempt before and have not yet confirmed that their old processes have ended."""
    incarnation: AttemptNumber | None = None
    """The attempt in which their processes started, if they kept running when other replicas restarted."""
    succeeded: bool = False
    """Whether they succeeded."""
    unhealthy_since: Moment | None = None
    """Since when their nodes report a device of theirs as unhealthy."""
    suffix: Count | None = None
    """Number at the end of the names of their pods and hosts."""


@dataclass(frozen=True, kw_only=True)
class RoleMembers(StatusPart):
    """Members of one role, in a world that has too many for a list."""

    role: str
    """Role of the members."""
    indexes: Ranges
    """Indexes of the members, in the order of their ranks, such as `0-99,120`."""
    uids: tuple[str, ...]
    """Uids of their pods, in this order: the 16 bytes of each UUID as base64. Empty until the pod exists."""
    alike: tuple[AlikeMembers, ...] = ()
    """What is not the same for all members. A member that is in no entry runs as in a first attempt."""

    @cached_property
    def members(self) -> tuple[Member, ...]:
        """The members one by one. Raises ValueError if the fields do not fit."""
        most = len(self.uids)
        indexes, uids = in_ranges(self.indexes, most=most), map(whole_uid, self.uids)
        if len(indexes) != most:
            raise ValueError(f"must have a uid for each of its {len(indexes)} indexes")
        alike: dict[int, dict[str, Any]] = {}
        for each in self.alike:
            common = {name: getattr(each, name) for name in _COMMON}
            alike.update((index, common) for index in in_ranges(each.indexes, most=most))
        parts = [{"role": self.role, "index": index, "uid": uid, **alike.get(index, {})} for index, uid in zip(indexes, uids, strict=True)]
        members: tuple[Member, ...] = _members_adapter().validate_python(parts, by_alias=False, by_name=True)
        return members


_COMMON = tuple(each.name for each in fields(AlikeMembers) if each.name != "indexes")
_in_common = attrgetter(*_COMMON)
_ORDINARY = _in_common(AlikeMembers(indexes="0"))


def _together(members: Iterable[Member]) -> Iterator[RoleMembers]:
    """The members as they are written, in their order."""
    for role, group in groupby(members, attrgetter("role")):
        of_role = list(group)
        alike: dict[tuple[Any, ...], list[int]] = {}
        for each in of_role:
            if (common := _in_common(each)) != _ORDINARY:
                alike.setdefault(common, []).append(each.index)
        entries = (AlikeMembers(indexes=ranges(indexes), **dict(zip(_COMMON, values, strict=True))) for values, indexes in alike.items())
        yield RoleMembers(
            role=role,
            indexes=ranges([each.index for each in of_role]),
            uids=tuple([short_uid(each.uid) for each in of_role]),
            alike=tuple(entries),
        )


def _fitting(part: RoleMembers) -> RoleMembers:
    """Refuses members that cannot be read. They then count as absent, as a number out of bounds does."""
    part.members  # noqa: B018 - it raises
    return part


def members_in(world: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The members of a world that nobody has checked, as plain data."""
    listed, together = world.get("members"), world.get("membersByRole")
    if not together:
        return listed if isinstance(listed, list) else []
    try:
        parts = _parts_adapter().validate_python(together, by_alias=True, by_name=False)
    except ValueError:
        return []
    return [each for part in parts for each in _members_adapter().dump_python(part.members, mode="json", by_alias=True, exclude_none=True)]


@cache
def _parts_adapter() -> TypeAdapter[Any]:
    return TypeAdapter(tuple[Annotated[RoleMembers, AfterValidator(_fitting)], ...])


@cache
def _members_adapter() -> TypeAdapter[Any]:
    return TypeAdapter(tuple[Member, ...])


@dataclass(frozen=True, kw_only=True)
class OrphanedPod(StatusPart):
    """A pod of an older attempt that does not answer and may still exist. A pod with another name has taken its place."""

    name: str
    """Name of the pod."""
    uid: str
    """Uid of the pod."""
    role: str
    """Role of the pod's replica."""
    index: Count
    """Index of the replica in its role."""
    attempt: AttemptNumber | None = None
    """The last attempt that the pod had a part in. Absent for spares."""
    node: str = ""
    """Node of the pod. New pods do not go there while the pod is listed."""
    since: Moment
    """When Muster stopped waiting for the pod."""

    @property
    def replica(self) -> tuple[str, int]:
        """Role and index."""
        return self.role, self.index


@dataclass(frozen=True, kw_only=True)
class World(StatusPart):
    """The world of the current attempt. The status has it before any of its replicas is created."""

    attempt: AttemptNumber
    """The attempt that this world belongs to."""
    size: Count
    """Number of training processes."""
    synchronous: bool | None = None
    """Whether all workers apply every update at the same step. If not, progress.metrics has the staleness of gradients."""
    members: tuple[Member, ...] = ()
    """The replicas of the world, if there are at most 128."""
    members_by_role: tuple[Annotated[RoleMembers, AfterValidator(_fitting)], ...] | None = None
    """The replicas of a larger world, by role. Only the written status has them in this form."""
    created_time: Moment
    """When Muster decided to create the world."""
    ready_time: Moment | None = None
    """When all replicas of the world were first running."""
    first_step_time: Moment | None = None
    """When the first step of the world was done."""
    saved_seconds: Seconds = 0.0
    """How long saves have blocked the training, in seconds."""
    activity: Annotated[str | None, Field(max_length=32)] = None
    """The last activity that the world reported, such as Training or Saving."""

    @cached_property
    def member_of(self) -> Mapping[str, Member]:
        """The member of each pod, by the pod's uid."""
        return {member.uid: member for member in self.members if member.uid}

    @cached_property
    def places(self) -> Mapping[str, Mapping[int, int]]:
        """By role and index, the place of each member among those of its role."""
        places: dict[str, dict[int, int]] = {}
        for member in self.members:
            of_role = places.setdefault(member.role, {})
            of_role[member.index] = len(of_role)
        return places


def _read(world: World | None) -> World | None:
    """The world with all of its members in `members`."""
    if world is None or world.members_by_role is None:
        return world
    members = tuple(each for part in world.members_by_role for each in part.members)
    return replace(world, members=members or world.members, members_by_role=None)


def _written(world: World | None, write: SerializerFunctionWrapHandler) -> Any:
    """The world as it is written: a long list of members becomes short."""
    if world is not None and len(world.members) > MOST_LISTED_MEMBERS:
        world = replace(world, members=(), members_by_role=tuple(_together(world.members)))
    return write(world)


@dataclass(frozen=True, kw_only=True)
class RoleStatus(StatusPart):
    name: str
    """Name of the role."""
    desired: Count = 0
    """Number of replicas that the current world needs."""
    ready: Count = 0
    """Number of running replicas."""
    succeeded: Count = 0
    """Number of replicas that succeeded."""
    failed: Count = 0
    """Number of replicas of the current attempt that failed by themselves."""


@dataclass(frozen=True, kw_only=True)
class Progress(StatusPart):
    step: Count = 0
    """Number of steps done, over all attempts."""
    total_steps: Count | None = None
    """Total number of steps. Absent if the program does not report it."""
    percent: Annotated[int | None, Field(ge=0, le=100)] = None
    """Percentage of the steps that are done."""
    epoch: Count | None = None
    """Current epoch, from 0."""
    loss: Annotated[str | None, Field(max_length=32)] = None
    """Loss of the last step. It is a string, because it may be NaN."""
    samples_per_second: Rate | None = None
    """Number of samples per second, over all devices."""
    eta_seconds: Count | None = None
    """Estimated seconds to the end."""
    metrics: dict[str, Figure] | None = None
    """Results of the last evaluation."""
    updated_at: Moment | None = None
    """When the progress was reported."""


@dataclass(frozen=True, kw_only=True)
class CheckpointStatus(StatusPart):
    """The newest commit that a supervisor reported."""

    step: Count
    """Step of the commit."""
    path: str
    """Folder of the commit, below the job's checkpoint folder."""
    committed_at: Time
    """When the commit became valid."""
    seconds: Seconds | None = None
    """How long the save took, in seconds."""
    measured_seconds: Seconds | None = None
    """Estimated duration of a save, in seconds: the newest measured duration, or half of the one before if that is more."""
    blocked_seconds: Seconds | None = None
    """How long the training waited for the save, in seconds."""
    interval_seconds: Seconds | None = None
    """Seconds from the beginning of the save to the next one, if everySeconds is Auto. They follow from blockedSeconds and the restarts."""
    verified: bool = False
    """Whether a later attempt has read the commit and verified its checksums."""


@dataclass(frozen=True, kw_only=True)
class SnapshotStatus(StatusPart):
    """The newest complete snapshot in the memory of the replicas."""

    step: Count
    """Step of the snapshot."""
    bytes: Count = 0
    """Memory that snapshots take in all replicas together."""
    copies: Count = 0
    """Number of other replicas that hold each part."""


@dataclass(frozen=True, kw_only=True)
class Restarts(StatusPart):
    """Restarts so far, and the times of those that count towards a budget."""

    total: Count = 0
    """Number of restarts that count towards a budget, since the job was created."""
    preemption: RestartTimes = ()
    """Times of restarts after preemptions."""
    infrastructure: RestartTimes = ()
    """Times of restarts after infrastructure failures."""
    application: RestartTimes = ()
    """Times of restarts after failures of the training code."""
    preemption_count: Count = 0
    """Number of restarts after preemptions."""
    infrastructure_count: Count = 0
    """Number of restarts after infrastructure failures."""
    application_count: Count = 0
    """Number of restarts after failures of the training code."""
    without_progress: Count = 0
    """Number of failed attempts in a row that did no new step."""
    best_step: Count = 0
    """Highest step that any ended attempt reached or resumed from. Only a higher step is progress."""


@dataclass(frozen=True, kw_only=True)
class Phases(StatusPart):
    """Durations until an attempt's first step. They add up to the time since the last failure, or since the attempt began.

    If the program reports no steps, only the durations until its processes run are present.
    """

    detect_seconds: Seconds = 0.0
    """Seconds from the failure of the attempt before until Muster detected it."""
    schedule_seconds: Seconds = 0.0
    """Seconds until all replicas ran and the processes of older attempts had ended."""
    start_seconds: Seconds | None = None
    """Seconds until the processes had formed a world."""
    load_seconds: Seconds | None = None
    """Seconds until the checkpoint was read and verified."""
    first_step_seconds: Seconds | None = None
    """Seconds until the first step was done. Absent if no step is reported."""

    @property
    def measured(self) -> dict[str, float]:
        """The seconds of those phases that were measured, by field."""
        return {each.name: seconds for each in fields(self) if (seconds := vars(self)[each.name]) is not None}

    @property
    def total_seconds(self) -> float:
        return float(sum(self.measured.values()))


@dataclass(frozen=True, kw_only=True)
class Stall(StatusPart):
    """How an attempt hung."""

    step: Count
    """The last step that was done, or 0."""
    seconds: Seconds
    """The limit that was exceeded, in seconds."""
    activity: Annotated[str, Field(max_length=64)] = ""
    """The activity that the attempt had reported."""


@dataclass(frozen=True, kw_only=True)
class AttemptRecord(StatusPart):
    """One attempt: how it began, how it ended, and what it cost."""

    attempt: AttemptNumber
    """Number of the attempt."""
    start_time: Moment
    """When Muster decided to create the attempt's world."""
    end_time: Moment | None = None
    """When Muster detected the end. Absent for the current attempt."""
    reason: Reason | None = None
    """Why the attempt ended."""
    failure_class: Annotated[FailureClass | None, Field(alias="class")] = None
    """The failure class, which determines the budget that the failure counts towards."""
    settled: bool = False
    """Whether reason and class are final. If false, later reports may still change them."""
    replica: str | None = None
    """The replica that failed first, such as worker-1."""
    node: str | None = None
    """The node that this replica ran on."""
    failed_time: Moment | None = None
    """When this replica failed."""
    exit_code: int | None = None
    """Exit code of the process that failed first, or of the container. Absent if a signal ended it."""
    signal: Annotated[str | None, Field(max_length=64)] = None
    """Signal that ended this process, such as SIGKILL."""
    announced_nodes: Count | None = None
    """Number of nodes that had announced their end and that this attempt left, or lost. Absent if there was none."""
    message: Message = ""
    """The last error of this replica."""
    stall: Stall | None = None
    """How the attempt hung. Absent if it did not hang."""
    stacks: Message = ""
    """Where the processes were when the attempt hung, one line for each location. The logs have the full stacks."""
    step_committed: Count | None = None
    """Step of the newest commit when the attempt began."""
    step_resumed: Count | None = None
    """Step that the attempt resumed from. Absent if it ended before that, and if the program does not report it."""
    resumed_from: ResumeSource | None = None
    """Survivors: the state of processes that survived. Memory: a snapshot in the memory of the replicas. Storage: a commit. Absent at the
    beginning, if a program resumed by itself, if the chief of ParameterServer trained on, and if the attempt ended before it resumed."""
    survivors: Count | None = None
    """Number of processes that have trained since an earlier attempt, with the same ids."""
    step_skipped: Count | None = None
    """Step of the newest commit, if the attempt should have resumed there and did not."""
    last_step: Count | None = None
    """Last step that the attempt did."""
    steps_lost: Count | None = None
    """Number of steps of the attempt before that had to be redone."""
    phases: Phases | None = None
    """Durations until the attempt's first step."""


@dataclass(frozen=True, kw_only=True)
class Awaited(StatusPart):
    """A reason why pods did not run when the startup deadline passed, in the words of the cluster."""

    kind: Literal["Creation", "Node", "Container"]
    """Creation: the API server refused the pods. Node: they had no node. Container: they had a node, and their containers did not run."""
    reason: Annotated[str, Field(max_length=128)] = ""
    """The reason in one word, such as Unschedulable."""
    message: Message = ""
    """The message of the API server, the scheduler or the kubelet."""
    replica: str | None = None
    """The first replica with this reason, such as worker-1."""


@dataclass(frozen=True, kw_only=True)
class AvoidedNode(StatusPart):
    name: str
    """Name of the node."""
    deaths: Count
    """Number of the last attempts that failed on the node. One is enough if a device was the cause, else two."""
    until: Moment
    """Pods that are created before this time avoid the node, if the scheduler can place them elsewhere."""


class Meaning(StrEnum):
    """What a notice of a node means."""

    GOES = "Goes"
    """The node goes, soon or at a known time."""
    TAKES_NO_PODS = "TakesNoPods"
    """The node takes no new pods. It may stay."""


@dataclass(frozen=True, kw_only=True)
class NodeNotice(StatusPart):
    """The announcement that a node goes, or takes no new pods."""

    node: Annotated[str, Field(max_length=253)]
    """Name of the node."""
    signal: Annotated[str, Field(max_length=LONGEST_SIGNAL)]
    """What announces it, such as `taint karpenter.sh/disrupted`."""
    meaning: Meaning
    """Goes: the node goes. TakesNoPods: it takes no new pods, and may stay."""
    since: Moment
    """When Muster first saw the signal."""
    goes_time: Moment | None = None
    """When the node goes, as far as the signal says so."""

    @property
    def is_of_karpenter(self) -> bool:
        """Whether Karpenter announces it, which then also adds the nodes for new pods. It deletes a node before it taints it, unless it
        replaces the node."""
        return self.signal in KARPENTER_SIGNALS


@dataclass(frozen=True, kw_only=True)
class CapacityStatus(StatusPart):
    """The capacity classes of a role that waits for nodes, or has fallen back to a class that it does not prefer."""

    role: str
    """Name of the role."""
    classes: Annotated[tuple[ClassName, ...], Field(max_length=MAX_CLASSES)]
    """Classes that new pods of the role may use now, the preferred one first."""
    since: Moment
    """Since when they may use these."""
    waiting_since: Moment | None = None
    """Since when a pod of the role finds no node of these classes. Absent while none waits."""
    returning: Count = 0
    """Number of workers that go back to the preferred class as soon as it has nodes for their replacements."""


@dataclass(frozen=True, kw_only=True)
class NoticeCounts(StatusPart):
    """What came of the notices of nodes so far."""

    came: Count = 0
    """Number of nodes with replicas of the world that announced their end."""
    met: Count = 0
    """Number of those that the job left, or lost, without having to do any step again."""
    missed: Count = 0
    """Number of those that the job left or lost, so that steps had to be done again."""


@dataclass(frozen=True, kw_only=True)
class InputStatus(StatusPart):
    """An input, over all replicas of the current attempt that need it."""

    name: str
    """Name of the input."""
    source: str
    """Source of the input."""
    phase: Literal["Waiting", "Fetching", "Ready"] = "Waiting"
    """Waiting: no replica has begun. Fetching: some replica has begun. Ready: all replicas have it."""
    revision: Annotated[str, Field(max_length=MAX_REVISION)] = ""
    """The commit of the repository, or a digest of the listing of the bucket. Later replicas and attempts fetch the same."""
    bytes: Count = 0
    """Bytes that the replica with the fewest has in its cache."""
    total_bytes: Count | None = None
    """Bytes of the input. Absent while they are not known."""
    ready: Count = 0
    """Number of replicas that have the input."""
    replicas: Count = 0
    """Number of replicas that need the input."""
    updated_at: Moment | None = None
    """When one of these figures last changed."""


@dataclass(frozen=True, kw_only=True)
class Straggler(StatusPart):
    """A rank that works longer in each step than the other ranks."""

    rank: Count
    """Rank of the process."""
    replica: str
    """Replica of the rank, such as worker-1."""
    seconds: Seconds
    """How long the rank works in a step, in seconds."""
    others_seconds: Seconds
    """How long the other ranks work in a step, in seconds (median)."""


@dataclass(frozen=True, kw_only=True)
class GraceStatus(StatusPart):
    """Whether the grace period was long enough at a stop. It is about the last stop that changed the result."""

    attempt: AttemptNumber
    """The attempt that was stopped."""
    reason: Reason
    """The result: GraceTooShort, PreemptedNotSaved or SavedInTime."""
    replica: str = ""
    """The replica that was stopped."""
    node: str = ""
    """The node that this replica ran on."""
    given_seconds: Count | None = None
    """The grace period that the replica had, in seconds. Absent if its pod did not show it."""
    needed_seconds: Count = 0
    """Longest time that a save takes, in seconds."""
    allowed_seconds: Count = 0
    """The grace period of pods that are created later, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Goodput(StatusPart):
    """How the time since the job's creation was used. The parts add up to this time."""

    ratio: Annotated[float | None, Field(ge=0, le=1)] = None
    """Productive time divided by all time without suspensions. Absent if the program reports no steps."""
    queued_seconds: Seconds = 0.0
    """Seconds of waiting for replicas to run, in the first attempt."""
    starting_seconds: Seconds = 0.0
    """Seconds from running replicas to the first step, in the first attempt or after a suspension."""
    unreported_seconds: Seconds | None = None
    """Seconds in which processes ran and reported no steps, so that what they did is unknown."""
    productive_seconds: Seconds | None = None
    """Seconds of evaluations, and of steps that did not have to be redone."""
    checkpoint_seconds: Seconds | None = None
    """Seconds in which saves blocked the training."""
    redone_seconds: Seconds | None = None
    """Seconds of steps whose results were lost."""
    recovering_seconds: Seconds = 0.0
    """Seconds from a failure to the next attempt's first step, or to its running processes if no steps are reported."""
    suspended_seconds: Seconds = 0.0
    """Seconds in which the job was suspended by the user or a queue."""
    productive_steps: Count | None = None
    """Number of steps in productiveSeconds."""


@dataclass(frozen=True, kw_only=True)
class DeviceUsage(StatusPart):
    """The use of one kind of device in one capacity class."""

    capacity_class: Annotated[str, Field(max_length=63)] = ""
    """Capacity class of the nodes. Empty if they have none."""
    device: Annotated[str, Field(max_length=317)]
    """Resource name of the accelerator, such as nvidia.com/gpu; claim for each ResourceClaim of a pod; pod for a pod without either."""
    seconds: Amount = 0.0
    """Device-seconds until countedUntil."""
    open: Count = 0
    """Devices that pods of the job held at countedUntil. They go on to count from then."""
    ended: Count = 0
    """Devices of pods that had ended by then and still existed. They count no more."""


@dataclass(frozen=True, kw_only=True)
class Usage(StatusPart):
    """What the pods of the job have used. A pod counts from its node's assignment until its last container ends or the pod is gone. The
    parts from usefulSeconds to idleSeconds add up to deviceSeconds."""

    counted_until: Moment
    """Time up to which the use is counted."""
    device_seconds: Amount = 0.0
    """Device-seconds of all pods."""
    uncertain_seconds: Amount = 0.0
    """Those of the device-seconds that may not have been used, because pods went while no operator watched them."""
    useful_seconds: Amount = 0.0
    """Device-seconds of evaluations, and of steps that did not have to be redone."""
    unreported_seconds: Amount = 0.0
    """Device-seconds of processes that report no steps."""
    checkpoint_seconds: Amount = 0.0
    """Device-seconds in which saves blocked the training."""
    redone_seconds: Amount = 0.0
    """Device-seconds of steps whose results were lost."""
    waiting_seconds: Amount = 0.0
    """Device-seconds until the first step, in the first attempt or after a suspension."""
    recovering_seconds: Amount = 0.0
    """Device-seconds from a failure to the next attempt's first step."""
    idle_seconds: Amount = 0.0
    """Device-seconds of spares, and of pods that end because the job is suspended or has ended."""
    cost: Amount | None = None
    """Cost of the pods, at the prices of the capacity classes when they ran. Absent if no class has a price."""
    hourly_cost: Amount | None = None
    """Cost of an hour of what pods of the job held at countedUntil."""
    devices: Annotated[tuple[DeviceUsage, ...], Field(max_length=MAX_DEVICE_KINDS)] = ()
    """The device-seconds by capacity class and kind of device."""
    summary: Annotated[str, Field(max_length=128)] = ""
    """Device-hours and cost in short, such as `12.5 device-h, 31.20`."""


@dataclass(frozen=True, kw_only=True)
class QueueStatus(StatusPart):
    """The queue that a job waits in."""

    name: str
    """Name of the queue, a LocalQueue of Kueue."""
    since: Time
    """Since when the job waits in the queue."""
    position: Annotated[int | None, Field(ge=1)] = None
    """Position in the LocalQueue, from 1. Absent if Kueue does not report it."""
    cluster_queue_position: Annotated[int | None, Field(ge=1)] = None
    """Position in the ClusterQueue of the LocalQueue, from 1. Absent if Kueue does not report it."""
    summary: str
    """Position and name in short, such as `3 in team-a`."""


@dataclass(frozen=True, kw_only=True)
class Notice(StatusPart):
    """A message for the user."""

    reason: NoticeReason
    """Reason of the notice, in one word."""
    message: Annotated[str, Field(max_length=1024)]
    """Text of the notice."""


@dataclass(frozen=True, kw_only=True)
class TrainingJobStatus(StatusPart):
    """The observed state of a TrainingJob."""

    observed_generation: Count | None = None
    """metadata.generation that this status is for."""
    phase: Phase = Phase.PENDING
    """Phase of the job."""
    conditions: tuple[Condition, ...] = ()
    """Conditions of the job, one of each type."""
    message: Message = ""
    """What the job does or waits for, and the failure before."""
    admitted_time: Moment | None = None
    """When Muster decided to create the job's first world."""
    start_time: Moment | None = None
    """When all replicas first ran."""
    completion_time: Moment | None = None
    """When the job ended."""
    next_attempt_time: Moment | None = None
    """Earliest start of the next attempt."""
    image: Annotated[str | None, AfterValidator(_image)] = None
    """The trainer image. It is fixed when the job is admitted."""
    gang_scheduler: Annotated[str | None, Field(max_length=253)] = None
    """API group of the job's PodGroup. Empty if each pod is scheduled by itself. It is fixed when the job starts or resumes."""
    queue: QueueStatus | None = None
    """The queue that the job waits in. Absent while it does not wait."""
    attempt: AttemptNumber = 0
    """Number of the current attempt."""
    world: Annotated[World | None, AfterValidator(_read), WrapSerializer(_written)] = None
    """World of the current attempt."""
    orphaned: Annotated[tuple[OrphanedPod, ...], Field(max_length=MAX_ORPHANED)] = ()
    """Pods of older attempts that do not answer and may still exist. Their processes cannot commit, and no world waits for them."""
    workers: str = ""
    """Numbers of running and desired workers, such as 3/4."""
    replicas: Count = 0
    """Number of existing worker replicas, for the scale subresource."""
    ready_replicas: Count = 0
    """Number of running worker replicas."""
    ready_spares: Count | None = None
    """Number of spares that can take a place in the world at once. Absent without `recovery.spares`."""
    selector: str = ""
    """Label selector of the worker pods, for the scale subresource."""
    roles: tuple[RoleStatus, ...] = ()
    """Numbers of replicas by role."""
    inputs: Annotated[tuple[InputStatus, ...], Field(max_length=MAX_INPUTS)] = ()
    """Progress of the inputs."""
    progress: Progress | None = None
    """Progress of the training."""
    checkpoint: CheckpointStatus | None = None
    """The newest commit that was reported."""
    snapshot: SnapshotStatus | None = None
    """The newest snapshot in memory."""
    restarts: Restarts = Restarts()
    """Restarts by class."""
    attempts: Annotated[tuple[AttemptRecord, ...], Field(max_length=MAX_ATTEMPT_RECORDS)] = ()
    """The last ten attempts, oldest first."""
    awaited: Annotated[tuple[Awaited, ...], Field(max_length=MAX_AWAITED)] = ()
    """Why the pods did not run when the startup deadline passed, at most four reasons. Empty if the job did not end for that."""
    avoided_nodes: Annotated[tuple[AvoidedNode, ...], Field(max_length=MAX_ATTEMPT_RECORDS)] = ()
    """Nodes on which attempts failed repeatedly, or on which a device failed."""
    node_notices: Annotated[tuple[NodeNotice, ...], Field(max_length=MAX_NODE_NOTICES)] = ()
    """Nodes of the job that announce that they go, or take no new pods."""
    capacity: Annotated[tuple[CapacityStatus, ...], Field(max_length=MAX_ROLES)] = ()
    """Roles that wait for nodes of their capacity classes, or have fallen back."""
    notice_counts: NoticeCounts | None = None
    """What came of the notices of nodes so far. Absent if there was none."""
    stragglers: Annotated[tuple[Straggler, ...], Field(max_length=8)] = ()
    """Ranks that are slower than the others, the first eight."""
    grace: GraceStatus | None = None
    """Whether the grace period was long enough to save. Absent if no stop has shown a problem."""
    goodput: Goodput | None = None
    """How the time of the job was used."""
    usage: Usage | None = None
    """Device-hours and cost of the job."""
    notices: Annotated[tuple[Annotated[Notice, BeforeValidator(notice_of)], ...], Field(max_length=10)] = ()
    """Notices of the newest attempt, at most ten."""

    def condition(self, kind: ConditionType) -> Condition | None:
        """The condition of that type, if it was ever set."""
        return next((condition for condition in self.conditions if condition.type is kind), None)

    def wire(self) -> dict[str, Any]:
        """The status as it goes to the API server: camelCase, absent fields left out."""
        document: dict[str, Any] = _adapter().dump_python(self, mode="json", by_alias=True, exclude_none=True, warnings="error")
        return document

    @classmethod
    def from_wire(cls, document: object) -> Self:
        """The status of an object of the API server. Raises pydantic's ValidationError."""
        status: Self = _adapter().validate_python(document, by_alias=True, by_name=False)
        return status


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(TrainingJobStatus)
