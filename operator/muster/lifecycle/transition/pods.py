"""The pods that are created and deleted now."""

from __future__ import annotations

from muster.api.spec import CleanPodPolicy
from muster.api.status import Phase, TrainingJobStatus
from muster.lifecycle.actions import Action, CreateReplica, EnsureService, LookLive, deletion
from muster.lifecycle.facts import capacity, node_notices
from muster.lifecycle.facts.acknowledging import acknowledging
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.facts.failure import cause_of_end
from muster.lifecycle.facts.waiting import missing
from muster.lifecycle.job_state import Ended, Open, Provisional, Settled, State, Suspended, is_backing_off
from muster.lifecycle.observed import ReplicaView
from muster.lifecycle.transition import clean_up, elastic, replacing
from muster.lifecycle.transition.fence import exit_seconds, is_clear, is_proved

Actions = tuple[Action, ...]


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


def keeps_its_log(status: TrainingJobStatus, facts: Facts, view: ReplicaView) -> bool:
    """Whether the pod of a failed attempt stays for its log. It stays during the back-off, because the next attempt uses its name again."""
    return is_backing_off(status, facts.now) and view.phase.ended and not view.side_car_runs


def has_failed_outside_the_world(view: ReplicaView, facts: Facts) -> bool:
    return not facts.strategy.is_in_world(view.role) and cause_of_end(view, stopped=False) is not None


def _world(status: TrainingJobStatus, state: Open, facts: Facts) -> Actions:
    """Deletes pods that do not belong to this world, and creates missing pods after a live observation shows that no older pod is left."""
    older, absent, awaited = facts.older_than(status.attempt), missing(status, facts), acknowledging(status, facts)
    always = (*_unneeded(status, facts), *_outside_the_world(status, facts), *_service(facts))
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
    free = elastic.free_replicas(status, facts) - {each.replica for each in status.orphaned}
    going = node_notices.going(status, facts)
    unneeded = [
        view
        for view in facts.standing_by
        if view.replica not in free or view.node in going or _may_retry(view, facts) or capacity.lacks_classes(view, status, facts)
    ]
    deletions = tuple(action for view in unneeded for action in deletion(view))
    absent = sorted(free - {view.replica for view in facts.everyone})
    if status.world.ready_time is None or not absent or not is_clear(status, facts):
        return deletions
    if not facts.live:
        return (*deletions, LookLive())
    apart = node_notices.pods_that_karpenter_moves(status, facts)
    creations = (CreateReplica(role, index, status.attempt, standby=True, apart_from=apart) for role, index in absent)
    return (*deletions, *creations)


def _may_retry(view: ReplicaView, facts: Facts) -> bool:
    return view.phase.ended and facts.now >= facts.retry_time(view)


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


def _outside_the_world(status: TrainingJobStatus, facts: Facts) -> Actions:
    """Deletes replicas such as evaluators that have failed, or that wait although new ones could use a further capacity class."""
    views = facts.replicas_of(status.attempt)
    failed = [view for view in views if has_failed_outside_the_world(view, facts) and facts.now >= facts.retry_time(view)]
    others = (view for view in views if not facts.strategy.is_in_world(view.role))
    lacking = [view for view in others if capacity.lacks_classes(view, status, facts)]
    return tuple(action for view in (*failed, *lacking) for action in deletion(view))


def _service(facts: Facts) -> Actions:
    return () if facts.observed.service else (EnsureService(),)
