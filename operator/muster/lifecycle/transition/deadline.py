"""Deadlines for the start of a world and for the end of a job, and the limits of what the job may use."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from muster.api.spec import LimitAction
from muster.api.status import LONGEST_TEXT, MAX_AWAITED, Awaited, ConditionType, Reason, TrainingJobStatus
from muster.lifecycle.facts import gang, limits
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.job_state import SUSPENSIONS, Verdict, is_open, newest
from muster.lifecycle.observed import ReplicaPhase


def verdict(status: TrainingJobStatus, facts: Facts) -> Verdict | None:
    """The deadline that has passed, or the limit of use that ends the job, if there is one."""
    limit = facts.reached_limit
    if limit is not None and limit.action is LimitAction.END:
        return Verdict(limit.reason, limit.sentence)
    active = _active_until(status, facts)
    if active and facts.now >= active:
        return Verdict(
            Reason.ACTIVE_DEADLINE, f"the job did not finish within {facts.spec.active_deadline_seconds} s (activeDeadlineSeconds)"
        )
    startup = _startup_until(status, facts)
    if startup and facts.now >= startup:
        return Verdict(Reason.STARTUP_DEADLINE)
    return None


def with_awaited(status: TrainingJobStatus, facts: Facts) -> TrainingJobStatus:
    """The status with what the pods wait for. It must explain later why the job did not start, when the pods are gone."""
    refused = [Awaited(kind="Creation", reason=Reason.REPLICAS_REFUSED, message=facts.observed.refused[:LONGEST_TEXT])]
    pending = [view for view in facts.trainers(status.attempt) if view.phase is ReplicaPhase.PENDING and view.reason]
    waiting = [
        Awaited(kind="Container" if view.node else "Node", reason=view.reason, message=view.message, replica=view.label) for view in pending
    ]
    every = [*(refused if facts.observed.refused else ()), *waiting]
    first = {(each.kind, each.reason, each.message): each for each in reversed(every)}
    return replace(status, awaited=tuple(reversed(first.values()))[:MAX_AWAITED])


def due(status: TrainingJobStatus, facts: Facts) -> datetime | None:
    """The earliest deadline that has not passed, or the time at which a limit of use is reached."""
    limit = limits.due(facts.spec.usage_limits, facts.account, facts.now) if facts.spec.usage_limits is not None else None
    return min((time for time in (_active_until(status, facts), _startup_until(status, facts), limit) if time), default=None)


def _active_until(status: TrainingJobStatus, facts: Facts) -> datetime | None:
    """The deadline of the job, counted from its creation. The time in which the job is suspended does not count."""
    limit, record = facts.spec.active_deadline_seconds, newest(status)
    if limit is None or facts.suspends or (record is not None and record.reason in SUSPENSIONS):
        return None
    suspended = status.goodput.suspended_seconds if status.goodput else 0.0
    return facts.created + timedelta(seconds=limit + suspended)


def _startup_until(status: TrainingJobStatus, facts: Facts) -> datetime | None:
    """The deadline of the start, counted from the creation of the world or from the end of its back-off. The time in which a gang waits for
    nodes does not count. The deadline begins again with each progress of an input."""
    if status.world is None or status.world.ready_time or not is_open(status) or facts.problems or gang.is_waiting(status, facts):
        return None
    gang_condition = status.condition(ConditionType.GANG_SCHEDULED)
    placed = gang_condition and (gang_condition.last_transition_time if gang_condition.status == "True" else facts.now)
    fetched = max((each.updated_at for each in status.inputs if each.updated_at), default=None)
    start = max(time for time in (status.world.created_time, status.next_attempt_time, placed, fetched) if time)
    return start + timedelta(seconds=facts.spec.startup_deadline_seconds)
