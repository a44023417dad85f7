"""What the operator asks of the API server, in terms of jobs, their pods and their other objects. The client is `muster.kubernetes`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

from kubernetes.aio import client

from muster.admission.oversized import without_oversized_spec
from muster.api.constants import API_VERSION, JOB_NAME_LABEL, KIND, PLURAL, PRESET_KIND, PRESET_PLURAL
from muster.control.cluster import Child, Listing, Unreadable
from muster.control.job_store import slim
from muster.kubernetes.api_paths import ApiPath, collection, member
from muster.kubernetes.api_server import JSON, MERGE_PATCH, METADATA, METADATA_LIST, ApiServer
from muster.kubernetes.credentials import load_configuration
from muster.kubernetes.errors import NotFoundError, RefusedError, UnavailableError, UnreadableAnswerError
from muster.kubernetes.objects import Object, key_of, owner_of
from muster.lifecycle.observed import ClaimView, ReplicaPhase
from muster.operator.views import child_of, claim_of
from muster.render.kueue_versions import VISIBILITY_GROUP

LARGEST_OBJECT = 16 << 20
"""Bytes of one object. As JSON, a pod can be several times as large as in the store of the API server."""
_NETWORKING = "networking.k8s.io/v1"
_PLURALS = {
    "Service": "services",
    "ConfigMap": "configmaps",
    "Secret": "secrets",
    "NetworkPolicy": "networkpolicies",
    "Event": "events",
    "Pod": "pods",
    "PodGroup": "podgroups",
    "Workload": "workloads",
    "ResourceFlavor": "resourceflavors",
    "PriorityClass": "priorityclasses",
    KIND: PLURAL,
    PRESET_KIND: PRESET_PLURAL,
}
_KINDS = {plural: kind for kind, plural in _PLURALS.items()}

Converted = TypeVar("Converted")

log = logging.getLogger("muster.gateway")


class Gateway:
    """The API server, as the rest of Muster uses it.

    `namespaces` are those of this installation; empty means all. `policies`: whether network policies are listed, too. `on_request` is
    called after each request with its verb and the status of the answer, or 0 if there was none. `may_write` returns whether this process
    may write now. A process that has lost its lease must not.
    """

    def __init__(
        self,
        api: client.ApiClient,
        *,
        namespaces: tuple[str, ...] = (),
        policies: bool = False,
        on_request: Callable[[str, int], None] = lambda verb, status: None,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self._server = ApiServer(api, largest=LARGEST_OBJECT, on_request=on_request)
        self._namespaces = namespaces
        self._policies = policies
        self._may_write = may_write

    # jobs

    async def read_job(self, namespace: str, name: str) -> Object:
        return await self._server.request("GET", _job_path(namespace, name), cut=without_oversized_spec)

    async def write_status(self, job: Object, status: Object) -> Object:
        """Sends no spec, because this subresource ignores it, and the cached spec may be incomplete (`store.slim`)."""
        metadata = {name: job["metadata"][name] for name in ("name", "namespace", "uid", "resourceVersion")}
        path = _job_path(metadata["namespace"], metadata["name"], subresource="status")
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "status": status}
        answer = await self._write("PUT", path, body, accept=METADATA)
        return {**job, "metadata": answer["metadata"], "status": status}

    async def delete_job(self, namespace: str, name: str, *, uid: str) -> None:
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        await self._write("DELETE", _job_path(namespace, name), options)

    async def list_presets(self) -> list[Object]:
        """All presets of the cluster. Empty if it has no definition of presets. Presets that cannot be parsed are left out."""
        unreadable: list[Unreadable] = []
        try:
            presets = [preset async for preset in self._objects(collection(API_VERSION, PRESET_PLURAL), unreadable)]
        except NotFoundError:
            return []
        for each in unreadable:
            log.error("preset %s cannot be read: %s", each.name, each.reason)
        return presets

    # pods and services

    async def list_children(self, namespace: str, name: str, cached: Mapping[str, Child]) -> list[Child]:
        folder, unreadable = collection("v1", "pods", namespace=namespace), list[Unreadable]()
        pods = [pod async for pod in self._objects(folder, unreadable, labelSelector=f"{JOB_NAME_LABEL}={name}")]
        if unreadable:  # it may be a replica, so it must not count as gone
            raise UnreadableAnswerError(f"pod {unreadable[0].name} cannot be read: {unreadable[0].reason}")
        return children_of(pods, cached)

    async def read_child(self, namespace: str, name: str) -> Child:
        return child_in(await self.request("GET", _core_path(namespace, "pods", name)))

    async def read_claim(self, namespace: str, name: str) -> ClaimView:
        try:
            return claim_of(await self.request("GET", _core_path(namespace, "persistentvolumeclaims", name)))
        except NotFoundError:
            return ClaimView()

    async def create_pod(self, manifest: Object) -> Child:
        return child_in(await self._write("POST", _folder(manifest), manifest, accept=METADATA))

    async def delete_pod(self, namespace: str, name: str, *, uid: str, grace_seconds: int | None) -> None:
        options: Object = {"preconditions": {"uid": uid}}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        await self._write("DELETE", _core_path(namespace, "pods", name), options)

    async def read(self, manifest: Object) -> Object:
        return await self.request("GET", _path(manifest))

    async def read_pending_workloads(self, namespace: str, queue: str, *, version: str) -> list[Object]:
        """The first 1,000 Workloads that wait in this LocalQueue of Kueue, each with its positions, in their order. `version` is that of
        Kueue's visibility API."""
        path = member(
            collection(f"{VISIBILITY_GROUP}/{version}", "localqueues", namespace=namespace), queue, subresource="pendingworkloads"
        )
        summary = await self.request("GET", path)
        return list(summary.get("items") or ())

    async def create(self, manifest: Object) -> Object:
        return await self._write("POST", _folder(manifest), manifest)

    async def replace(self, manifest: Object) -> Object:
        return await self._write("PUT", _path(manifest), manifest)

    async def replace_status(self, manifest: Object) -> Object:
        return await self._write("PUT", _path(manifest, subresource="status"), manifest)

    async def patch(self, path: ApiPath, patch: Object) -> None:
        """Applies a JSON merge patch. After an empty one, the object is stored in the newest version of its kind."""
        await self._write("PATCH", path, patch, accept=METADATA, content=MERGE_PATCH)

    async def delete(self, existing: Object) -> None:
        options = {"preconditions": {"uid": existing["metadata"]["uid"]}}
        await self._write("DELETE", _path(existing), options)

    # everything

    async def list_all(self) -> Listing:
        """Objects that cannot be read are named in the listing, and do not stop it."""
        unreadable: list[Unreadable] = []
        selected = {"labelSelector": JOB_NAME_LABEL}
        # One after the other, because an API server with thousands of jobs needs a second for a page when it is busy.
        jobs = await self._everywhere(API_VERSION, PLURAL, _job, unreadable)
        pods = await self._everywhere("v1", "pods", child_of, unreadable, **selected)
        services = await self._everywhere("v1", "services", _owned, unreadable, **selected)
        policies = await self._everywhere(_NETWORKING, "networkpolicies", _owned, unreadable, **selected) if self._policies else None
        children = tuple(child for child in pods if child is not None)
        return Listing(tuple(jobs), children, tuple(services), None if policies is None else tuple(policies), tuple(unreadable))

    async def paths(self, version: str, plural: str) -> list[ApiPath]:
        """The paths of all objects of a kind, in all namespaces, also of those that cannot be read."""
        pages = self._server.pages(collection(version, plural), accept=METADATA_LIST)
        found = [obj["metadata"] async for page in pages for obj in page["items"] or ()]  # null if there are no objects
        return [member(collection(version, plural, namespace=each.get("namespace")), each["name"]) for each in found]

    def folders(self, version: str, plural: str) -> list[ApiPath]:
        """The paths of all objects of a kind that this installation manages: one, or one per namespace."""
        return [collection(version, plural, namespace=each) for each in self._namespaces] or [collection(version, plural)]

    @property
    def job_folders(self) -> list[ApiPath]:
        """The paths of all jobs that this installation manages."""
        return self.folders(API_VERSION, PLURAL)

    async def _everywhere(
        self, version: str, plural: str, convert: Callable[[Object], Converted], unreadable: list[Unreadable], **query: str
    ) -> list[Converted]:
        """All objects, converted. Objects for which `convert` raises are added to `unreadable`."""
        converted: list[Converted] = []
        for path in self.folders(version, plural):
            async for obj in self._objects(path, unreadable, **query):
                try:
                    converted.append(convert(obj))
                except Exception as error:
                    log.exception("%s %s cannot be read", _KINDS[plural], obj.get("metadata"))
                    unreadable.append(_unreadable(_KINDS[plural], obj, f"{type(error).__name__}: {error}"))
        return converted

    async def _objects(self, path: ApiPath, unreadable: list[Unreadable], **query: str) -> AsyncIterator[Object]:
        """Yields every object. An object that cannot be parsed is added to `unreadable`."""
        kind = _KINDS[path.rpartition("/")[2]]
        pages = self._server.pages(path, query=query, unreadable=lambda obj, reason: unreadable.append(_unreadable(kind, obj, reason)))
        async for page in pages:
            for obj in page["items"]:
                yield obj

    def changes(self, path: ApiPath, version: str, *, labels: str = "") -> AsyncIterator[tuple[str, Object]]:
        """The changes of `ApiServer.changes`. A spec that is far out of bounds is replaced by a small one that is out of bounds too."""
        return self._server.changes(path, version, labels=labels, cut=without_oversized_spec)

    # requests

    async def _write(self, verb: str, path: ApiPath, body: Object, *, accept: str = JSON, content: str = JSON) -> Object:
        if not self._may_write():
            raise UnavailableError("another operator may lead; this one writes only while it holds the lease")
        return await self.request(verb, path, body=body, accept=accept, content=content)

    async def request(
        self,
        verb: str,
        path: ApiPath,
        *,
        body: Object | None = None,
        query: dict[str, str] | None = None,
        accept: str = JSON,
        content: str = JSON,
    ) -> Object:
        """Sends a request. Returns the object in the answer. Raises a ClusterError."""
        return await self._server.request(verb, path, body=body, query=query, accept=accept, content=content)


