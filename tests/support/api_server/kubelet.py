"""Replaces the scheduler and the kubelets: pods get a node, run, end and are removed by changes of their status alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

from tests.support.api_server.api import Api, ApiError, Object
from tests.support.api_server.watched import Follower

PODS = "/api/v1/namespaces/{}/pods"
IMAGE = {"image": "trainer", "imageID": "", "restartCount": 0}


def pod_path(pod: Object) -> str:
    return f"{PODS.format(pod['metadata']['namespace'])}/{pod['metadata']['name']}"


def trainer(state: Object, *, ready: bool = False) -> list[Object]:
    return [{**IMAGE, "name": "trainer", "ready": ready, "started": ready, "state": state}]


class Kubelet:
    """Does with a pod what a node does, on request."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def bind(self, pod: Object, node: str = "node-0") -> None:
        """Binds the pod to a node. From then on its deletion needs a kubelet."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod["metadata"]["name"]}, "target": target}
        with suppress(ApiError):
            self.api.create(f"{pod_path(pod)}/binding", binding)

    def run(self, pod: Object) -> None:
        """Marks its trainer container as running."""
        if not pod["spec"].get("nodeName"):
            self.bind(pod)
        status = {"phase": "Running", "startTime": now(), "containerStatuses": trainer({"running": {"startedAt": now()}}, ready=True)}
        self.set_status(pod, status)

    def end(self, pod: Object, code: int, *, message: str = "", reason: str = "", side_car: str = "") -> None:
        """Ends its trainer container with an exit code and a termination message. The container `side_car`, if present, continues to
        run."""
        terminated = {
            "exitCode": code,
            "reason": reason or ("Completed" if code == 0 else "Error"),
            "finishedAt": now(),
            "startedAt": now(),
        }
        if message:
            terminated["message"] = message
        containers = trainer({"terminated": terminated})
        if side_car:
            containers.append({**IMAGE, "name": side_car, "ready": True, "started": True, "state": {"running": {"startedAt": now()}}})
        phase = "Running" if side_car else "Failed" if code else "Succeeded"
        self.set_status(pod, {"phase": phase, "containerStatuses": containers})

    def report_device(self, pod: Object, health: str, *, resource: str = "nvidia.com/gpu", device: str = "GPU-3") -> None:
        """Of a running pod: the health of a device of its trainer container."""
        [container] = trainer({"running": {"startedAt": now()}}, ready=True)
        devices = [{"name": resource, "resources": [{"resourceID": device, "health": health}]}]
        self.set_status(pod, {"containerStatuses": [{**container, "allocatedResourcesStatus": devices}]})

    def disrupt(self, pod: Object, reason: str = "EvictionByEvictionAPI", message: str = "evicted") -> None:
        """What the eviction API and the taint controllers do: a condition, then the deletion."""
        condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message, "lastTransitionTime": now()}
        self.set_status(pod, {"conditions": [condition]})
        self.api.delete(pod_path(pod))

    def remove(self, pod: Object) -> None:
        """Removes a pod whose deletion was requested."""
        self.api.delete(pod_path(pod), {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}})

    def set_status(self, pod: Object, status: Object) -> None:
        """Patches the status of the pod. Does nothing if the pod is gone or replaced."""
        try:
            self.api.patch(f"{pod_path(pod)}/status", {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status})
        except ApiError as error:
            if error.status not in (404, 409):
                raise


class Nodes:
    """Kubelets that run each pod as soon as it exists, and remove it `grace` seconds after the request to delete it. `seen` has the last
    state of every pod, by uid. `ends` returns the exit code with which a running pod ends, or None if it does not end by itself."""

    def __init__(self, api: Api, namespace: str, *, grace: float = 0.0) -> None:
        self._kubelet = Kubelet(api)
        self._follower = Follower(api, PODS.format(namespace), listed=self._see_all, changed=self._see)
        self.grace = grace
        self.runs: Callable[[Object], bool] = lambda pod: True
        self.ends: Callable[[Object], int | None] = lambda pod: None
        self.seen: dict[str, Object] = {}
        self._existing: set[str] = set()
        self.history: list[tuple[str, Object]] = []

    def _see_all(self, pods: list[Object]) -> None:
        """What a list shows, first of all that pods are gone: a watch that broke did not show that."""
        gone = self._existing - {pod["metadata"]["uid"] for pod in pods}
        for uid in gone:
            self._see("DELETED", self.seen[uid])
        for pod in pods:
            self._see("ADDED", pod)

    def _see(self, kind: str, pod: Object) -> None:
        if kind not in ("ADDED", "MODIFIED", "DELETED"):
            return
        self.seen[pod["metadata"]["uid"]] = pod
        self.history.append((kind, pod))
        phase = pod["status"].get("phase")
        if kind == "DELETED":
            self._existing.discard(pod["metadata"]["uid"])
            return
        self._existing.add(pod["metadata"]["uid"])
        if "deletionTimestamp" in pod["metadata"]:
            self._after(self.grace, self._kubelet.remove, pod)
        elif phase == "Pending" and self.runs(pod):
            self._kubelet.run(pod)
        elif phase == "Running" and (code := self.ends(pod)) is not None:
            self._kubelet.end(pod, code)

    def _after(self, seconds: float, do: Callable[[Object], None], pod: Object) -> None:
        if seconds <= 0:
            do(pod)
            return
        timer = threading.Timer(seconds, lambda: self._quietly(do, pod))
        timer.daemon = True
        timer.start()

    @staticmethod
    def _quietly(do: Callable[[Object], None], pod: Object) -> None:
        with suppress(ApiError, OSError):
            do(pod)

    @contextmanager
    def working(self) -> Iterator[Nodes]:
        with self._follower.working():
            yield self


def now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
