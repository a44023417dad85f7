"""Jobs in the cluster: what they are, what they did, and what became of them."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.matrix import jobs
from tests.cluster import installation
from tests.cluster.harness import Cluster, CommandFailedError, HarnessError

Manifest = dict[str, Any]
CLAIM = "checkpoints"
STEPS = 345  # of 15 epochs of digits in batches of 64
EVERY = 20
EVENTS = {"mountPath": "/run/muster", "name": "checkpoints", "subPathExpr": "events/$(MUSTER_POD_NAME)/$(MUSTER_POD_UID)"}
"""Keeps the events of each replica on the claim: a pod that is gone is still heard."""
RANKED = ("chief", "worker", "ps")
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
    """The bundled digits on two workers, some 30 s long, a commit every 20 steps; `spec` goes over what is here."""
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
    """The job with its pods on different nodes, as far as there are some."""
    for role in manifest["spec"]["roles"].values():
        role["template"]["spec"]["affinity"] = APART
    return manifest


def job(name: str, **spec: Any) -> Manifest:
    roles = spec.pop("roles", {"worker": {"replicas": 2}})
    if "checkpoint" in spec:
        kept = {"spec": {"containers": [{"name": "trainer", "volumeMounts": [EVENTS]}]}}
        roles = {name: {"template": kept, **role} for name, role in roles.items()}
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {**spec, "roles": roles},
    }


def trains(status: Manifest, workers: int) -> bool:
    """Whether a world of so many workers has done a step."""
    world = status.get("world", {})
    return len(world.get("members", ())) == workers and "firstStepTime" in world


@dataclass(frozen=True)
class Ground:
    """A namespace to train in, with a claim that all nodes share; `folder` is the claim on this machine."""

    cluster: Cluster
    namespace: str
    folder: Path

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        return self.cluster.kubectl("--namespace", self.namespace, *arguments, stdin=stdin, timeout=timeout)

    def items(self, kinds: str, selector: str) -> list[Manifest]:
        found: list[Manifest] = self.cluster.get(kinds, "--namespace", self.namespace, "--selector", selector)["items"]
        return found

    def leave(self) -> None:
        """Has the namespace removed, and waits for nothing: `remove` does, and for the rest."""
        self.cluster.kubectl("delete", "namespace", self.namespace, "--ignore-not-found", "--wait=false")

    def remove(self) -> None:
        """Removes the namespace, the claim and its volume, and what was written."""
        self.cluster.kubectl("delete", "namespace", self.namespace, "--ignore-not-found", "--timeout=280s", timeout=300)
        self.cluster.kubectl("delete", "--ignore-not-found", f"persistentvolume/{self.namespace}-{CLAIM}")
        shutil.rmtree(self.folder.parent, ignore_errors=True)

    def apply(self, manifest: Manifest) -> "Job":
        self.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
        return Job(self, manifest["metadata"]["name"])


def make_ground(cluster: Cluster, namespace: str) -> Ground:
    """A new namespace, with restricted pod security; one of that name is removed first."""
    ground = Ground(cluster, namespace, cluster.places.shared / namespace / CLAIM)
    ground.remove()
    installation.make_namespace(cluster, namespace)
    cluster.make_shared_claim(CLAIM, namespace)
    return ground


@dataclass(frozen=True)
class Job:
    """A TrainingJob, asked through the API; its steps and commits are read from its replicas' events."""

    ground: Ground
    name: str

    def read(self) -> Manifest:
        return self.ground.cluster.get("trainingjob", self.name, "--namespace", self.ground.namespace)

    @property
    def status(self) -> Manifest:
        status: Manifest = self.read().get("status", {})
        return status

    @property
    def attempts(self) -> list[Manifest]:
        attempts: list[Manifest] = self.status.get("attempts", [])
        return attempts

    @property
    def replicas(self) -> list[str]:
        """The names of its replicas, rank 0's first."""
        roles = self.read()["spec"]["roles"]
        return [f"{role}-{index}" for role in RANKED if role in roles for index in range(roles[role].get("replicas", 1))]

    @property
    def synchronous(self) -> bool:
        """Whether its losses are those of an undisturbed run."""
        options = self.read()["spec"].get("options", {})
        return bool(self.status["world"]["synchronous"] or options.get("synchronous"))

    def pods(self) -> list[Manifest]:
        return self.ground.items("pods", f"muster.dev/job-name={self.name}")

    def pod(self, replica: str) -> Manifest:
        """The pod of a replica, such as worker-1; raises HarnessError where there is none."""
        found = [pod for pod in self.pods() if pod["metadata"]["name"] == f"{self.name}-{replica}"]
        if not found:
            raise HarnessError(f"{self.name} has no pod {replica}\n{self.story()}")
        return found[0]

    # waiting

    def wait_until(self, what: str, condition: Callable[[Manifest], bool], *, timeout: float) -> None:
        """Waits for a condition of the status; what does not come is an error that tells the job's story."""

        def holds() -> bool:
            try:
                return condition(self.status)
            except CommandFailedError:  # an API server that is away, which some tests want
                return False

        try:
            self.ground.cluster.wait_until(f"{self.name}: {what}", holds, timeout=timeout)
        except HarnessError as error:
            raise HarnessError(f"{error}\n{self.story()}") from error

    def wait_for_phase(self, *phases: str, timeout: float = 150) -> None:
        self.wait_until(" or ".join(phases), lambda status: status.get("phase") in phases, timeout=timeout)

    def wait_for_end(self, timeout: float = 150) -> str:
        """The final phase."""
        self.wait_for_phase("Succeeded", "Failed", timeout=timeout)
        return str(self.status["phase"])

    def wait_for_step(self, step: int, *, attempt: int = 0, timeout: float = 120) -> None:
        """Until a replica of at least that attempt has done that step."""

        def done() -> bool:
            return any(each["step"] >= step for each in self.events("step") if each["attempt"] >= attempt)

        try:
            self.ground.cluster.wait_until(f"step {step} of {self.name} in attempt {attempt}", done, timeout=timeout)
        except HarnessError as error:
            raise HarnessError(f"{error}\n{self.story()}") from error

    # what the replicas said

    def events(self, kind: str) -> list[Manifest]:
        """Events of that kind of all replicas of all attempts, in the order of their time."""
        found = []
        for file in self.ground.folder.glob(f"events/{self.name}-*/*/events.jsonl"):
            lines = file.read_text().splitlines()
            events = (json.loads(line) for line in lines if line.endswith("}"))
            found += [event for event in events if event["event"] == kind]
        return sorted(found, key=lambda event: float(event["time"]))

    def curve(self) -> dict[int, str]:
        """Loss by step, to the bit. A step that a synchronous job did twice must have lost the same."""
        curve: dict[int, str] = {}
        if not self.synchronous:
            return {event["step"]: event["lossHex"] for event in self.events("step")}
        for event in self.events("step"):
            known = curve.setdefault(event["step"], event["lossHex"])
            assert known == event["lossHex"], f"step {event['step']} lost {event['lossHex']} in attempt {event['attempt']}, {known} before"
        return curve

    def committed(self, attempt: int) -> int:
        """The step of the newest commit up to the end of an attempt."""
        return max((event["step"] for event in self.events("commit") if event["attempt"] <= attempt), default=0)

    def resumed(self, attempt: int) -> int:
        """The step that an attempt went on from."""
        [step] = {event["step"] for event in self.events("resumed") if event["attempt"] == attempt}
        return int(step)

    def story(self) -> str:
        """All that helps to see why something did not happen."""
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
