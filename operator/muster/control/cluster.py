"""The interface between the reconciler and a cluster. `muster.operator.gateway` implements it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from muster.kubernetes.objects import Object
from muster.lifecycle.observed import ClaimView, ReplicaView


@dataclass(frozen=True)
class Child:
    """A pod of a job."""

    key: str
    """namespace/name of the job in the pod's labels."""
    owner: str
    """The uid of the object that controls the pod. Empty if none does."""
    version: int
    """The resourceVersion. Of two states of one object, the higher is the later."""
    view: ReplicaView


@dataclass(frozen=True)
class Unreadable:
    """An object that Muster ignores because it cannot be read."""

    kind: str
    namespace: str
    name: str
    uid: str
    reason: str


@dataclass(frozen=True)
class Listing:
    """All objects of an installation's jobs at one moment."""

    jobs: tuple[Object, ...]
    children: tuple[Child, ...]
    services: tuple[Object, ...]
    policies: tuple[Object, ...] | None
    """Network policies. None if the installation does not use them."""
    unreadable: tuple[Unreadable, ...] = ()


class Cluster(Protocol):
    """Every method raises a ClusterError if the API server does not carry out the request."""

    async def read_job(self, namespace: str, name: str) -> Object:
        """The job as it is now."""

    async def list_children(self, namespace: str, name: str, cached: Mapping[str, Child]) -> list[Child]:
        """All pods with the job's name in their labels, as they are now, including those of other owners. `cached` has earlier views by
        uid. A pod of the same version is not read again."""

    async def read_claim(self, namespace: str, name: str) -> ClaimView:
        """A PersistentVolumeClaim as it is now. Its access modes are empty if it does not exist."""

    async def write_status(self, job: Object, status: Object) -> Object:
        """Replaces the status, if the job still has the same resourceVersion. Returns the updated job."""

    async def create_pod(self, manifest: Object) -> Child:
        """Creates a pod."""

    async def read_child(self, namespace: str, name: str) -> Child:
        """One pod as it is now."""

    async def create(self, manifest: Object) -> Object:
        """Creates an object that is not a pod."""

    async def replace(self, manifest: Object) -> Object:
        """Replaces the object of the same kind and name."""

    async def replace_status(self, manifest: Object) -> Object:
        """Replaces the status of the object of the same kind and name."""

    async def read(self, manifest: Object) -> Object:
        """The object of this kind and name as it is now."""

    async def delete(self, existing: Object) -> None:
        """Requests the deletion of this object, which is not a pod. Raises NotFoundError if it is gone."""

    async def delete_pod(self, namespace: str, name: str, *, uid: str, grace_seconds: int | None) -> None:
        """Requests the deletion of the pod with this uid. Raises NotFoundError if the pod is gone."""

    async def delete_job(self, namespace: str, name: str, *, uid: str) -> None:
        """Deletes the job with this uid."""

    async def list_all(self) -> Listing:
        """Lists all objects that this installation manages."""
