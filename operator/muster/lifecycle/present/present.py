"""The part of the status that users read: phase, conditions, counts and message."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from muster.api.constants import JOB_NAME_LABEL, ROLE_LABEL
from muster.api.spec import RoleName
from muster.api.status import Phase, RoleStatus, TrainingJobStatus
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.facts.failure import has_failed_by_itself
from muster.lifecycle.job_state import Ended, Open, State, Suspended, is_open, last_failure
from muster.lifecycle.observed import ReplicaPhase
from muster.lifecycle.present.conditions import is_queued, with_conditions
from muster.lifecycle.present.message import message
from muster.lifecycle.present.queue import queue_of


def present(status: TrainingJobStatus, state: State, facts: Facts) -> TrainingJobStatus:
    """The status as users see it. After a job has ended, only its counts and its message change."""
    if not status.phase.final:
        status = replace(status, phase=_phase(status, state, facts))
        status = with_conditions(status, state, facts)
    status = replace(with_counts(status, facts), queue=queue_of(status, facts))
    return replace(status, message=message(status, state, facts))


def _phase(status: TrainingJobStatus, state: State, facts: Facts) -> Phase:
    """The phase. A job is Suspended only after a live observation has proved that its replicas are gone."""
    match state:
        case Ended():
            return Phase.SUCCEEDED if state.has_succeeded else Phase.FAILED
        case _ if is_queued(status, facts):
            return Phase.PENDING if _is_empty(facts) or status.phase is Phase.SUSPENDED else status.phase
        case Suspended():
            return Phase.SUSPENDED if _is_empty(facts) else status.phase
        case Open() if status.world and status.world.ready_time:
            return Phase.RUNNING
    if last_failure(status):
        return Phase.RECOVERING
    started = any(view.phase is ReplicaPhase.RUNNING for view in facts.trainers(status.attempt))
    return Phase.STARTING if started or status.start_time else Phase.PENDING


def _is_empty(facts: Facts) -> bool:
    """Whether the job's replicas are provably gone."""
    return facts.live and not facts.everyone and not facts.orphaned


def with_counts(status: TrainingJobStatus, facts: Facts) -> TrainingJobStatus:
    """The status with replicas by role, and with the figures of the scale subresource."""
    names = dict.fromkeys(member.role for member in (status.world.members if status.world else ()))
    roles = tuple(_role(status, facts, name) for name in names)
    worker_role = facts.strategy.worker_role
    worker = next((role for role in roles if role.name == worker_role), None)
    return replace(
        status,
        observed_generation=facts.job.metadata.generation,
        roles=roles,
        workers=_workers(status, worker),
        replicas=sum(view.role == worker_role for view in (facts.everyone if facts.spec.elastic else facts.replicas)),
        ready_replicas=worker.ready if worker else 0,
        ready_spares=_ready_spares(status, facts),
        selector=f"{JOB_NAME_LABEL}={facts.job.metadata.name},{ROLE_LABEL}={worker_role}",
    )


def _workers(status: TrainingJobStatus, worker: RoleStatus | None) -> str:
    """The ready and the desired workers. The workers of a job that has succeeded have all done their work."""
    if worker is None:
        return ""
    return f"{worker.desired} done" if status.phase is Phase.SUCCEEDED else f"{worker.ready}/{worker.desired}"


def _ready_spares(status: TrainingJobStatus, facts: Facts) -> int | None:
    has_spares = facts.spec.recovery.spares > 0 and is_open(status)
    return sum(view.is_ready for view in facts.standing_by) if has_spares else None


def _role(status: TrainingJobStatus, facts: Facts, role: RoleName) -> RoleStatus:
    views = [view for view in facts.replicas_of(status.attempt) if view.role == role]
    members = [member for member in (status.world.members if status.world else ()) if member.role == role]
    return RoleStatus(
        name=role,
        desired=len(facts.desired.of(role)) if facts.spec.elastic else len(members),
        ready=sum(view.phase is ReplicaPhase.RUNNING and not view.has_reported_end and view.deleting is None for view in views),
        succeeded=sum(member.succeeded for member in members),
        failed=sum(has_failed_by_itself(view, stopped=not is_open(status)) for view in views),
    )


def is_write_postponed(old: TrainingJobStatus, new: TrainingJobStatus, facts: Facts) -> bool:
    """Whether only figures have changed, and figures were last written less than `progress_seconds` ago."""
    due = next_write_time(facts)
    return new != old and due is not None and facts.now < due and _with_old_figures(old, new) == old


def next_write_time(facts: Facts) -> datetime | None:
    """When figures may be written again."""
    written = facts.job.status.progress.updated_at if facts.job.status.progress else None
    return written + timedelta(seconds=facts.policy.progress_seconds) if written else None


def _with_old_figures(old: TrainingJobStatus, new: TrainingJobStatus) -> TrainingJobStatus:
    world = new.world
    if world and old.world:
        world = replace(world, activity=old.world.activity, saved_seconds=old.world.saved_seconds)
    return replace(new, world=world, progress=old.progress, checkpoint=old.checkpoint, snapshot=old.snapshot, notices=old.notices)
