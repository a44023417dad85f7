"""What is: the status of a TrainingJob. Written by the lifecycle core alone."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from muster.api.base import ApiModel, Moment, Time

ATTEMPTS_KEPT = 10


class Phase(StrEnum):
    """Where a job stands, in one word."""

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


class FailureClass(StrEnum):
    """Whose fault a failure is, and so which budget pays for the restart."""

    PREEMPTION = "Preemption"
    INFRASTRUCTURE = "Infrastructure"
    APPLICATION = "Application"


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


class Reason(StrEnum):
    """Why: reasons of conditions and of attempts' ends, one list for all."""

    ACCEPTED = "Accepted"
    INVALID = "Invalid"
    WAITING_FOR_REPLICAS = "WaitingForReplicas"
    REPLICAS_REFUSED = "ReplicasRefused"
    ALL_REPLICAS_RUNNING = "AllReplicasRunning"
    COMPLETED = "Completed"
    SUSPENDED = "Suspended"
    RESUMED = "Resumed"
    NOT_SUSPENDED = "NotSuspended"
    RESTARTING = "Restarting"
    # ends of an attempt, and of a job
    USER_ERROR = "UserError"
    BAD_CONFIGURATION = "BadConfiguration"
    PEER_LOST = "PeerLost"
    PREEMPTED = "Preempted"
    PREEMPTED_NOT_SAVED = "PreemptedNotSaved"
    CHECKPOINT_DAMAGED = "CheckpointDamaged"
    STORAGE_UNAVAILABLE = "StorageUnavailable"
    PROCESS_KILLED = "ProcessKilled"
    OUT_OF_MEMORY = "OutOfMemory"
    DISRUPTED = "Disrupted"
    EVICTED = "Evicted"
    NODE_LOST = "NodeLost"
    POD_DELETED = "PodDeleted"
    REPLICA_LOST = "ReplicaLost"
    START_FAILED = "StartFailed"
    HANG = "Hang"
    SCALED = "Scaled"
    # ends of a job only
    PREEMPTION_LIMIT = "PreemptionLimitExceeded"
    INFRASTRUCTURE_LIMIT = "InfrastructureLimitExceeded"
    APPLICATION_LIMIT = "ApplicationLimitExceeded"
    REPEATED_ERROR = "RepeatedError"
    NO_PROGRESS = "NoProgress"
    STARTUP_DEADLINE = "StartupDeadlineExceeded"
    ACTIVE_DEADLINE = "ActiveDeadlineExceeded"
    # ResumeRegression
    RESUMED_AT_COMMIT = "ResumedAtCommit"
    STARTED_OVER = "StartedOver"
    # StorageShared
    MANY_NODES = "ManyNodes"
    ONE_NODE = "OneNode"
    ONE_POD = "OnePod"
    CLAIM_NOT_FOUND = "ClaimNotFound"
    # Straggling
    SLOW_RANK = "SlowRank"
    EVEN = "RanksAreEven"
    # GraceSufficient
    GRACE_TOO_SHORT = "GraceTooShort"
    SAVED_IN_TIME = "SavedInTime"


