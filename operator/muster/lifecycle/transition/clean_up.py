"""Removes pods that should be gone: those of a job that has ended, and those that do not end.

The kubelet of a live node ends a pod soon after its grace period. A pod stays only on a node that is dead, frozen or cut off. Muster then
removes its object by force. An empty pod is removed without a wait. Processes on such a node may still run. Fences stop those of the
bundled trainer and of programs that save with its library. No fence stops other programs, so their node gets longer to come back.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from muster.api.spec import CleanPodPolicy
from muster.api.status import TrainingJobStatus
from muster.lifecycle.actions import Action, DeleteJob, DeleteReplica, deletion, shortening
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.facts.leaving import closed_at, exit_until, holds_resources, removed_by_force_at
from muster.lifecycle.observed import ReplicaView


def after_the_end(status: TrainingJobStatus, facts: Facts) -> tuple[Action, ...]:
    """Deletes what cleanPodPolicy selects of a job that has ended: `All` every pod, `Running` the running pods, `None` nothing. Deletes the
    job itself after its time to live. Kubernetes then deletes its children, by their owner references.

    Under every policy, supervisors end their processes and themselves after the reply reports that the job has ended. A pod counts as
    running if its trainer container has ended and a side-car still runs.
    """
    views = (view for view in facts.replicas if _is_cleaned_up(status, facts, view))
    deletions = tuple(action for view in views for action in deletion(view, grace_seconds=facts.brief_grace))
    expiry = expiry_time(status, facts)
    return (*deletions, DeleteJob(uid=facts.job.metadata.uid)) if expiry and facts.now >= expiry else deletions


def forced_deletions(facts: Facts) -> tuple[Action, ...]:
    """Removes by force the pods that are empty, or that should have ended long ago. Ends side-cars that have outlived the trainer
    container."""
    views = (*facts.everyone, *facts.orphaned)
    stuck = (view for view in views if (time := removed_by_force_at(view, facts)) and facts.now >= time)
    return (*(DeleteReplica(name=view.name, uid=view.uid, grace_seconds=0) for view in stuck), *shortening(views, facts.now))


def wake_times(status: TrainingJobStatus, facts: Facts) -> list[datetime | None]:
    """When to look again at a job that has ended."""
    waits = any(holds_resources(view, facts) for view in facts.replicas)
    forced = (removed_by_force_at(view, facts) for view in (*facts.replicas, *facts.orphaned))
    closed = (closed_at(view) for view in facts.replicas)
    return [expiry_time(status, facts), exit_until(status) if waits else None, *forced, *closed]


def expiry_time(status: TrainingJobStatus, facts: Facts) -> datetime | None:
    """The end of the job's time to live. None if it has none."""
    seconds = facts.spec.ttl_seconds_after_finished
    if seconds is None or status.completion_time is None:
        return None
    return status.completion_time + timedelta(seconds=seconds)


def _is_cleaned_up(status: TrainingJobStatus, facts: Facts, view: ReplicaView) -> bool:
    match facts.spec.clean_pod_policy:
        case CleanPodPolicy.ALL:
            return True
        case CleanPodPolicy.NONE:
            return False
    until = exit_until(status)
    exits_by_itself = view.has_reported_end and until is not None and facts.now < until
    return holds_resources(view, facts) and not exits_by_itself
