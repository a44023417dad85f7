"""Fences between attempts. Muster creates no replica and starts no process while a replica of an older attempt is left.

A pod that the next attempt keeps belongs to its old attempt until its supervisor acknowledges the new one. The acknowledgement proves that
the old processes have ended. A termination report for the previous attempt counts too, because the supervisor then waits for the new world.
If the acknowledgement does not come in time, Muster deletes the pod. Checkpoints have a fence of their own: the attempt in the name of
their folder.
"""

from __future__ import annotations

from muster.api.status import Member, TrainingJobStatus
from muster.lifecycle.facts.acknowledging import grace_seconds
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.job_state import is_open
from muster.lifecycle.observed import ReplicaView

_EXIT_SECONDS = 10


def is_clear(status: TrainingJobStatus, facts: Facts) -> bool:
    """Whether no replica of an older attempt is left."""
    return not facts.older_than(status.attempt)


def is_proved(facts: Facts, *, older: bool, absent: bool) -> bool:
    """Whether the observation proves which replicas are gone. A cached observation proves that only without older or absent replicas."""
    return facts.live or not (older or absent)


def exit_seconds(status: TrainingJobStatus, facts: Facts, view: ReplicaView) -> int | None:
    """The grace period, in seconds, of a replica that is not in the current world. None stands for the grace period of the pod. A replica
    that did not acknowledge has used most of the time. In a broken world no replica can save."""
    seconds = grace_seconds(facts.spec, status)
    member = status.world.member_of.get(view.uid) if status.world else None
    if member is not None and member.awaited:
        return seconds + _EXIT_SECONDS
    return None if seconds else facts.brief_grace


def member_to_start(status: TrainingJobStatus, uid: str) -> Member | None:
    """The member whose processes this replica may start. None until all replicas of the world run and no older process is left."""
    world = status.world
    if world is None or world.ready_time is None or not is_open(status):
        return None
    member = world.member_of.get(uid)
    return member if member is not None and not member.awaited else None
