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
    """What cleanPodPolicy removes of a job that has ended.

    `None` leaves every pod, but no process is left that would run for ever: parameter servers and the workers that they serve never end
    by themselves, and a failed job's replicas may wait for each other without end.
    """
    return tuple(action for view in case.observed.replicas if _goes(case, status, view) for action in removal(view))


def leaves_by(status: TrainingJobStatus) -> datetime | None:
    """Until when a replica whose supervisor still waits may end by itself, so that its log and its exit code stay for people to read."""
    return status.completion_time + timedelta(seconds=_LEAVE_SECONDS) if status.completion_time else None


def _goes(case: Situation, status: TrainingJobStatus, view: ReplicaView) -> bool:
    policy = case.spec.clean_pod_policy
    if policy is CleanPodPolicy.ALL:
        return True
    if view.spent and (until := leaves_by(status)) and case.now < until:
        return False
    if policy is CleanPodPolicy.RUNNING or status.phase is Phase.FAILED:
        return not view.phase.ended
    return not view.phase.ended and view.role is not case.strategy.decisive
