"""Which replicas does the current attempt need, which are there, and what is to be made or removed?"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from muster.api.spec import CleanPodPolicy, RoleName
from muster.api.status import Member, TrainingJobStatus, World
from muster.lifecycle import backoff, elastic, failure, in_place, phases, records
from muster.lifecycle.actions import Action, CreateReplica, EnsureService, LookLive, removal
from muster.lifecycle.observed import ReplicaPhase, ReplicaView
from muster.lifecycle.situation import ALONE, Situation

_Places = dict[tuple[str, int], list[ReplicaView]]
"""Replicas by role and index. More than one is at a place while one is on its way out."""


def planned(case: Situation, attempt: int, *, after: TrainingJobStatus) -> World:
    """The world that the spec asks for, as the given attempt; `after` is the status in which the one before has ended."""
    plan = elastic.next_plan(case, after)
    kept, spared = in_place.kept(case, after), in_place.spared(case, after)
    known = {(member.role, member.index): member for member in after.world.members} if after.world else {}

    def member(place: tuple[str, int]) -> Member:
        role, index = place
        if place in spared:
            return Member(role=role, index=index, uid=known[place].uid, incarnation=spared[place])
        uid = kept.get(place, "")
        before = known[place].incarnation if place in known and known[place].uid == uid else None
        return Member(role=role, index=index, uid=uid, awaited=bool(uid), incarnation=before)

    members = [member((replica.role.value, replica.index)) for replica in plan.replicas]
    trains_on = any(role == case.strategy.decisive for role, _ in spared)
    saved = after.world.saved_seconds if after.world and trains_on else 0.0
    return World(
        attempt=attempt,
        size=plan.size,
        synchronous=case.strategy.is_synchronous(case.spec),
        members=members,
        created_time=case.stamp,
        saved_seconds=saved,
    )


def restarting(members: list[Member], role: RoleName) -> list[Member]:
    """The members that restart when a replica of `role` breaks: evaluators alone, else all that train together."""
    if role in ALONE:
        return [member for member in members if member.role == role]
    return [member for member in members if member.role not in ALONE]


def outgrown(case: Situation, status: TrainingJobStatus) -> bool:
    """Whether the spec now asks for another world than the current one."""
    if case.problems or status.world is None:
        return False
    return elastic.outgrown(case, status.world)


def ahead(case: Situation, status: TrainingJobStatus) -> int:
    """The highest attempt that any replica was made for, where that is beyond what the status knows; else -1."""
    highest = max((view.attempt for view in case.observed.replicas), default=-1)
    return highest if highest > status.attempt else -1


def recognise(case: Situation, status: TrainingJobStatus) -> TrainingJobStatus:
    """Writes down which pods are the members, which ended well, and when all of them first ran."""
    if status.world is None or not records.is_open(status):
        return status
    views = _by_place(case.replicas(status.attempt))
    members = [_recognised(case, member, views) for member in status.world.members]
    status = status.model_copy(update={"world": status.world.model_copy(update={"members": members})})
    assert status.world is not None
    if status.world.ready_time is None and running(case, status) == len(trainers(status)) and not backoff.held(case, status):
        world = status.world.model_copy(update={"ready_time": case.stamp})
        start = status.start_time or case.stamp
        status = status.model_copy(update={"world": world, "start_time": start, "next_attempt_time": None})
        status = status if case.counts_steps(status.restarts.best_step) else phases.running_again(case, status)
    return status


def trainers(status: TrainingJobStatus) -> list[Member]:
    """The members that train together."""
    return restarting(status.world.members, RoleName.WORKER) if status.world else []


def running(case: Situation, status: TrainingJobStatus) -> int:
    """How many of them run, or have ended well."""
    views = _by_place(case.replicas(status.attempt))
    return sum(member.succeeded or _runs(_view_of(member, views)) for member in trainers(status))


def missing(case: Situation, status: TrainingJobStatus) -> list[Member]:
    """Members that have no replica now."""
    there = {view.place for view in case.replicas(status.attempt)}
    members = status.world.members if status.world else []
    return [member for member in members if not member.succeeded and (member.role, member.index) not in there]


def actions(case: Situation, status: TrainingJobStatus) -> tuple[Action, ...]:
    """Removes what is not of this world, and makes what is missing once a live look shows that nothing older is left."""
    removals = (*_unneeded(case, status), *_broken_evaluators(case, status))
    older = [view for view in case.observed.replicas if view.attempt < status.attempt]
    absent = missing(case, status)
    kept = in_place.awaited(case, status)
    if len(kept) == len(older) == len(absent):  # they come by themselves
        return (*removals, *_service(case))
    if backoff.held(case, status):
        return (*removals, *_service(case))
    if not case.observed.live and (older or absent):
        return (*removals, *_service(case), LookLive())
    if older or not absent or case.problems or records.unsettled(status):
        return (*removals, *_service(case))
    creations = (CreateReplica(role=RoleName(member.role), index=member.index, attempt=status.attempt) for member in absent)
    return (*removals, *_service(case), *creations)


def stop_running(case: Situation, status: TrainingJobStatus) -> tuple[Action, ...]:
    """Of a broken world that nothing follows yet: ends what runs and leaves what has ended, for its logs. Where cleanPodPolicy keeps all
    pods, supervisors are told to end their processes instead."""
    stops = case.spec.clean_pod_policy is not CleanPodPolicy.NONE
    left = (view for view in case.observed.replicas if stops and not view.over)
    removals = tuple(action for view in left for action in removal(view, grace_seconds=case.brief_grace))
    return removals if case.observed.live or records.unsettled(status) is None else (*removals, LookLive())


def due(case: Situation, status: TrainingJobStatus) -> datetime | None:
    """When to look again though no event came."""
    retries = [case.retry_time(view) for view in case.replicas(status.attempt) if _evaluator_broke(view)]
    kept = in_place.awaited(case, status) if status.world else ()
    if kept and (limit := in_place.due(case, status)):
        retries.append(limit)
    leaving = (view for view in case.observed.replicas if view.attempt < status.attempt and view not in kept)
    if any(view.deleting for view in case.observed.replicas) or any(not _keeps_its_log(case, status, view) for view in leaving):
        retries.append(case.now + timedelta(seconds=case.policy.look_seconds))
    if status.next_attempt_time:
        retries.append(status.next_attempt_time)
    return min((time for time in retries if time > case.now), default=None)


def _places(world: World) -> list[tuple[str, int]]:
    return [(member.role, member.index) for member in world.members]


def _by_place(views: Iterable[ReplicaView]) -> _Places:
    places: _Places = {}
    for view in views:
        places.setdefault(view.place, []).append(view)
    return places


def _view_of(member: Member, views: _Places) -> ReplicaView | None:
    own = views.get((member.role, member.index), ())
    return next((view for view in own if member.awaited or member.uid in ("", view.uid)), None)


def _runs(view: ReplicaView | None) -> bool:
    return view is not None and view.phase is ReplicaPhase.RUNNING and view.deleting is None


def _recognised(case: Situation, member: Member, views: _Places) -> Member:
    if member.role in ALONE and case.observed.live:
        member = member.model_copy(update={"uid": ""})
    view = _view_of(member, views)
    if view is None or member.succeeded:
        return member
    incarnation = None if member.awaited or view.uid != member.uid else member.incarnation
    update = {"uid": view.uid, "awaited": False, "incarnation": incarnation, "succeeded": view.phase is ReplicaPhase.SUCCEEDED}
    return member.model_copy(update=update)


def _unneeded(case: Situation, status: TrainingJobStatus) -> tuple[Action, ...]:
    assert status.world is not None
    places, kept = set(_places(status.world)), in_place.awaited(case, status)
    strangers = (view for view in case.observed.replicas if view.attempt < status.attempt or view.place not in places)
    strangers = (view for view in strangers if view not in kept and not _keeps_its_log(case, status, view))
    return tuple(action for view in strangers for action in removal(view, grace_seconds=in_place.time_to_leave(case, status, view)))


def _keeps_its_log(case: Situation, status: TrainingJobStatus, view: ReplicaView) -> bool:
    """Whether the pod of a failed attempt may stay for its log: until the back-off is over, since the next attempt uses its name again."""
    return backoff.held(case, status) and view.phase.ended and not view.lingers


def _evaluator_broke(view: ReplicaView) -> bool:
    return view.role in ALONE and failure.classify(view, asked=False) is not None


def _broken_evaluators(case: Situation, status: TrainingJobStatus) -> tuple[Action, ...]:
    broke = (view for view in case.replicas(status.attempt) if _evaluator_broke(view) and case.now >= case.retry_time(view))
    return tuple(action for view in broke for action in removal(view))


def _service(case: Situation) -> tuple[Action, ...]:
    return () if case.observed.service else (EnsureService(),)
