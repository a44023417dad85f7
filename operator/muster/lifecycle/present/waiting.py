"""What a world waits for, in words. `facts/waiting.py` has the facts."""

from __future__ import annotations

from collections.abc import Sequence

from muster.api.status import TrainingJobStatus
from muster.lifecycle.facts import gang
from muster.lifecycle.facts.acknowledging import acknowledging
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.facts.leaving import removed_by_force_at
from muster.lifecycle.facts.waiting import missing, pending_replicas, silence_due
from muster.lifecycle.observed import ReplicaView
from muster.lifecycle.recording.members import running, world_members
from muster_contract.inputs import amount

_NAMED = 3


def waiting_sentence(status: TrainingJobStatus, facts: Facts, *, brief: bool = False) -> str:
    """What the world waits for, such as `worker-3 (3 of 4 run): ImagePullBackOff: ...`. With `brief`, short sentences replace the messages
    of the cluster if the cause is clear."""
    awaited = acknowledging(status, facts)
    if awaited:
        return f"{listed([view.label for view in awaited])} to stop"
    older = facts.older_than(status.attempt)
    if older:
        return f"the old pods {listed([view.name for view in older])} to go{_stuck(older, facts)}"
    absent = missing(status, facts)
    pending = pending_replicas(status, facts)
    if pending and not absent and gang.is_waiting(status, facts):
        own = [view for view in pending if not (brief and view.waits_for_gang)]  # the sentence says the rest already
        return f"{gang.sentence(status, facts)}{reasons(own, brief=brief)}"
    if pending and not absent and all(view.inputs for view in pending) and (fetched := _inputs_sentence(status)):
        return fetched
    names = listed(_in_order_of_ranks(status, [*(each.label for each in absent), *(each.label for each in pending)])) or "its replicas"
    refused = (brief and facts.observed.refusal) or facts.observed.refused
    refusal = f". The API server refuses to create more: {refused}" if refused else ""
    reason = reasons(pending, brief=brief) or _silence(status, facts)
    return f"{names} ({running(status, facts)} of {len(world_members(status, facts))} run){reason}{refusal}"


def _in_order_of_ranks(status: TrainingJobStatus, labels: Sequence[str]) -> list[str]:
    """The labels in the order of the world, so that no name moves when the pod of another replica is created."""
    order = {member.label: rank for rank, member in enumerate(status.world.members if status.world else ())}
    return sorted(labels, key=lambda label: order.get(label, len(order)))


def _silence(status: TrainingJobStatus, facts: Facts) -> str:
    due = silence_due(status, facts)
    if due is None or facts.now < due:
        return ""
    return (
        ": its image is still being pulled, or a ConfigMap, Secret or claim that it mounts is missing; "
        f"muster explain {facts.job.metadata.name} says which"
    )


def _inputs_sentence(status: TrainingJobStatus) -> str:
    """The first input that is being fetched, such as `input base (3.1 GB of 8.0 GB on the slowest replica; 2 of 4 replicas have it)`."""
    first = next((each for each in status.inputs if each.phase != "Ready"), None)
    if first is None:
        return ""
    total = f" of {amount(first.total_bytes)}" if first.total_bytes is not None else ""
    return f"input {first.name} ({amount(first.bytes)}{total} on the slowest replica; {first.ready} of {first.replicas} replicas have it)"


def _stuck(older: Sequence[ReplicaView], facts: Facts) -> str:
    late = [view for view in older if view.due and facts.now >= view.due and not view.empty]
    times = [time for view in late if (time := removed_by_force_at(view, facts))]
    reason = "" if facts.is_fenced else ", and not before, because no fence stops its program"
    return f" (stuck; removed by force at {max(times):%H:%M:%S} UTC{reason})" if times else ""


def reasons(pending: Sequence[ReplicaView], *, brief: bool = False) -> str:
    """Why pending replicas wait, such as `: Unschedulable: 0/3 nodes are available`. With `brief`, the cause in short if it is clear.

    The reasons are sorted, because each time the scheduler tries the pods, other pods may have them.
    """
    every = {(brief and view.waits_for) or f"{view.reason}: {view.message}".strip(": ") for view in pending}
    named = sorted(reason for reason in every if reason)[:_NAMED]
    return ": " + "; ".join(named) if named else ""


def listed(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def requeue_sentence(waiting: Sequence[ReplicaView], placed: int) -> str:
    """Why a gang gives its nodes back: `waiting` have got none, and `placed` other pods have."""
    others = f"the {placed} other pods are deleted to free their nodes" if placed > 1 else "the other pod is deleted to free its node"
    return f"{listed([view.label for view in waiting])} got no node, so {others}{reasons(waiting, brief=True)}"
