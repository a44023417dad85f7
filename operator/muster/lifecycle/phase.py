"""Where does the job stand, in one word, and how many replicas does it have?"""

from __future__ import annotations

from muster.api.constants import JOB_NAME_LABEL, ROLE_LABEL
from muster.api.spec import RoleName
from muster.api.status import Phase, RoleStatus, TrainingJobStatus
from muster.lifecycle import failure, records, suspend
from muster.lifecycle.observed import ReplicaPhase
from muster.lifecycle.situation import Situation


def place(case: Situation, status: TrainingJobStatus) -> TrainingJobStatus:
    """The phase of a job that has not ended."""
    return status.model_copy(update={"phase": _phase(case, status)})


def _phase(case: Situation, status: TrainingJobStatus) -> Phase:
    if suspend.holds(case, status):
        gone = status.phase is Phase.SUSPENDED or suspend.emptied(case)
        return Phase.SUSPENDED if gone else status.phase
    if status.world and status.world.ready_time and records.is_open(status):
        return Phase.RUNNING
    if records.last_failure(status):
        return Phase.RECOVERING
    started = any(view.phase is ReplicaPhase.RUNNING for view in case.trainers(status.attempt))
    return Phase.STARTING if started or status.start_time else Phase.PENDING


def count(case: Situation, status: TrainingJobStatus) -> TrainingJobStatus:
    """Replicas by role, and the figures of the scale subresource."""
    members = status.world.members if status.world else []
    names = dict.fromkeys(member.role for member in members)
    roles = [_role(case, status, RoleName(name)) for name in names]
    worker = next((role for role in roles if role.name == RoleName.WORKER), None)
    existing = sum(view.role is RoleName.WORKER for view in case.observed.everyone)
    return status.model_copy(
        update={
            "observed_generation": case.job.metadata.generation,
            "roles": roles,
            "workers": f"{worker.ready}/{worker.desired}" if worker else "",
            "replicas": existing,
            "ready_replicas": worker.ready if worker else 0,
            "selector": f"{JOB_NAME_LABEL}={case.job.metadata.name},{ROLE_LABEL}={RoleName.WORKER.value}",
        }
    )


def _role(case: Situation, status: TrainingJobStatus, role: RoleName) -> RoleStatus:
    views = [view for view in case.replicas(status.attempt) if view.role is role]
    members = [member for member in (status.world.members if status.world else []) if member.role == role]
    return RoleStatus(
        name=role.value,
        desired=len(case.strategy.plan(case.spec).of(role)) if case.spec.elastic else len(members),
        ready=sum(view.phase is ReplicaPhase.RUNNING and not view.spent and view.deleting is None for view in views),
        succeeded=sum(member.succeeded for member in members),
        failed=sum(failure.failed_by_itself(view, asked=not records.is_open(status)) for view in views),
    )