def _folder(manifest: Object) -> ApiPath:
    """The path of the collection that this object belongs to."""
    return collection(manifest["apiVersion"], _PLURALS[manifest["kind"]], namespace=manifest["metadata"].get("namespace") or None)


def _path(manifest: Object, *, subresource: str = "") -> ApiPath:
    return member(_folder(manifest), manifest["metadata"]["name"], subresource=subresource)


def _job_path(namespace: str, name: str, *, subresource: str = "") -> ApiPath:
    return member(collection(API_VERSION, PLURAL, namespace=namespace), name, subresource=subresource)


def _core_path(namespace: str, plural: str, name: str) -> ApiPath:
    return member(collection("v1", plural, namespace=namespace), name)


def _job(job: Object) -> Object:
    """The cached part of a job. Raises KeyError if it has no name."""
    key_of(job)
    return slim(job)


def _owned(obj: Object) -> Object:
    """The cached part of a service or policy: its name and its owner."""
    metadata = {name: obj["metadata"].get(name) for name in ("name", "namespace", "uid", "resourceVersion", "ownerReferences")}
    owner_of({"metadata": metadata})
    return {"metadata": metadata}


def _unreadable(kind: str, obj: Object, reason: str) -> Unreadable:
    namespace, name, uid = (str((obj.get("metadata") or {}).get(field, "")) for field in ("namespace", "name", "uid"))
    return Unreadable(kind, namespace, name, uid, reason[:500])


