"""The conditions of a job, one of each type. `lastTransitionTime` is the time at which the status of a condition last changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from muster.api.status import LONGEST_TEXT, Condition, ConditionType, GraceStatus, Phase, Reason, TrainingJobStatus
from muster.api.times import whole_seconds
from muster.lifecycle.facts import gang, stalled
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.job_state import Ended, State, Suspended, is_open, last_failure
from muster.lifecycle.present.capacity import capacity_reason, capacity_sentence
from muster.lifecycle.present.node_notices import notice_sentence, reason_of
from muster.lifecycle.present.waiting import reasons
from muster.lifecycle.recording.members import world_members
from muster.lifecycle.recording.ranks import can_be_compared

_ORDER = list(ConditionType)
_GRACE_ADVICE = "Where a node gives less, raise shutdownGracePeriod of its kubelet, or drain with a longer --grace-period"


def with_conditions(status: TrainingJobStatus, state: State, facts: Facts) -> TrainingJobStatus:
    """The status with the conditions that follow from it now. The others stay as they are."""
    values = {
        ConditionType.VALID: _valid(facts),
        ConditionType.STORAGE_SHARED: storage_condition(facts),
        ConditionType.RESUME_REGRESSION: _resume_regression(status, facts.job.status),
        ConditionType.STRAGGLING: _straggling(status, facts),
        ConditionType.GRACE_SUFFICIENT: _grace_sufficient(status.grace),
        ConditionType.SUSPENDED: _suspended(status, state, facts),
        ConditionType.READY: _ready(status, state, facts),
        ConditionType.GANG_SCHEDULED: _gang_scheduled(status, facts),
        ConditionType.QUOTA_RESERVED: _quota_reserved(facts),
        ConditionType.SPREAD_OVER_NODES: _spread_over_nodes(status, facts),
        ConditionType.NODES_STAY: _nodes_stay(status, facts),
        ConditionType.CAPACITY_PREFERRED: _capacity_preferred(status, facts),
    }
    if isinstance(state, Ended):
        kind = ConditionType.COMPLETE if status.phase is Phase.SUCCEEDED else ConditionType.FAILED
        values[kind] = Value(True, state.reason, state.message)
    old = {condition.type: condition for condition in status.conditions}
    values[ConditionType.STALLED] = _stalled(status, values, facts)
    new = {kind: _condition(kind, value, old.get(kind), facts) for kind, value in values.items() if value is not None}
    conditions = sorted((old | new).values(), key=lambda condition: _ORDER.index(condition.type))
    return replace(status, conditions=tuple(conditions))


def _condition(kind: ConditionType, value: Value, old: Condition | None, facts: Facts) -> Condition:
    holds = "True" if value.holds else "False"
    return Condition(
        type=kind,
        status="True" if value.holds else "False",
        reason=value.reason,
        message=value.message[:LONGEST_TEXT],
        last_transition_time=old.last_transition_time if old and old.status == holds else whole_seconds(facts.now),
        observed_generation=facts.job.metadata.generation,
    )


def _valid(facts: Facts) -> Value:
    if facts.problems:
        return Value(False, Reason(facts.problems[0].reason), "; ".join(map(str, facts.problems)))
    preset = facts.spec.preset
    return Value(True, Reason.ACCEPTED, f"with the defaults of preset {preset}" if preset else "")


def _resume_regression(status: TrainingJobStatus, old: TrainingJobStatus) -> Value | None:
    """Whether the attempt that has just resumed began before the newest commit. None if no attempt has just resumed, or if the training
    itself goes on. Then the condition stays as it is."""
    waiting = {record.attempt for record in old.attempts if record.step_resumed is None}
    resumed = (record for record in reversed(status.attempts) if record.attempt in waiting and record.step_resumed is not None)
    record = next(resumed, None)
    if record is None:
        return None
    if record.step_skipped is not None:
        message = f"attempt {record.attempt} began at step {record.step_resumed}, although step {record.step_skipped} was saved"
        return Value(True, Reason.STARTED_OVER, message)
    if not record.step_resumed:
        return None
    return Value(False, Reason.RESUMED_AT_COMMIT, f"attempt {record.attempt} resumed at step {record.step_resumed}")


def _straggling(status: TrainingJobStatus, facts: Facts) -> Value | None:
    """The slow ranks. Older versions recorded them only in the condition, so it stays until the ranks are compared again."""
    if status.stragglers:
        parts = (
            f"rank {each.rank} ({each.replica}) takes {each.seconds:.3g} s per step; the median is {each.others_seconds:.3g} s"
            for each in status.stragglers
        )
        return Value(True, Reason.SLOW_RANK, "; ".join(parts))
    old = status.condition(ConditionType.STRAGGLING)
    is_unconfirmed = old is not None and old.status == "True" and not facts.job.status.stragglers and not can_be_compared(status, facts)
    return Value(False, Reason.EVEN) if old and not is_unconfirmed else None


def _grace_sufficient(grace: GraceStatus | None) -> Value | None:
    if grace is None:
        return None
    if grace.reason is Reason.SAVED_IN_TIME:
        return Value(True, Reason.SAVED_IN_TIME, f"attempt {grace.attempt} was asked to stop, and saved in time")
    replica = f"{grace.replica or 'a replica'} on {grace.node}" if grace.node else grace.replica or "a replica"
    given = "" if grace.given_seconds is None else f" with {grace.given_seconds} s to save"
    end = ", and did not save" if grace.reason is Reason.PREEMPTED_NOT_SAVED else ""
    times = f"A save takes up to {grace.needed_seconds} s, and new pods get {grace.allowed_seconds} s"
    message = f"{replica} was asked to stop{given}{end}. {times}. {_GRACE_ADVICE}"
    return Value(False, grace.reason, message)


def _suspended(status: TrainingJobStatus, state: State, facts: Facts) -> Value | None:
    limit = facts.reached_limit
    if status.phase is Phase.SUSPENDED and limit is not None and not facts.spec.suspend:
        return Value(True, limit.reason, limit.sentence)
    if status.phase is Phase.SUSPENDED:
        return Value(True, Reason.SUSPENDED)
    old = status.condition(ConditionType.SUSPENDED)
    if old is None:
        return None
    if isinstance(state, Ended):
        return Value(False, Reason.NOT_SUSPENDED)
    return Value(False, Reason.RESUMED if old.status == "True" else old.reason)


def _gang_scheduled(status: TrainingJobStatus, facts: Facts) -> Value | None:
    """Whether the pods of the gang have nodes, or wait for them."""
    if not status.gang_scheduler or not is_open(status):
        return None
    if gang.is_waiting(status, facts):
        return Value(False, Reason.WAITING_FOR_GANG, f"{gang.sentence(status, facts)}{reasons(facts.trainers(status.attempt))}")
    return Value(True, Reason.GANG_PLACED)


def _spread_over_nodes(status: TrainingJobStatus, facts: Facts) -> Value | None:
    """Whether a world of a job with spares is on more than one node. A job gets this condition when its world is first on one node. It
    stays as it is while a world starts."""
    world = status.world
    nodes = [view.node for view in facts.trainers(status.attempt) if view.node]
    size = len(world_members(status, facts))
    if not facts.spec.recovery.spares or world is None or world.ready_time is None or not is_open(status) or len(nodes) < max(2, size):
        return None
    if len(set(nodes)) > 1:
        return Value(True, Reason.MANY_NODES) if status.condition(ConditionType.SPREAD_OVER_NODES) else None
    message = (
        f"all {size} replicas run on {nodes[0]}. If that node is lost, so are the steps since the last save. Once a spare is ready on "
        "another node, delete the pod of one worker, and the spare takes its place"
    )
    return Value(False, Reason.WORLD_ON_ONE_NODE, message)


def _nodes_stay(status: TrainingJobStatus, facts: Facts) -> Value | None:
    """Whether no node of the world announces that it goes. A job gets this condition with the first notice."""
    if not is_open(status):
        return None
    sentence = notice_sentence(status, facts)
    if sentence:
        return Value(False, reason_of(status, facts), sentence)
    return Value(True, Reason.NO_NOTICE) if status.condition(ConditionType.NODES_STAY) else None


def _capacity_preferred(status: TrainingJobStatus, facts: Facts) -> Value | None:
    """Whether no role waits for its preferred capacity class, or has fallen back. A job gets this condition when the first one does."""
    if not is_open(status):
        return None
    if status.capacity:
        return Value(False, capacity_reason(status), capacity_sentence(status, facts))
    return Value(True, Reason.ON_PREFERRED_CLASS) if status.condition(ConditionType.CAPACITY_PREFERRED) else None


def is_queued(status: TrainingJobStatus, facts: Facts) -> bool:
    """Whether the job waits in its queue, and would run otherwise."""
    return facts.waits_for_quota and not facts.suspends and not is_open(status)


def _quota_reserved(facts: Facts) -> Value | None:
    """Whether the queue lets the job run."""
    quota = facts.observed.quota
    if quota is None:
        return None
    if quota.admitted:
        return Value(True, Reason.QUOTA_RESERVED)
    return Value(False, Reason.SUSPENDED if facts.suspends else Reason.WAITING_FOR_QUOTA, quota.message)


def _ready(status: TrainingJobStatus, state: State, facts: Facts) -> Value:
    is_ready = status.phase is Phase.RUNNING
    match state:
        case Ended():
            return Value(False, state.reason)
        case _ if facts.observed.refused and not is_ready:
            return Value(False, Reason.REPLICAS_REFUSED, facts.observed.refused)
        case _ if is_queued(status, facts):
            return Value(False, Reason.WAITING_FOR_QUOTA)
        case Suspended():
            return Value(is_ready, Reason.SUSPENDED)
        case _ if is_ready:
            return Value(True, Reason.ALL_REPLICAS_RUNNING)
        case _:
            return Value(False, Reason.RESTARTING if last_failure(status) else Reason.WAITING_FOR_REPLICAS)


def _stalled(status: TrainingJobStatus, values: Mapping[ConditionType, Value | None], facts: Facts) -> Value | None:
    """Whether the job should run, and has not run for long. A job gets this condition when it is first so."""
    ready, since = values[ConditionType.READY], stalled.not_running_since(status, facts)
    due = stalled.due(status, facts)
    if ready is not None and not ready.holds and since is not None and due is not None and facts.now >= due:
        message = (
            f"the job should run, and has not run since {since:%Y-%m-%d %H:%M:%S} UTC; muster explain {facts.job.metadata.name} says why"
        )
        return Value(True, ready.reason, message)
    return Value(False, ready.reason) if ready is not None and status.condition(ConditionType.STALLED) else None


class Value(NamedTuple):
    holds: bool
    reason: Reason
    message: str = ""


def storage_condition(facts: Facts) -> Value | None:
    """The condition StorageShared; None if the caller did not read the claim."""
    claim, storage = facts.observed.claim, facts.spec.checkpoint.storage
    if claim is None or storage is None or storage.persistent_volume_claim is None or facts.problems:
        return None
    name, pods, limit = storage.persistent_volume_claim.claim_name, len(facts.plan.replicas), facts.spec.startup_deadline_seconds
    modes = claim.access_modes
    if not modes:
        message = f"there is no claim {name} in this namespace. Create it as ReadWriteMany; the pods wait for it for {limit} s"
        return Value(False, Reason.CLAIM_NOT_FOUND, message)
    if "ReadWriteMany" in modes:
        return Value(True, Reason.MANY_NODES, f"claim {name} is ReadWriteMany")
    subject = f"claim {name} is {', '.join(modes)}"
    if pods == 1:
        message = f"{subject}, which is enough for the one pod of the job. If its node is lost, the volume is free once that pod is gone"
        return Value(True, Reason.ONE_POD, message)
    if "ReadWriteOnce" in modes:
        message = (
            f"{subject}, so all {pods} pods must be on one node; pods on other nodes wait, for {limit} s at most. "
            "Use a ReadWriteMany claim, or keep the pods together with a podAffinity in roles.*.template"
        )
        return Value(False, Reason.ONE_NODE, message)
    if "ReadWriteOncePod" in modes:
        message = f"{subject}: only one pod can mount it, and the job has {pods}. Use a ReadWriteMany claim"
        return Value(False, Reason.ONE_POD, message)
    return Value(False, Reason.ONE_NODE, f"{subject}: nothing can be saved there. Use a ReadWriteMany claim")