class Condition(ApiModel):
    """metav1.Condition."""

    type: ConditionType = Field(description="Kind of the condition; one of each.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: Reason = Field(description="Why, in one word.")
    message: str = Field(default="", max_length=32768, description="Why, in one sentence.")
    last_transition_time: Time = Field(description="When status last changed.")
    observed_generation: int | None = Field(default=None, ge=0, description="metadata.generation that this was seen at.")


class Member(ApiModel):
    """A replica of the current world."""

    role: str = Field(description="Role of the replica.")
    index: int = Field(ge=0, description="Index of the replica in its role.")
    uid: str = Field(default="", description="uid of its pod, once known.")
    awaited: bool = Field(
        default=False, description="Whether it is kept from the attempt before, and has not yet said that its old processes are gone."
    )
    incarnation: int | None = Field(
        default=None,
        ge=0,
        description="The attempt that its processes were started in, where they outlived it: a restart of others has left them alone.",
    )
    succeeded: bool = Field(default=False, description="Whether it ended well; kept, since its pod may be removed before the others end.")


class World(ApiModel):
    """The world of the current attempt, written here before anybody acts on it."""

    attempt: int = Field(ge=0, description="The attempt it belongs to.")
    size: int = Field(ge=0, description="Number of training processes.")
    synchronous: bool | None = Field(
        default=None, description="Whether all workers see every update at the same step; else progress.metrics has the staleness."
    )
    members: list[Member] = Field(default_factory=list, description="The replicas that make it up.")
    created_time: Moment = Field(description="When it was decided.")
    ready_time: Moment | None = Field(default=None, description="When all of its replicas were first running.")
    first_step_time: Moment | None = Field(default=None, description="When its first step was seen done.")
    saved_seconds: float = Field(default=0.0, ge=0, description="How long its saves have stopped the training.")
    activity: str | None = Field(default=None, max_length=32, description="What it last said it does, such as Training or Saving.")


class RoleStatus(ApiModel):
    name: str = Field(description="The role.")
    desired: int = Field(default=0, ge=0, description="Replicas that the current world needs.")
    ready: int = Field(default=0, ge=0, description="Replicas running.")
    succeeded: int = Field(default=0, ge=0, description="Replicas that ended well.")
    failed: int = Field(default=0, ge=0, description="Replicas of the current attempt that failed by themselves.")


class Progress(ApiModel):
    step: int = Field(default=0, ge=0, description="Steps done, over all attempts.")
    total_steps: int | None = Field(default=None, ge=0, description="Steps to do in all, where known.")
    percent: int | None = Field(default=None, ge=0, le=100, description="Share done.")
    epoch: int | None = Field(default=None, ge=0, description="Current epoch, from 0.")
    loss: str | None = Field(default=None, max_length=32, description="Loss of the last step; a string, for it may be NaN.")
    samples_per_second: float | None = Field(default=None, ge=0, description="Samples per second over all devices.")
    eta_seconds: int | None = Field(default=None, ge=0, description="Estimated seconds to the end.")
    metrics: dict[str, float] | None = Field(default=None, description="Results of the last evaluation.")
    updated_at: Moment | None = Field(default=None, description="When this was true.")


class CheckpointStatus(ApiModel):
    """The newest commit that a supervisor reported."""

    step: int = Field(ge=0, description="Step it was saved at.")
    path: str = Field(description="Its folder, below the job's checkpoint folder.")
    committed_at: Time = Field(description="When it became valid.")
    seconds: float | None = Field(default=None, ge=0, description="How long it took to save it.")
    measured_seconds: float | None = Field(
        default=None,
        ge=0,
        description="How long saves take: the newest of which that is known, or half of what was known before if that is more.",
    )
    blocked_seconds: float | None = Field(default=None, ge=0, description="For how much of that the training waited.")
    verified: bool = Field(default=False, description="Whether an attempt has since read it back and found its checksums right.")


class Restarts(ApiModel):
    """Restarts so far; the times of those that budgets still look at."""

    total: int = Field(default=0, ge=0, description="All restarts since the job was created.")
    preemption: list[Moment] = Field(default_factory=list, max_length=1000, description="Times of restarts after preemptions.")
    infrastructure: list[Moment] = Field(
        default_factory=list, max_length=1000, description="Times of restarts after infrastructure failures."
    )
    application: list[Moment] = Field(
        default_factory=list, max_length=1000, description="Times of restarts after failures of the training code."
    )
    preemption_count: int = Field(default=0, ge=0, description="All restarts after preemptions.")
    infrastructure_count: int = Field(default=0, ge=0, description="All restarts after infrastructure failures.")
    application_count: int = Field(default=0, ge=0, description="All restarts after failures of the training code.")
    without_progress: int = Field(default=0, ge=0, description="Failed attempts in a row that did no new step.")
    best_step: int = Field(default=0, ge=0, description="Highest step that any ended attempt did or resumed at; beyond it is progress.")


class Phases(ApiModel):
    """What it took to get to an attempt's first step. The parts add up to the time since the failure before, or since the attempt began.

    Of a program that reports no steps only the parts until its processes run are known.
    """

    detect_seconds: float = Field(default=0.0, ge=0, description="From the failure of the attempt before until it was seen.")
    schedule_seconds: float = Field(default=0.0, ge=0, description="Until all replicas ran, and none had processes of an older attempt.")
    start_seconds: float | None = Field(default=None, ge=0, description="Until the processes had formed a world.")
    load_seconds: float | None = Field(default=None, ge=0, description="Until the checkpoint was read and verified.")
    first_step_seconds: float | None = Field(default=None, ge=0, description="Until the first step was done; absent: not reported.")

    @property
    def known(self) -> dict[str, float]:
        """The seconds of those that are known, by field."""
        return {name: seconds for name, seconds in self if seconds is not None}

    @property
    def total_seconds(self) -> float:
        return float(sum(self.known.values()))


class AttemptRecord(ApiModel):
    """One attempt: how it began, how it ended, what it cost."""

    attempt: int = Field(ge=0, description="Its number.")
    start_time: Moment = Field(description="When its world was decided.")
    end_time: Moment | None = Field(default=None, description="When it was seen to have ended; absent: it is the current one.")
    reason: Reason | None = Field(default=None, description="Why it ended.")
    failure_class: FailureClass | None = Field(default=None, alias="class", description="Whose fault that was.")
    settled: bool = Field(default=False, description="False while later news may still correct reason and class.")
    replica: str | None = Field(default=None, description="The replica that failed first, such as worker-1.")
    node: str | None = Field(default=None, description="The node that it ran on.")
    failed_time: Moment | None = Field(default=None, description="When that replica failed.")
    message: str = Field(default="", max_length=4096, description="Its last words.")
    stacks: str = Field(
        default="",
        max_length=4096,
        description="Where its processes stood when it hung, a line for each place; whole stacks are in the logs.",
    )
    step_found: int | None = Field(default=None, ge=0, description="Step of the newest commit when it began.")
    step_resumed: int | None = Field(default=None, ge=0, description="Step it really went on from.")
    last_step: int | None = Field(default=None, ge=0, description="Last step it did.")
    steps_lost: int | None = Field(default=None, ge=0, description="Steps of the attempt before that had to be redone.")
    phases: Phases | None = Field(default=None, description="Where the time until its first step went.")


class AvoidedNode(ApiModel):
    name: str = Field(description="The node.")
    deaths: int = Field(ge=0, description="How many of the last attempts died on it.")
    until: Moment = Field(description="Pods made before then ask the scheduler for another one.")


class Goodput(ApiModel):
    """Where the wall-clock time since the job's creation went. The parts add up to it."""

    ratio: float | None = Field(
        default=None, ge=0, le=1, description="Productive / (all - suspended). Absent: not known, since the program reports no steps."
    )
    queued_seconds: float = Field(default=0.0, ge=0, description="Waiting for replicas to run, in the first attempt.")
    starting_seconds: float = Field(
        default=0.0,
        ge=0,
        description="From running replicas to the first step of the first attempt, or after a suspension.",
    )
    unreported_seconds: float | None = Field(
        default=None, ge=0, description="Processes ran and have reported no step: what they did is not known."
    )
    productive_seconds: float | None = Field(default=None, ge=0, description="Steps that did not have to be redone, and evaluation.")
    checkpoint_seconds: float | None = Field(default=None, ge=0, description="Training stopped by saving.")
    redone_seconds: float | None = Field(default=None, ge=0, description="Steps whose results were lost.")
    recovering_seconds: float = Field(
        default=0.0,
        ge=0,
        description="From a failure to the next attempt's first step, or to its running processes where no steps are reported.",
    )
    suspended_seconds: float = Field(default=0.0, ge=0, description="Suspended by the user or a queue.")
    productive_steps: int | None = Field(default=None, ge=0, description="Steps that productiveSeconds covers.")


class TrainingJobStatus(ApiModel):
    """The observed state of a TrainingJob."""

    observed_generation: int | None = Field(default=None, ge=0, description="metadata.generation that this status speaks of.")
    phase: Phase = Field(default=Phase.PENDING, description="Where the job stands.")
    conditions: list[Condition] = Field(default_factory=list, description="Conditions, one of each type.")
    message: str = Field(default="", max_length=4096, description="What it is doing or waiting for, in one sentence.")
    admitted_time: Moment | None = Field(default=None, description="When its first world was decided.")
    start_time: Moment | None = Field(default=None, description="When all replicas first ran.")
    completion_time: Moment | None = Field(default=None, description="When it ended.")
    next_attempt_time: Moment | None = Field(default=None, description="The next attempt is held back until then.")
    image: str | None = Field(default=None, description="The trainer image, pinned when the job was admitted.")
    attempt: int = Field(default=0, ge=0, description="Number of the current attempt.")
    world: World | None = Field(default=None, description="The current world.")
    workers: str = Field(default="", description="Ready and desired replicas, such as 3/4.")
    replicas: int = Field(default=0, ge=0, description="Worker replicas that exist, for the scale subresource.")
    ready_replicas: int = Field(default=0, ge=0, description="Worker replicas running.")
    selector: str = Field(default="", description="Label selector of the worker pods, for the scale subresource.")
    roles: list[RoleStatus] = Field(default_factory=list, description="Replicas by role.")
    progress: Progress | None = Field(default=None, description="How far the training is.")
    checkpoint: CheckpointStatus | None = Field(default=None, description="The newest commit.")
    restarts: Restarts = Field(default_factory=Restarts, description="Restarts by class.")
    attempts: list[AttemptRecord] = Field(
        default_factory=list, max_length=ATTEMPTS_KEPT, description="The last ten attempts, oldest first."
    )
    avoided_nodes: list[AvoidedNode] = Field(
        default_factory=list, max_length=ATTEMPTS_KEPT, description="Nodes on which attempts died again and again."
    )
    goodput: Goodput | None = Field(default=None, description="Where the time went.")
    notices: list[str] = Field(
        default_factory=list, max_length=10, description="What the supervisors of the newest attempt want the user to know."
    )

    def condition(self, kind: ConditionType) -> Condition | None:
        """The condition of that type, if it was ever set."""
        return next((condition for condition in self.conditions if condition.type is kind), None)
