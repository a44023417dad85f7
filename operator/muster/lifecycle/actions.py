"""The actions that the caller carries out after it has written the status. Each action is idempotent."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from muster.api.spec import RoleName
from muster.api.status import TrainingJobStatus
from muster.lifecycle.observed import ReplicaView


@dataclass(frozen=True)
class EnsureService:
    """Create the headless service unless it exists."""


@dataclass(frozen=True)
class CreateReplica:
    """Create the replica of this attempt. Its name has role and index, so a second creation conflicts (409) and does nothing."""

    role: RoleName
    index: int
    attempt: int
    standby: bool = False
    """Whether the replica waits outside the world until a later world takes it in."""


@dataclass(frozen=True)
class DeleteReplica:
    """Delete the object with this uid and no other. `grace_seconds` is None for the grace period of the pod, or 0 to delete at once."""

    name: str
    uid: str
    grace_seconds: int | None = None


@dataclass(frozen=True)
class LookLive:
    """Decide again at once, with a live observation, because the next actions depend on whether a replica is gone."""


@dataclass(frozen=True)
class DeleteJob:
    """Delete the job itself, because its time to live is over."""

    uid: str


Action = EnsureService | CreateReplica | DeleteReplica | LookLive | DeleteJob


def deletion(view: ReplicaView, *, grace_seconds: int | None = None) -> tuple[DeleteReplica, ...]:
    """The actions that delete the replica. There are none if its deletion was requested before.

    An empty pod gets no grace period, because the node would take seconds to confirm its end.
    """
    return (DeleteReplica(view.name, view.uid, 0 if view.empty else grace_seconds),) if view.deleting is None else ()


@dataclass(frozen=True)
class Decision:
    """The status to write, the actions to carry out after that, and the time to decide again if nothing happens before."""

    status: TrainingJobStatus
    actions: tuple[Action, ...] = field(default=())
    wake: datetime | None = None