def children_of(pods: Iterable[Object], cached: Mapping[str, Child]) -> list[Child]:
    return [child for pod in pods if (child := _same_version(pod, cached) or child_of(pod)) is not None]


def _same_version(pod: Object, cached: Mapping[str, Child]) -> Child | None:
    """The cached view of the pod, if it is of the same version. The view of a pod that does not run yet may be incomplete, because the
    answer to its creation has only metadata."""
    child = cached.get(pod["metadata"]["uid"])
    if child is None or child.view.phase is ReplicaPhase.PENDING or child.version != int(pod["metadata"]["resourceVersion"]):
        return None
    return child


def child_in(pod: Object) -> Child:
    child = child_of(pod)
    if child is None:
        raise RefusedError(f"a pod {pod['metadata']['name']} exists and is not a replica: remove it, or give the job another name")
    return child


@asynccontextmanager
async def connected(
    namespaces: tuple[str, ...] = (),
    *,
    policies: bool = False,
    on_request: Callable[[str, int], None] = lambda verb, status: None,
    may_write: Callable[[], bool] = lambda: True,
) -> AsyncIterator[Gateway]:
    """A gateway with its own connection pool, which is closed at the end. The parameters are those of `Gateway`."""
    async with client.ApiClient(await load_configuration()) as api:
        yield Gateway(api, namespaces=namespaces, policies=policies, on_request=on_request, may_write=may_write)
