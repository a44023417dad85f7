"""A cluster in memory, which behaves as an API server does for the reconciler, and a reconciler on it. Tests can make its requests fail."""

from __future__ import annotations

import asyncio
import copy
import itertools
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from muster.channel.reports import Reports
from muster.control.cluster import Child, Listing
from muster.control.dependencies import Dependencies
from muster.control.job_store import Store
from muster.control.reconciler import Reconciler
from muster.kubernetes.errors import AlreadyExistsError, ConflictError, NotFoundError
from muster.kubernetes.objects import Object
from muster.lifecycle.observed import ClaimView
from muster.operator.views import child_of, claim_of
from muster.render.images import Images
from muster_contract.reports import Report
from muster_contract.wire import decode

CREATED = "2026-11-21T12:00:00Z"
IMAGES = Images({"PyTorch": "torch", "TensorFlow": "tensorflow"}, supervisor="operator")
KEY = "default/digits"
NOW = datetime(2026, 11, 21, 12, 0, 1, tzinfo=UTC)


class MemoryCluster:
    """Objects by kind, namespace and name. `before` is called with verb and kind of each request, and may raise."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.requests: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] = lambda verb, kind: None
        self._numbers = itertools.count(1)

    def put(self, obj: Object) -> Object:
        """Stores an object that another client of the API server has made."""
        obj = copy.deepcopy(obj)
        number = next(self._numbers)
        made = {"uid": f"uid-{number}", "creationTimestamp": CREATED, "generation": 1, **obj["metadata"], "resourceVersion": str(number)}
        self.objects[self._key(obj)] = {**obj, "metadata": made}
        return copy.deepcopy(self.objects[self._key(obj)])

    def of(self, kind: str) -> list[Object]:
        return [copy.deepcopy(obj) for (each, _, _), obj in self.objects.items() if each == kind]

    async def read_job(self, namespace: str, name: str) -> Object:
        return self._get("TrainingJob", namespace, name)

    async def list_children(self, namespace: str, name: str, cached: Mapping[str, Child]) -> list[Child]:
        self._ask("list", "Pod")
        return [child for pod in self.of("Pod") if (child := child_of(pod)) and child.key == f"{namespace}/{name}"]

    async def read_claim(self, namespace: str, name: str) -> ClaimView:
        claim = self.objects.get(("PersistentVolumeClaim", namespace, name))
        self._ask("get", "PersistentVolumeClaim")
        return claim_of(claim) if claim else ClaimView()

    async def write_status(self, job: Object, status: Object) -> Object:
        self._ask("status", "TrainingJob")
        current = self.objects.get(self._key(job))
        if current is None:
            raise NotFoundError("no such job")
        if current["metadata"]["resourceVersion"] != job["metadata"]["resourceVersion"]:
            raise ConflictError("the job has changed")
        return self.put({**current, "status": copy.deepcopy(status)})

    async def create_pod(self, manifest: Object) -> Child:
        child = child_of(await self.create(manifest))
        assert child
        return child

    async def read_child(self, namespace: str, name: str) -> Child:
        child = child_of(self._get("Pod", namespace, name))
        assert child
        return child

    async def create(self, manifest: Object) -> Object:
        self._ask("create", manifest["kind"])
        if self._key(manifest) in self.objects:
            raise AlreadyExistsError("it is there")
        return self.put(manifest)

    async def replace(self, manifest: Object) -> Object:
        self._ask("update", manifest["kind"])
        self._get(*self._key(manifest))
        return self.put(manifest)

    async def replace_status(self, manifest: Object) -> Object:
        self._ask("status", manifest["kind"])
        return self.put({**self._get(*self._key(manifest)), "status": manifest["status"]})

    async def read(self, manifest: Object) -> Object:
        return self._get(*self._key(manifest))

    async def delete(self, existing: Object) -> None:
        self._delete(*self._key(existing), uid=existing["metadata"]["uid"])

    async def delete_pod(self, namespace: str, name: str, *, uid: str, grace_seconds: int | None) -> None:
        self._delete("Pod", namespace, name, uid=uid)

    async def delete_job(self, namespace: str, name: str, *, uid: str) -> None:
        self._delete("TrainingJob", namespace, name, uid=uid)

    async def list_all(self) -> Listing:
        self._ask("list", "everything")
        children = tuple(child for pod in self.of("Pod") if (child := child_of(pod)))
        return Listing(tuple(self.of("TrainingJob")), children, tuple(self.of("Service")), tuple(self.of("NetworkPolicy")))

    def _get(self, kind: str, namespace: str, name: str) -> Object:
        self._ask("get", kind)
        try:
            return copy.deepcopy(self.objects[kind, namespace, name])
        except KeyError:
            raise NotFoundError(f"no {kind} {name}") from None

    def _delete(self, kind: str, namespace: str, name: str, *, uid: str) -> None:
        self._ask("delete", kind)
        current = self.objects.get((kind, namespace, name))
        if current is None:
            raise NotFoundError(f"no {kind} {name}")
        if current["metadata"]["uid"] != uid:
            raise ConflictError("another object of that name")
        del self.objects[kind, namespace, name]

    def _ask(self, verb: str, kind: str) -> None:
        self.requests.append((verb, kind))
        self.before(verb, kind)

    @staticmethod
    def _key(obj: Object) -> tuple[str, str, str]:
        return obj["kind"], obj["metadata"]["namespace"], obj["metadata"]["name"]


def job_object(name: str = "digits", workers: int = 2, **spec: Any) -> Object:
    return {
        "apiVersion": "muster.dev/v1beta1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"strategy": "DDP", "trainer": {"task": "digits"}, "roles": {"worker": {"replicas": workers}}, **spec},
    }


class World:
    """A cluster, a store with its jobs, and a reconciler."""

    def __init__(self, **settings: Any) -> None:
        self.cluster = MemoryCluster()
        self.store = Store(time.monotonic)
        self.reports = Reports()
        self._settings = settings
        self.restart()

    def restart(self) -> None:
        """Begins with a new reconciler, as a new leader does."""
        self.reconciler = Reconciler(Dependencies(self.cluster, self.store, self.reports, images=IMAGES, now=lambda: NOW, **self._settings))

    def submit(self, *, namespace: str = "default", **changes: Any) -> None:
        job = job_object(**changes)
        job["metadata"]["namespace"] = namespace
        self.store.put_job(self.cluster.put(job))

    def reconcile(self, key: str = KEY) -> float | None:
        return asyncio.run(self.reconciler.reconcile(key))

    def status(self) -> dict[str, Any]:
        [job] = self.cluster.of("TrainingJob")
        return dict(job.get("status", {}))

    def pod(self, index: int, **status: Any) -> Child:
        """The pod of a worker. `status` becomes the state of its container."""
        [pod] = [pod for pod in self.cluster.of("Pod") if pod["metadata"]["labels"]["muster.dev/index"] == str(index)]
        if status:
            pod["status"] = {"containerStatuses": [{"name": "trainer", "state": status}]}
        child = child_of(self.cluster.put(pod))
        assert child
        self.store.put_child(child)
        return child

    def receive_report(self, child: Child, **report: Any) -> None:
        fields = {"job": KEY, "pod": child.view.name, "role": "worker", "index": child.view.index, "inPlace": True, **report}
        assert self.reports.record(child.view.uid, decode(Report, fields), NOW)
