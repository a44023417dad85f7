"""The pods that are created and deleted now, and the pods that a world waits for."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from muster.api.spec import CleanPodPolicy
from muster.api.status import Member, Phase, TrainingJobStatus
from muster.lifecycle.actions import Action, CreateReplica, EnsureService, LookLive, deletion
from muster.lifecycle.facts import gang
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.facts.failure import cause_of_end
from muster.lifecycle.observed import ReplicaPhase, ReplicaView
from muster.lifecycle.recording.members import running, world_members
from muster.lifecycle.state import Ended, Open, Provisional, Settled, State, Suspended, is_backing_off
from muster.lifecycle.transition import clean_up, elastic, replacing
from muster.lifecycle.transition.clean_up import removed_by_force_at
from muster.lifecycle.transition.fence import acknowledging, exit_seconds, is_clear, is_proved
from muster_contract.inputs import amount

Actions = tuple[Action, ...]

_SILENT_SECONDS = 30.0
"""A pod on a node whose containers have not begun after this time usually pulls a large image, or lacks a volume."""


def actions(status: TrainingJobStatus, state: State, facts: Facts) -> Actions:
    """All actions for a job in this state. The caller writes `status` before it carries them out."""
    forced = (*replacing.actions(status, facts), *clean_up.forced_deletions(facts))
    match state:
        case Ended():
            return (*clean_up.after_the_end(status, facts), *forced)
        case Suspended():
            return (*_suspension(status, facts), *forced)
        case Open():
            return (*_standby(status, facts), *_world(status, state, facts), *forced)
        case Provisional() | Settled():
            return (*_broken_world(state, facts), *forced)


def missing(status: TrainingJobStatus, facts: Facts) -> list[Member]:
    """Members that have no replica now, and should have one. Muster creates an evaluator after the gang has nodes, because it could take a
    node that the gang needs."""
    present = {view.replica for view in facts.replicas_of(status.attempt)}
    members = status.world.members if status.world else ()
    if gang.is_waiting(status, facts):
        members = tuple(member for member in members if facts.strategy.is_in_world(member.role))
    return [member for member in members if not member.succeeded and member.replica not in present]


def keeps_its_log(status: TrainingJobStatus, facts: Facts, view: ReplicaView) -> bool:
    """Whether the pod of a failed attempt stays for its log. It stays during the back-off, because the next attempt uses its name again."""
    return is_backing_off(status, facts.now) and view.phase.ended and not view.lingers


def has_failed_outside_the_world(view: ReplicaView, facts: Facts) -> bool:
    return not facts.strategy.is_in_world(view.role) and cause_of_end(view, stopped=False) is not None


def _world(status: TrainingJobStatus, state: Open, facts: Facts) -> Actions:
    """Deletes pods that do not belong to this world, and creates missing pods after a live observation shows that no older pod is left."""
    older, absent, awaited = facts.older_than(status.attempt), missing(status, facts), acknowledging(status, facts)
    always = (*_unneeded(status, facts), *_failed_outside_the_world(status, facts), *_service(facts))
    if len(awaited) == len(older) == len(absent) or is_backing_off(status, facts.now):  # the kept pods acknowledge by themselves
        return always
    if not is_proved(facts, older=bool(older), absent=bool(absent)):
        return (*always, LookLive())
    if not is_clear(status, facts) or facts.problems or state.provisional:
        return always
    creations = (CreateReplica(role=member.role, index=member.index, attempt=status.attempt) for member in absent)
    return (*always, *creations)


def _standby(status: TrainingJobStatus, facts: Facts) -> Actions:
    """Creates one stand-by replica for each replica that the world lacks, once no older pod is left."""
    if status.world is None or facts.problems:
        return ()
    free = elastic.free_replicas(status, facts) - {each.replica for each in status.left_behind}
    unneeded = [
        view for view in facts.standing_by if view.replica not in free or (view.phase.ended and facts.now >= facts.retry_time(view))
    ]
    deletions = tuple(action for view in unneeded for action in deletion(view))
    absent = sorted(free - {view.replica for view in facts.everyone})
    if status.world.ready_time is None or not absent or not is_clear(status, facts):
        return deletions
    if not facts.live:
        return (*deletions, LookLive())
    creations = (CreateReplica(role, index, status.attempt, standby=True) for role, index in absent)
    return (*deletions, *creations)


def _suspension(status: TrainingJobStatus, facts: Facts) -> Actions:
    """Deletes every replica with its grace period, then proves by a live observation that none is left. Phase Suspended depends on this
    proof."""
    deletions = tuple(action for view in facts.replicas for action in deletion(view))
    return deletions if facts.live or status.phase is Phase.SUSPENDED else (*deletions, LookLive())


def _broken_world(state: Provisional | Settled, facts: Facts) -> Actions:
    """Stops what runs of a broken world that has no successor yet, and leaves ended pods for their logs.

    If cleanPodPolicy keeps all pods, supervisors end their processes instead. If it keeps ended pods, supervisors do so until the failure
    is settled, because a replica that still runs may turn out to be the cause, and its log must stay.
    """
    policy = facts.spec.clean_pod_policy
    running = () if policy is CleanPodPolicy.NONE else (view for view in facts.replicas if not view.over)
    waits = policy is CleanPodPolicy.RUNNING and bool(state.provisional)
    stopped = (view for view in running if not (waits and _ends_by_itself(view)))
    deletions = tuple(action for view in stopped for action in deletion(view, grace_seconds=facts.brief_grace))
    return (*deletions, LookLive()) if state.provisional and not facts.live else deletions


def _ends_by_itself(view: ReplicaView) -> bool:
    """Whether the replica has a supervisor that ends its processes after the next reply. The reply does not end a supervisor that waits."""
    return view.is_active and view.report is not None and not view.report.waiting


def _unneeded(status: TrainingJobStatus, facts: Facts) -> Actions:
    assert status.world is not None
    members, awaited = {member.replica for member in status.world.members}, {view.uid for view in acknowledging(status, facts)}
    others = (view for view in facts.replicas if view.attempt < status.attempt or view.replica not in members)
    leaving = (view for view in others if view.uid not in awaited and not keeps_its_log(status, facts, view))
    return tuple(action for view in leaving for action in deletion(view, grace_seconds=exit_seconds(status, facts, view)))


def _failed_outside_the_world(status: TrainingJobStatus, facts: Facts) -> Actions:
    views = (view for view in facts.replicas_of(status.attempt) if has_failed_outside_the_world(view, facts))
    return tuple(action for view in views if facts.now >= facts.retry_time(view) for action in deletion(view))


def _service(facts: Facts) -> Actions:
    return () if facts.observed.service else (EnsureService(),)


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
    absent = [member.label for member in missing(status, facts)]
    pending = _pending(status, facts)
    if pending and not absent and gang.is_waiting(status, facts):
        return f"{gang.sentence(status, facts)}{reasons(pending, brief=brief)}"
    if pending and not absent and all(view.inputs for view in pending) and (fetched := _inputs_sentence(status)):
        return fetched
    names = listed([*absent, *(view.label for view in pending)]) or "its replicas"
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


def listed(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


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
