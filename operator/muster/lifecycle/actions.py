"""The actions that the caller carries out after it has written the status. Each action is idempotent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from muster.api.spec import PodLabels, RoleName
from muster.api.status import TrainingJobStatus
from muster.lifecycle.observed import ReplicaView

SIDE_CAR_SECONDS = 10
"""The grace period of side-cars after the trainer container has ended."""


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
    apart_from: tuple[PodLabels, ...] = ()
    """Pods on whose nodes the replica may not run."""


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

    An empty pod gets no grace period, because the node would take seconds to confirm its end. Side-cars that have outlived the trainer
    container get a short one, because the grace period of the pod is for a save.
    """
    if view.deleting is not None:
        return ()
    if view.only_side_cars_run:
        grace_seconds = SIDE_CAR_SECONDS if grace_seconds is None else min(grace_seconds, SIDE_CAR_SECONDS)
    return (DeleteReplica(view.name, view.uid, 0 if view.empty else grace_seconds),)


def shortening(views: Iterable[ReplicaView], now: datetime) -> tuple[DeleteReplica, ...]:
    """The actions that shorten the grace period of pods that are being deleted, and in which only side-cars still run. The grace period
    counts from the first request, so a second action would have no effect."""
    latest = now + timedelta(seconds=SIDE_CAR_SECONDS)
    late = (view for view in views if view.deleting and view.due and view.due > latest and view.only_side_cars_run)
    return tuple(DeleteReplica(view.name, view.uid, SIDE_CAR_SECONDS) for view in late)


@dataclass(frozen=True)
class Decision:
    """The status to write, the actions to carry out after that, and the time to decide again if nothing happens before."""

    status: TrainingJobStatus
    actions: tuple[Action, ...] = field(default=())
    wake: datetime | None = None
