"""Jobs in a cluster, and the namespaces in which they run."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_cluster import Cluster, ClusterError, CommandFailedError, installation
from muster.api.status import members_in
from tests.chaos.matrix import jobs
from tests.support.training_run import RunningJob, read_events
from tests.support.waiting import Result, wait_until

Manifest = dict[str, Any]
CLAIM = "checkpoints"
STEPS = 345  # of 15 epochs of digits in batches of 64
EVERY = 20
EVENTS = {"mountPath": "/run/muster", "name": "checkpoints", "subPathExpr": "events/$(MUSTER_POD_NAME)/$(MUSTER_POD_UID)"}
"""Keeps the events of each replica on the claim: they outlive its pod."""
APART = {
    "podAntiAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 100,
                "podAffinityTerm": {
                    "topologyKey": "kubernetes.io/hostname",
                    "labelSelector": {"matchExpressions": [{"key": "muster.dev/job-name", "operator": "Exists"}]},
                },
            }
        ]
    }
}


def digits(name: str, strategy: str = "DDP", *, delay: float = 0.05, **spec: Any) -> Manifest:
    """The bundled digits on two workers. It takes about 30 s, with a commit every 20 steps. `spec` overrides these fields."""
    trainer = {"task": "digits", "config": {"epochs": 15, "seed": 0, "deterministic": True, "stepDelaySeconds": delay}}
    storage = {"persistentVolumeClaim": {"claimName": CLAIM}}
    return job(
        name,
        strategy=strategy,
        **{
            "trainer": trainer,
            "batch": {"globalSize": 64},
            "checkpoint": {"everySteps": EVERY, "storage": storage, "gracePeriodSeconds": 10},
            **spec,
        },
    )


def of_matrix(name: str, *, delay: float = 0.05, **spec: Any) -> Manifest:
    """The digits job of that name in the matrix of faults."""
    return digits("digits", delay=delay, **{"roles": {"worker": {}}, **jobs()[name], **spec})


def apart(manifest: Manifest) -> Manifest:
    """The job with its pods on different nodes if possible."""
    for role in manifest["spec"]["roles"].values():
        role["template"]["spec"]["affinity"] = APART
    return manifest


def job(name: str, **spec: Any) -> Manifest:
    roles = spec.pop("roles", {"worker": {"replicas": 2}})
    if "checkpoint" in spec:
        template = {"spec": {"containers": [{"name": "trainer", "volumeMounts": [EVENTS]}]}}
        roles = {name: {"template": template, **role} for name, role in roles.items()}
    return {
        "apiVersion": "muster.dev/v1beta1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {**spec, "roles": roles},
    }


def trains(status: Manifest, workers: int) -> bool:
    """Whether a world of so many workers has done a step."""
    world = status.get("world", {})
    return len(members_in(world)) == workers and "firstStepTime" in world


def world_is_ready(status: Manifest, *, attempt: int) -> bool:
    """Whether all replicas of the world of this attempt run."""
    return status.get("attempt") == attempt and "readyTime" in status.get("world", {})


@dataclass(frozen=True)
class Ground:
    """A namespace for training, with a claim that all nodes share. `folder` is the folder of the claim on this machine."""

    cluster: Cluster
    namespace: str
    folder: Path

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        return self.cluster.kubectl("--namespace", self.namespace, *arguments, stdin=stdin, timeout=timeout)

    def items(self, kinds: str, selector: str) -> list[Manifest]:
        objects: list[Manifest] = self.cluster.get(kinds, "--namespace", self.namespace, "--selector", selector)["items"]
        return objects

    def leave(self) -> None:
        """Requests the removal of the namespace without waiting for it. `remove` waits and removes the rest."""
        self.cluster.kubectl("delete", "namespace", self.namespace, "--ignore-not-found", "--wait=false")

    def remove(self) -> None:
        """Removes the namespace, the claim, its volume and their files."""
        self.cluster.kubectl("delete", "namespace", self.namespace, "--ignore-not-found", "--timeout=280s", timeout=300)
        self.cluster.kubectl("delete", "--ignore-not-found", f"persistentvolume/{self.namespace}-{CLAIM}")
        shutil.rmtree(self.folder.parent, ignore_errors=True)

    def apply(self, manifest: Manifest) -> "ClusterJob":
        self.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
        return ClusterJob(self, manifest["metadata"]["name"])


def make_ground(cluster: Cluster, namespace: str) -> Ground:
    """A new namespace with restricted pod security. An existing one of that name is removed first."""
    ground = Ground(cluster, namespace, cluster.places.shared / namespace / CLAIM)
    ground.remove()
    installation.make_namespace(cluster, namespace)
    cluster.make_shared_claim(CLAIM, namespace)
    return ground


@dataclass(frozen=True)
class ClusterJob(RunningJob):
    """A TrainingJob in the cluster. Its steps and commits come from the events of its replicas."""

    ground: Ground
    name: str
    deadline = 300.0

    def read(self) -> Manifest:
        return self.ground.cluster.get("trainingjob", self.name, "--namespace", self.ground.namespace)

    @property
    def spec(self) -> Manifest:
        spec: Manifest = self.read()["spec"]
        return spec

    @property
    def status(self) -> Manifest:
        status: Manifest = self.read().get("status", {})
        return status

    def pods(self) -> list[Manifest]:
        return self.ground.items("pods", f"muster.dev/job-name={self.name}")

    @property
    def members(self) -> list[str]:
        """The replicas of the world in the order of their ranks, with the suffixes of their pods, such as worker-1-3."""
        keys = ("role", "index", "suffix")
        return ["-".join(str(member[key]) for key in keys if key in member) for member in members_in(self.status["world"])]

    def pod(self, replica: str) -> Manifest:
        """The pod of a replica, such as worker-1 or worker-1-3. Raises ClusterError if there is none."""
        pods = [pod for pod in self.pods() if pod["metadata"]["name"] == f"{self.name}-{replica}"]
        if not pods:
            raise ClusterError(f"{self.name} has no pod {replica}\n{self.story()}")
        return pods[0]

    def events(self, kind: str) -> list[Manifest]:
        return read_events(self.ground.folder.glob(f"events/{self.name}-*/*/events.jsonl"), kind)

    def wait_for_end(self, timeout: float | None = None) -> str:
        self.wait_for_phase("Succeeded", "Failed", timeout=timeout)
        return str(self.status["phase"])

    def _poll(self, condition: Callable[[], Result | None], what: str, seconds: float) -> Result:
        def look() -> Result | None:
            try:
                return condition()
            except CommandFailedError:  # an API server that is away, which some tests want
                return None

        return wait_until(look, f"{self.name}: {what}", seconds, pause=0.5)

    def story(self) -> str:
        parts = []
        for what in (
            ("get", "trainingjob", self.name, "-o", "jsonpath={.status}"),
            ("get", "pods", "-o", "wide"),
            ("get", "events", "--sort-by=.lastTimestamp"),
            ("logs", "--selector", f"muster.dev/job-name={self.name}", "--tail=15", "--prefix"),
        ):
            try:
                parts.append(self.ground.kubectl(*what)[-6000:])
            except CommandFailedError as error:
                parts.append(str(error))
        return "\n".join(parts)
