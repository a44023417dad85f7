"""What a world waits for, as a fact and as a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from muster.api.status import Member, TrainingJobStatus
from muster.lifecycle.facts import gang
from muster.lifecycle.facts.acknowledging import acknowledging
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.facts.leaving import removed_by_force_at
from muster.lifecycle.observed import ReplicaPhase, ReplicaView
from muster.lifecycle.recording.members import running, world_members
from muster_contract.inputs import amount

_SILENT_SECONDS = 30.0
"""A pod on a node whose containers have not begun after this time usually pulls a large image, or lacks a volume."""

_NAMED = 3


def waiting_sentence(status: TrainingJobStatus, facts: Facts, *, brief: bool = False) -> str:
    """What the world waits for, such as `worker-3 (3 of 4 run): ImagePullBackOff: ...`. With `brief`, short sentences replace the messages
    of the cluster if the cause is clear."""
    awaited = acknowledging(status, facts)
    if awaited:
        return f"{listed([view.label for view in awaited])} to end the processes of the attempt before"
    older = facts.older_than(status.attempt)
    if older:
        return f"{listed([view.name for view in older])} of an older attempt to be gone{_stuck(older, facts)}"
    absent = missing(status, facts)
    pending = _pending(status, facts)
    if pending and not absent and gang.is_waiting(status, facts):
        return f"{gang.sentence(status, facts)}{reasons(pending, brief=brief)}"
    if pending and not absent and all(view.inputs for view in pending) and (fetched := _inputs_sentence(status)):
        return fetched
    names = listed(_in_order_of_ranks(status, [*(member.label for member in absent), *(view.label for view in pending)])) or "its replicas"
    refused = (brief and facts.observed.refusal) or facts.observed.refused
    refusal = f"; the API server refuses to create more: {refused}" if refused else ""
    reason = reasons(pending, brief=brief) or _silence(status, facts)
    return f"{names} ({running(status, facts)} of {len(world_members(status, facts))} run){reason}{refusal}"


def silence_due(status: TrainingJobStatus, facts: Facts) -> datetime | None:
    """When the message says that the containers of a pod on a node have not begun. None if a pod says why it waits.

    The kubelet does not write into the pod that a ConfigMap or Secret is missing, only into Events, which Muster has no right to read.
    """
    pending = _pending(status, facts)
    if reasons(pending, brief=True) or any(view.inputs for view in pending):
        return None
    return min((view.placed + timedelta(seconds=_SILENT_SECONDS) for view in pending if view.placed), default=None)


def missing(status: TrainingJobStatus, facts: Facts) -> list[Member]:
    """Members that have no replica now, and should have one. Muster creates an evaluator after the gang has nodes, because it could take a
    node that the gang needs."""
    present = {view.replica for view in facts.replicas_of(status.attempt)}
    members = status.world.members if status.world else ()
    if gang.is_waiting(status, facts):
        members = tuple(member for member in members if facts.strategy.is_in_world(member.role))
    return [member for member in members if not member.succeeded and member.replica not in present]


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


def _pending(status: TrainingJobStatus, facts: Facts) -> list[ReplicaView]:
    return [view for view in facts.trainers(status.attempt) if view.phase is ReplicaPhase.PENDING]


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
    reason = "" if facts.is_fenced else "no fence stops its program, so that it cannot be replaced before; "
    return f" (stuck: {reason}it is removed by force at {max(times):%H:%M:%S} UTC)" if times else ""


def reasons(pending: Sequence[ReplicaView], *, brief: bool = False) -> str:
    """Why pending replicas wait, such as `: Unschedulable: 0/3 nodes are available`. With `brief`, the cause in short if it is clear."""
    every = dict.fromkeys((brief and view.waits_for) or f"{view.reason}: {view.message}".strip(": ") for view in pending)
    named = [reason for reason in every if reason][:_NAMED]
    return ": " + "; ".join(named) if named else ""


def listed(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
