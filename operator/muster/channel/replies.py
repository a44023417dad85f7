"""The reply to a report. Pure. It depends only on the job's status, so every leader gives the same reply.

One part depends on other reports: the replicas from which a spare copies snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from muster.api.job import TrainingJob
from muster.api.status import ConditionType, Meaning, Phase, Reason, TrainingJobStatus
from muster.api.unchecked import items, mapping, mappings
from muster.lifecycle.facts.acknowledging import grace_seconds
from muster.lifecycle.facts.membership import attempt_of
from muster.lifecycle.facts.node_notices import most_urgent
from muster.lifecycle.job_state import has_failed_without_successor, newest_ended
from muster.lifecycle.transition.fence import member_to_start
from muster.render.manifests import render_world, world_plan
from muster.render.trainer import memory_of
from muster.strategies.base import Addresses
from muster.strategies.registry import strategy_of
from muster_contract.reports import MAX_SNAPSHOT_SERVERS, NodeNotice, Reply, Report, SnapshotServer, SnapshotSource

ServerOf = Callable[[str], SnapshotServer | None]
"""Returns where the replica with this pod uid gives its snapshots. None if it does not."""


def reply_to(job: TrainingJob, uid: str, report: Report, addresses: Addresses, *, server_of: ServerOf = lambda _: None) -> Reply:
    """The reply to the replica with this pod uid. `addresses` are those of the job's current attempt."""
    status = job.status
    attempt, ended = attempt_of(status, uid), newest_ended(status)
    reply = Reply(
        attempt=attempt,
        grace_seconds=grace_seconds(job.spec, status),
        dump=ended is not None and ended.reason is Reason.HANG,
        end=status.phase.final or (has_failed_without_successor(status) and not report.waiting),
        succeeded=status.phase is Phase.SUCCEEDED,
        notice=notice_in(status),
        revisions={each.name: each.revision for each in status.inputs if each.revision} if report.inputs else {},
    )
    member = member_to_start(status, uid) if report.startable_attempt == attempt else None
    if member is None:
        return replace(reply, snapshot_sources=tuple(_snapshot_sources(job, uid, report, addresses, server_of)))
    if member.replica not in world_plan(job).positions:  # the job has become smaller meanwhile, and the next pass deletes this replica
        return reply
    world = render_world(job, member.role, index=member.index, attempt=attempt, addresses=addresses)
    return replace(reply, world=world)


def notice_in(status: TrainingJobStatus) -> NodeNotice | None:
    """The most urgent notice of a node, while one concerns a node of the world."""
    notice, stays = most_urgent(status.node_notices), status.condition(ConditionType.NODES_STAY)
    if notice is None or stays is None or stays.status == "True":
        return None
    goes, time = notice.meaning is Meaning.GOES, notice.goes_time
    return NodeNotice(notice.node, notice.signal, notice.since.timestamp(), goes, time.timestamp() if time else None)


def _snapshot_sources(job: TrainingJob, uid: str, report: Report, addresses: Addresses, server_of: ServerOf) -> Iterator[SnapshotSource]:
    """The members of the world, for a spare. In a world with more members than a reply can name, each spare gets others first."""
    world = job.status.world
    if world is None or uid in world.member_of or not report.waiting:
        return
    if not job.spec.recovery.spares or memory_of(job.spec, strategy_of(job.spec.strategy)) is None:
        return
    start = report.index * MAX_SNAPSHOT_SERVERS % max(1, len(world.members))
    servers = ((member, server_of(member.uid)) for member in (*world.members[start:], *world.members[:start]) if member.uid)
    sources = (SnapshotSource(addresses.host(member.role, member.index), server) for member, server in servers if server is not None)
    yield from islice(sources, MAX_SNAPSHOT_SERVERS)


def reply_basis(status: Mapping[str, Any]) -> tuple[Any, ...]:
    """The parts of a status, as plain data, that decide whether a waiting supervisor may go on. While they stay the same, so does its
    reply, and there is no need to make thousands of replies again."""
    world, newest = mapping(status.get("world")), mapping((items(status.get("attempts")) or [None])[-1])
    members, by_role = items(world.get("members")), items(world.get("membersByRole"))
    parts = (*mappings(members), *(each for _, role in mappings(by_role) for each in mappings(role.get("alike"))))
    decide = world.get("readyTime") is not None or any("incarnation" in part for _, part in parts)
    return (
        status.get("phase"),
        status.get("attempt"),
        newest.get("attempt"),
        newest.get("endTime"),
        newest.get("class"),
        world.get("attempt"),
        world.get("readyTime"),
        (members, by_role) if decide else None,
    )
