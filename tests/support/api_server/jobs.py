"""Jobs of tests, and their observation."""

from __future__ import annotations

from typing import Any

from tests.support.api_server.api import JOBS, Api, Object
from tests.support.api_server.kubelet import PODS
from tests.support.waiting import DEADLINE, wait_until


def job(name: str, workers: int = 2, **spec: Any) -> Object:
    """A small job of the bundled trainer."""
    return {
        "apiVersion": "muster.dev/v1beta1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {"strategy": "DDP", "trainer": {"task": "digits"}, "roles": {"worker": {"replicas": workers}}, **spec},
    }


class Jobs:
    """The jobs of one namespace, in one version of the API."""

    def __init__(self, api: Api, namespace: str, *, version: str = "v1beta1") -> None:
        self.api, self.namespace = api, namespace
        self._folder = JOBS.replace("v1beta1", version).format(namespace)

    def submit(self, manifest: Object) -> Object:
        return self.api.create(self._folder, manifest)

    def get(self, name: str) -> Object:
        return self.api.get(f"{self._folder}/{name}")

    def status(self, name: str) -> Object:
        return dict(self.get(name).get("status") or {})

    def delete(self, name: str) -> None:
        self.api.delete(f"{self._folder}/{name}")

    def patch(self, name: str, body: Object) -> Object:
        return self.api.patch(f"{self._folder}/{name}", body)

    def scale(self, name: str, replicas: int) -> None:
        """The patch that `kubectl scale` sends."""
        self.api.patch(f"{self.path(name)}/scale", {"spec": {"replicas": replicas}})

    def replace_status(self, name: str, status: Object) -> None:
        self.api.replace_status(self.path(name), lambda _: status)

    def printed(self, name: str) -> dict[str, Any]:
        """The columns of `kubectl get`."""
        table = self.api.request("GET", self.path(name), accept="application/json;as=Table;g=meta.k8s.io;v=v1")
        columns = [each["name"] for each in table["columnDefinitions"]]
        return dict(zip(columns, table["rows"][0]["cells"], strict=True))

    def path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def pods(self, name: str) -> list[Object]:
        return self.api.items(PODS.format(self.namespace), labelSelector=f"muster.dev/job-name={name}")

    def pods_of(self, name: str, count: int, *, attempt: int = 0) -> list[Object]:
        """The pods of an attempt by name, once there are as many as this."""

        def look() -> list[Object] | None:
            pods = [pod for pod in self.pods(name) if attempt_of(pod) == attempt]
            return pods if len(pods) == count else None

        return sorted(wait_until(look, f"{count} pods of attempt {attempt}") or [], key=lambda pod: str(pod["metadata"]["name"]))

    def reaches(self, name: str, phase: str, *, attempt: int | None = None, seconds: float = DEADLINE) -> Object:
        """The status once the job has this phase, in this attempt if one is given."""

        def look() -> Object | None:
            status = self.status(name)
            return status if status.get("phase") == phase and attempt in (None, status.get("attempt")) else None

        return wait_until(look, f"{name} is {phase}" + ("" if attempt is None else f" in attempt {attempt}"), seconds=seconds)

    def events(self, name: str) -> list[Object]:
        folder = f"/api/v1/namespaces/{self.namespace}/events"
        return [each for each in self.api.items(folder) if each["involvedObject"]["name"] == name]


def attempt_of(pod: Object) -> int:
    return int(pod["metadata"]["labels"]["muster.dev/attempt"])


def condition(status: Object, kind: str) -> Object:
    return next((each for each in status.get("conditions", ()) if each["type"] == kind), {})
