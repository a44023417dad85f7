"""In-place restarts: the pods that the next attempt keeps, and the processes that go on.

The next attempt keeps a pod whose supervisor still answers. The supervisor ends its old processes, acknowledges the attempt, and starts new
processes. A strategy may restart only some roles. The members of other roles are unaffected, so their processes go on.
"""

from __future__ import annotations

from collections.abc import Iterable

from muster.api.spec import RoleName
from muster.api.status import Reason, TrainingJobStatus
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.facts.failure import cause_of_end
from muster.lifecycle.facts.membership import has_current_template
from muster.lifecycle.facts.silence import is_silent_after_the_end
from muster.lifecycle.job_state import newest
from muster.lifecycle.observed import Replica, ReplicaView
from muster.lifecycle.transition.avoided_nodes import avoided
from muster.strategies.base import RestartScope, RestartsWith


def reused_pods(status: TrainingJobStatus, facts: Facts) -> dict[Replica, str]:
    """The uid of the pod of each replica that the next attempt keeps. A pod on an avoided node stays only if there was progress.

    All pods of a world have the same template. So no pod stays after an edit of the job or of the installation's defaults. A gang that
    gives its nodes back keeps no pod either.
    """
    record = newest(status)
    if record is not None and record.reason is Reason.GANG_REQUEUED:
        return {}
    avoided_nodes = {node.name for node in avoided(status, facts)} if status.restarts.without_progress else set()
    views = (view for view in facts.everyone if view.can_continue or _may_continue_unreported(status, facts, view))
    if facts.replaces_at_once:
        views = (view for view in views if not is_silent_after_the_end(view, facts))
    return {view.replica: view.uid for view in views if view.node not in avoided_nodes and has_current_template(facts.observed, view)}


def unaffected_members(status: TrainingJobStatus, facts: Facts) -> dict[Replica, int]:
    """The members whose processes the restart after the current attempt leaves running, with their incarnation."""
    record, world = newest(status), status.world
    if world is None or record is None or record.failure_class is None or record.reason is Reason.HANG:
        return {}
    # A member without a report may have ended long ago, and a new leader has no reports.
    uids = {view.uid for view in facts.replicas_of(status.attempt) if _is_well(view)}
    well = [member for member in world.members if member.uid in uids and not member.awaited and member.label != record.replica]
    are_well = {member.replica for member in well}  # to compare whole members would take quadratic time
    broken = {member.role for member in world.members if member.replica not in are_well}
    scope = _restarting(broken, facts)
    if isinstance(scope, RestartScope):
        return {}
    restarting = scope | _suspects(status.attempt, facts)
    return {
        member.replica: status.attempt if member.incarnation is None else member.incarnation
        for member in well
        if member.role not in restarting
    }


def _restarting(broken: Iterable[RoleName], facts: Facts) -> RestartsWith:
    """What restarts with broken replicas of these roles."""
    roles = frozenset[RoleName]()
    for role in broken:
        scope = facts.strategy.restarts_with(role)
        if isinstance(scope, RestartScope):
            return scope
        roles |= scope
    return roles


def training_continues(status: TrainingJobStatus, facts: Facts) -> bool:
    """Whether the training itself goes on, because members of the decisive role are unaffected."""
    return any(role == facts.strategy.decisive for role, _ in unaffected_members(status, facts))


def _is_well(view: ReplicaView) -> bool:
    return view.can_continue and not view.has_reported_end


def _suspects(attempt: int, facts: Facts) -> frozenset[RoleName]:
    """Roles that may have broken, because a replica that would restart with them reports a lost peer."""
    causes = ((view.role, cause_of_end(view, stopped=False)) for view in facts.trainers(attempt))
    reporting = {role for role, cause in causes if cause and cause.reason is Reason.PEER_LOST}
    scopes = {role: facts.strategy.restarts_with(role) for role in facts.strategy.roles}
    return frozenset(role for role, scope in scopes.items() if not isinstance(scope, RestartScope) and reporting & scope)


def _may_continue_unreported(status: TrainingJobStatus, facts: Facts, view: ReplicaView) -> bool:
    """Whether the replica may continue although a new leader has no report of it. It must be a member of the world, and its job's
    supervisors must have reported before.

    The replica then gets the usual time to acknowledge. It does not if roles restart by themselves, because it must first report what
    broke.
    """
    if view.report is not None or not view.is_active or view.unhealthy_devices or status.world is None or not facts.spec.trainer.supervised:
        return False
    if facts.strategy.restarts_with(view.role) is not RestartScope.WHOLE_WORLD:
        return False
    has_reported = status.progress is not None or any(record.step_resumed is not None for record in status.attempts)
    return has_reported and view.uid in status.world.member_of
