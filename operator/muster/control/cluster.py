"""What the reconciler needs of a cluster. `muster.kubernetes.gateway` is the real one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from muster.lifecycle.observed import ClaimView, ReplicaView

Object = dict[str, Any]
"""An object of the API server, as JSON."""


def owner_of(obj: Object) -> str:
    """uid of the object that controls this one; empty where none does."""
    references = obj["metadata"].get("ownerReferences") or []
    return next((str(reference["uid"]) for reference in references if reference.get("controller")), "")


@dataclass(frozen=True)
class Child:
    """A pod of a job."""

    key: str
    """namespace/name of the job that its labels name."""
    owner: str
    """uid of the object that controls it; empty where none does."""
    version: int
    """Its resourceVersion: of two states of one object the higher is the later."""
    view: ReplicaView


@dataclass(frozen=True)
class Unreadable:
    """An object that nothing can be done for, since it cannot be read."""

    kind: str
    namespace: str
    name: str
    uid: str
    reason: str


@dataclass(frozen=True)
class Listing:
    """Everything there is for a number of jobs at one moment."""

    jobs: tuple[Object, ...]
    children: tuple[Child, ...]
    services: tuple[Object, ...]
    policies: tuple[Object, ...] | None
    """Network policies; None where this installation makes none."""
    unreadable: tuple[Unreadable, ...] = ()


class Cluster(Protocol):
    """Every method raises a ClusterError where the API server does not do it."""

    async def read_job(self, namespace: str, name: str) -> Object:
        """The job as it is now."""

    async def list_children(self, namespace: str, name: str) -> list[Child]:
        """The pods labelled with the job's name, as they are now, whoever owns them."""

    async def read_claim(self, namespace: str, name: str) -> ClaimView:
        """A PersistentVolumeClaim as it is now, also where there is none."""

    async def write_status(self, job: Object, status: Object) -> Object:
        """Replaces the status of the job as it was read (its resourceVersion is the precondition); the job afterwards."""

    async def create_pod(self, manifest: Object) -> Child:
        """Makes a pod."""

    async def read_child(self, namespace: str, name: str) -> Child:
        """One pod as it is now."""

    async def create(self, manifest: Object) -> Object:
        """Makes a service or a network policy."""

    async def read(self, manifest: Object) -> Object:
        """The object of this kind and name as it is now."""

    async def delete_pod(self, namespace: str, name: str, *, uid: str, grace_seconds: int | None) -> None:
        """Asks for the deletion of the pod with this uid. NotFoundError: it is gone."""

    async def delete_job(self, namespace: str, name: str, *, uid: str) -> None:
        """Deletes the job with this uid."""

    async def list_all(self) -> Listing:
        """All that this installation looks after."""
