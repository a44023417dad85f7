"""The inputs of a job: how much of each input the replicas of the current attempt have, and which revision the job uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from muster.api.spec import JobInput
from muster.api.status import InputStatus, TrainingJobStatus
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.job_state import is_open
from muster.lifecycle.observed import ReplicaPhase, ReplicaView
from muster_contract.inputs import InputProgress

_SECONDS = 10.0
"""The longest time between two writes for new bytes alone. The policy may set a shorter one."""


def with_inputs(status: TrainingJobStatus, facts: Facts) -> TrainingJobStatus:
    """The status with what the fetchers report. New bytes alone are postponed, because every change is a write."""
    new = _figures(status, facts)
    if new is None:
        return status
    due = due_write(status, facts)
    if due is not None and facts.now < due:
        return status
    old = {each.name: each for each in status.inputs}
    stamped = (each if each == old.get(each.name) else replace(each, updated_at=facts.stamp) for each in new)
    return replace(status, inputs=tuple(stamped))


def due_write(status: TrainingJobStatus, facts: Facts) -> datetime | None:
    """When figures that are postponed may be written. None if nothing is postponed."""
    new = _figures(status, facts)
    if not new or tuple(new) == status.inputs or [_without_bytes(each) for each in new] != [_without_bytes(each) for each in status.inputs]:
        return None
    written = max((each.updated_at for each in status.inputs if each.updated_at), default=None)
    return written + timedelta(seconds=min(_SECONDS, facts.policy.progress_seconds)) if written else None


def _without_bytes(each: InputStatus) -> InputStatus:
    return replace(each, bytes=0, updated_at=None)


def _figures(status: TrainingJobStatus, facts: Facts) -> list[InputStatus] | None:
    """The current inputs, each with its old time. None while no attempt is open."""
    world = status.world
    if not (facts.spec.inputs or status.inputs) or world is None or world.attempt != status.attempt or not is_open(status):
        return None
    views = {view.replica: view for view in facts.replicas_of(status.attempt) if view.deleting is None}
    old = {(each.name, each.source): each for each in status.inputs}
    figures = []
    for each in facts.spec.inputs:
        members = [member for member in world.members if each.roles is None or member.role in each.roles]
        replicas = [views.get(member.replica) for member in members]
        figures.append(_figure(each, old.get((each.name, each.source)), replicas))
    return figures


def _figure(each: JobInput, old: InputStatus | None, replicas: Sequence[ReplicaView | None]) -> InputStatus:
    old = old or InputStatus(name=each.name, source=each.source)
    reported = [_progress(view, each.name) for view in replicas]
    progresses = [progress for progress in reported if progress is not None]
    begun = [progress for progress in progresses if progress.phase != "Waiting"]
    ready = sum(_has(view, each.name) for view in replicas)
    revisions = [progress.revision for progress in begun] + [old.revision] + [progress.revision for progress in progresses]
    totals = [progress.total_bytes for progress in begun if progress.total_bytes is not None]
    total = max(totals, default=old.total_bytes)
    is_ready = ready == len(replicas)
    slowest = min(
        (progress.bytes if progress else 0 for progress, view in zip(reported, replicas, strict=True) if not _has(view, each.name)),
        default=0,
    )
    return replace(
        old,
        phase="Ready" if is_ready else "Fetching" if begun or ready else "Waiting",
        revision=next((revision for revision in revisions if revision), ""),
        bytes=(total or old.bytes) if is_ready else slowest,
        total_bytes=total,
        ready=ready,
        replicas=len(replicas),
    )


def _progress(view: ReplicaView | None, name: str) -> InputProgress | None:
    return next((each for each in view.inputs if each.name == name), None) if view else None


def _has(view: ReplicaView | None, name: str) -> bool:
    """Whether the replica has the input: its trainer container has started, or its fetcher has reported it."""
    if view is None:
        return False
    if view.phase is not ReplicaPhase.PENDING:
        return not view.fetch_failed
    progress = _progress(view, name)
    return progress is not None and progress.phase == "Ready"
