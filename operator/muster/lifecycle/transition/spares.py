"""Spares: workers that stand by and take the places of workers whose pods are lost, or whose nodes go.

A job with `recovery.spares: n` has n more workers than its world. They are replicas like all others, with the next indexes. If a pod of the
world cannot go on, a ready spare takes its place and rank in the next world. So the world does not wait for a new pod. Muster creates the
replica that has left the world again, as the next spare. A job without spares gets them while nodes of its world announce that they go
(`moving.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from muster.api.status import Member, TrainingJobStatus, World
from muster.lifecycle.facts import capacity, node_notices
from muster.lifecycle.facts.acknowledging import may_acknowledge
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.facts.silence import is_silent
from muster.lifecycle.job_state import SUSPENSIONS, newest
from muster.lifecycle.observed import Replica, ReplicaView
from muster.lifecycle.transition.in_place import reused_pods
from muster.strategies.base import WorldPlan


def next_plan(status: TrainingJobStatus, facts: Facts) -> WorldPlan:
    """The plan of the next world: the members of the last one. A ready spare, if there is one, replaces each member whose pod does not go
    on. In `status` the attempt before has ended."""
    world, record = status.world, newest(status)
    if world is None or record is None or record.reason in SUSPENSIONS or is_outgrown(world, facts):
        return facts.desired
    reused = reused_pods(status, facts)
    waiting = [view for view in ready(facts) if reused.get(view.replica) == view.uid]
    workers = [member.replica for member in world.members if member.role == facts.strategy.worker_role]
    lost = [replica for replica in workers if replica not in reused]
    successors = _successors(lost, waiting, _nodes({uid for replica in workers if (uid := reused.get(replica))}, facts))
    going = node_notices.going(status, facts)
    stays = [view for view in waiting if view.node not in going and view.replica not in successors.values()]
    leaving = [view.replica for view in node_notices.leaving(status, facts) if view.replica in reused]
    successors |= _successors(leaving, stays, _nodes({uid for each in workers if each not in leaving and (uid := reused.get(each))}, facts))
    back = [view.replica for view in capacity.returning(status, facts) if view.replica in reused and view.replica not in successors]
    ready_there = [view for view in ready_to_return(status, facts) if view in stays and view.replica not in successors.values()]
    successors |= _successors(back, ready_there, _nodes({uid for each in workers if each not in back and (uid := reused.get(each))}, facts))
    return facts.pool.arranged([successors.get(member.replica, member.replica) for member in world.members])


def _successors(replaced: Sequence[Replica], waiting: list[ReplicaView], nodes: set[str]) -> dict[Replica, Replica]:
    """A spare for each of these replicas, as far as there are enough. `nodes` are those of the rest of the world."""
    return {replica: _taken(waiting, nodes).replica for replica in replaced[: len(waiting)]}


def is_outgrown(world: World, facts: Facts) -> bool:
    """Whether the spec now asks for another world."""
    members = [member.replica for member in world.members]
    if members == list(facts.desired.positions):
        return world.size != facts.desired.size  # in short, because a pass over thousands of members would take long otherwise
    plan = facts.pool.arranged(members)
    roles, desired = sorted(role for role, _ in members), sorted(replica.role for replica in facts.desired.replicas)
    return len(plan.replicas) != len(members) or roles != desired or plan.size != world.size


def ready(facts: Facts) -> list[ReplicaView]:
    """The replicas that stand by and can take a place at once. A spare of a job that has become smaller meanwhile has no place."""
    positions = facts.pool.positions
    return [view for view in facts.standing_by if view.replica in positions and view.is_ready and not is_silent(view, facts)]


def ready_to_return(status: TrainingJobStatus, facts: Facts) -> list[ReplicaView]:
    """The ready replicas on nodes of the preferred capacity class. Nodes that go do not count."""
    going = node_notices.going(status, facts)
    return [view for view in ready(facts) if view.node not in going and capacity.is_on_preferred(view, facts)]


def with_successors(
    status: TrainingJobStatus, facts: Facts, does_not_answer: Callable[[Member], bool], *, excluded: Collection[str]
) -> TrainingJobStatus:
    """The status in which ready spares take the places of members that can no longer acknowledge the attempt: those that do not answer,
    and those whose pods have ended or are to end. Peers may report the loss of a pod before the pod does.

    `excluded` has the uids of pods that take no place.
    """
    world = status.world
    if world is None or world.ready_time or not facts.replaces_workers or not may_acknowledge(status, facts):
        return status
    free = [view for view in ready(facts) if view.uid not in excluded]
    active = {view.uid for view in facts.replicas if view.is_active}
    lost = {member.replica for member in world.members if does_not_answer(member) or (member.awaited and member.uid not in active)}
    nodes = _nodes({member.uid for member in world.members if member.replica not in lost}, facts)

    def successor(member: Member) -> Member:
        is_replaced = free and member.replica in lost and member.role == facts.strategy.worker_role
        return _member_of(_taken(free, nodes)) if is_replaced else member

    return replace(status, world=replace(world, members=tuple(successor(member) for member in world.members)))


def _nodes(uids: Collection[str], facts: Facts) -> set[str]:
    """The nodes of these pods."""
    return {view.node for view in facts.everyone if view.uid in uids}


def _taken(free: list[ReplicaView], nodes: set[str]) -> ReplicaView:
    """Takes a spare from the list: if possible one on a node where the world has no pod, so that the loss of one node does not stop the
    whole world. Adds its node to `nodes`."""
    position = next((number for number, view in enumerate(free) if view.node not in nodes), 0)
    spare = free.pop(position)
    nodes.add(spare.node)
    return spare


def _member_of(spare: ReplicaView) -> Member:
    """The spare as a member that has not acknowledged the attempt yet."""
    return Member(role=spare.role, index=spare.index, uid=spare.uid, awaited=True, suffix=spare.suffix)
