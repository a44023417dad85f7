"""Conditions: one of each type; lastTransitionTime is when the status of one last changed."""

from __future__ import annotations

from typing import Literal

from muster.api.reports import Resumed
from muster.api.status import Condition, ConditionType, Phase, Reason, TrainingJobStatus
from muster.lifecycle import records, suspend
from muster.lifecycle.situation import Situation, whole

_NEVER = "Never"
_LONGEST_MESSAGE = 4096


def put(
    case: Situation, status: TrainingJobStatus, kind: ConditionType, *, holds: bool, reason: Reason, message: str = ""
) -> TrainingJobStatus:
    """Sets one condition and leaves the others as they are."""
    value: Literal["True", "False"] = "True" if holds else "False"
    old = status.condition(kind)
    since = old.last_transition_time if old and old.status == value else whole(case.now)
    new = Condition(
        type=kind,
        status=value,
        reason=reason,
        message=message[:_LONGEST_MESSAGE],
        last_transition_time=since,
        observed_generation=case.job.metadata.generation,
    )
    others = [condition for condition in status.conditions if condition.type is not kind]
    order = list(ConditionType)
    return status.model_copy(update={"conditions": sorted([*others, new], key=lambda condition: order.index(condition.type))})


def valid(case: Situation, status: TrainingJobStatus) -> TrainingJobStatus:
    """Whether the job can be accepted as it is written."""
    if case.problems:
        told = "; ".join(map(str, case.problems))
        return put(case, status, ConditionType.VALID, holds=False, reason=Reason.INVALID, message=told)
    return put(case, status, ConditionType.VALID, holds=True, reason=Reason.ACCEPTED)


def resume(case: Situation, status: TrainingJobStatus, resumed: Resumed) -> TrainingJobStatus:
    """Whether the attempt began before the newest known commit though it should have gone on from it. A damaged one that was passed
    over, and said so, is no regression; beginning at step 0 is."""
    known = max(status.checkpoint.step if status.checkpoint else 0, resumed.found or 0)
    if known == 0 or case.spec.checkpoint.resume == _NEVER:
        return status
    if resumed.step == 0 or (resumed.step < known and not resumed.skipped):
        told = f"attempt {status.attempt} began at step {resumed.step} though step {known} was committed"
        return put(case, status, ConditionType.RESUME_REGRESSION, holds=True, reason=Reason.STARTED_OVER, message=told)
    told = f"attempt {status.attempt} went on from step {resumed.step}"
    return put(case, status, ConditionType.RESUME_REGRESSION, holds=False, reason=Reason.RESUMED_AT_COMMIT, message=told)


def ended(case: Situation, status: TrainingJobStatus, *, reason: Reason, message: str) -> TrainingJobStatus:
    """Complete or Failed, by the phase."""
    kind = ConditionType.COMPLETE if status.phase is Phase.SUCCEEDED else ConditionType.FAILED
    status = put(case, status, kind, holds=True, reason=reason, message=message)
    if status.condition(ConditionType.SUSPENDED):
        status = put(case, status, ConditionType.SUSPENDED, holds=False, reason=Reason.NOT_SUSPENDED)
    return put(case, status, ConditionType.READY, holds=False, reason=reason)


def standing(case: Situation, status: TrainingJobStatus) -> TrainingJobStatus:
    """Ready and Suspended, of a job that has not ended."""
    suspended = status.phase is Phase.SUSPENDED
    known = status.condition(ConditionType.SUSPENDED)
    if suspended:
        status = put(case, status, ConditionType.SUSPENDED, holds=True, reason=Reason.SUSPENDED)
    elif known:
        reason = Reason.RESUMED if known.status == "True" else known.reason
        status = put(case, status, ConditionType.SUSPENDED, holds=False, reason=reason)
    ready = status.phase is Phase.RUNNING
    if case.observed.refused and not ready:
        return put(case, status, ConditionType.READY, holds=False, reason=Reason.REPLICAS_REFUSED, message=case.observed.refused)
    return put(case, status, ConditionType.READY, holds=ready, reason=_readiness(status))


def _readiness(status: TrainingJobStatus) -> Reason:
    if suspend.is_suspended(status) or status.phase is Phase.SUSPENDED:
        return Reason.SUSPENDED
    if status.phase is Phase.RUNNING:
        return Reason.ALL_REPLICAS_RUNNING
    failed = records.last_failure(status)
    return Reason.RESTARTING if failed else Reason.WAITING_FOR_REPLICAS
