"""What the lifecycle core asks its caller to do, after the status is written. Each action is idempotent."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from muster.api.spec import RoleName
from muster.api.status import TrainingJobStatus
from muster.lifecycle.observed import ReplicaView


@dataclass(frozen=True)
class EnsureService:
    """Make the headless service unless it is there."""


@dataclass(frozen=True)
class CreateReplica:
    """Make the replica of this attempt. Its name says role and index, so a second creation finds it there (409) and does nothing."""

    role: RoleName
    index: int
    attempt: int
    standby: bool = False
    """It is to train nothing until a later world takes it in."""


@dataclass(frozen=True)
class DeleteReplica:
    """Delete the object with this uid and no other. `grace_seconds` None: as the replica was made; 0: at once."""

    name: str
    uid: str
    grace_seconds: int | None = None


@dataclass(frozen=True)
class LookLive:
    """Come back at once with an observation that is live: whether a replica is gone decides what is next."""


@dataclass(frozen=True)
class DeleteJob:
    """Delete the job itself: its time to live is over."""

    uid: str


Action = EnsureService | CreateReplica | DeleteReplica | LookLive | DeleteJob


def removal(view: ReplicaView, *, grace_seconds: int | None = None) -> tuple[DeleteReplica, ...]:
    """Asks for its deletion, unless somebody has; one that is empty need not wait until its node agrees, which takes seconds."""
    return (DeleteReplica(view.name, view.uid, 0 if view.empty else grace_seconds),) if view.deleting is None else ()


@dataclass(frozen=True)
class Decision:
    """The status to write, then what to do, and when to look again even if nothing happens."""

    status: TrainingJobStatus
    actions: tuple[Action, ...] = field(default=())
    wake: datetime | None = None
