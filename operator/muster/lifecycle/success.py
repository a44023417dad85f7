"""When is the job done, and what becomes of its replicas then?"""

from __future__ import annotations

from datetime import datetime, timedelta

from muster.api.spec import CleanPodPolicy
from muster.api.status import Phase, Reason, TrainingJobStatus
from muster.lifecycle import attempts
from muster.lifecycle.actions import Action, removal
from muster.lifecycle.observed import ReplicaView
from muster.lifecycle.situation import Situation

_LEAVE_SECONDS = 30


def succeeded(case: Situation, status: TrainingJobStatus) -> bool:
    """Whether all replicas of the decisive role ended well: all workers, or the chief where there is one."""
    members = status.world.members if status.world else []
    decisive = [member for member in members if member.role == case.strategy.decisive]
    return bool(decisive) and all(member.succeeded for member in decisive)


def complete(case: Situation, status: TrainingJobStatus) -> TrainingJobStatus:
    """The job's good end."""
    status = attempts.end(case, status, Reason.COMPLETED)
    return status.model_copy(
        update={"phase": Phase.SUCCEEDED, "completion_time": case.stamp, "next_attempt_time": None, "message": "completed"}
    )


def clean_up(case: Situation, status: TrainingJobStatus) -> tuple[Action, ...]:
    """What cleanPodPolicy removes of a job that has ended: `All` every pod, `Running` those that have not ended, `None` nothing.

    Whatever the policy, supervisors end their processes and themselves when they hear of the job's end. A pod whose trainer container has
    ended and whose side-car runs on counts as running.
    """
    return tuple(
        action for view in case.observed.replicas if _goes(case, status, view) for action in removal(view, grace_seconds=case.brief_grace)
    )


def leaves_by(status: TrainingJobStatus) -> datetime | None:
    """Until when a replica whose processes have ended may end by itself, so that its log and its exit code stay for people to read."""
    return status.completion_time + timedelta(seconds=_LEAVE_SECONDS) if status.completion_time else None


def lasting(case: Situation, status: TrainingJobStatus) -> list[ReplicaView]:
    """Pods that still hold their resources after the time in which replicas end by themselves, and that `None` leaves there."""
    until = leaves_by(status)
    if case.spec.clean_pod_policy is not CleanPodPolicy.NONE or until is None or case.now < until:
        return []
    return [view for view in case.observed.replicas if view.deleting is None and _holds_resources(view)]


def due(case: Situation, status: TrainingJobStatus) -> datetime | None:
    """When to look again at replicas that may have ended by themselves by then."""
    return leaves_by(status) if any(_holds_resources(view) for view in case.observed.replicas) else None


def _goes(case: Situation, status: TrainingJobStatus, view: ReplicaView) -> bool:
    match case.spec.clean_pod_policy:
        case CleanPodPolicy.ALL:
            return True
        case CleanPodPolicy.NONE:
            return False
    until = leaves_by(status)
    ends_by_itself = view.spent and until is not None and case.now < until
    return _holds_resources(view) and not ends_by_itself


def _holds_resources(view: ReplicaView) -> bool:
    return not view.phase.ended or view.lingers
