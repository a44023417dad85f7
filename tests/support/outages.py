"""A pod or a node of a job in a cluster is taken away, and the time until the job does its next new step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from local_cluster import Cluster
from local_cluster.installation import NAMESPACE, Installation
from tests.support.cluster_jobs import ClusterJob, Manifest

DEADLINE_SECONDS = 180.0
MANIFESTS = "/etc/kubernetes/manifests"


@dataclass(frozen=True)
class Outage:
    """How long a job did no new step."""

    seconds: float
    """From the request that took something away to the first new step of the next attempt. Steps of the attempt before do not count, even
    if it did them after the request."""
    idle_seconds: float
    """From the last step of the attempt before to that step."""
    phases: dict[str, float]
    """What the job's status says of it."""

    def __str__(self) -> str:
        phases = ", ".join(f"{name.removesuffix('Seconds')} {seconds:.2f}" for name, seconds in self.phases.items())
        return f"{self.seconds:.2f} s to the next new step, {self.idle_seconds:.2f} s without a step ({phases})"


def outage(job: ClusterJob, strike: Callable[[], None], *, seconds: float = DEADLINE_SECONDS) -> Outage:
    """Strikes a job that trains, and waits for the first new step of a later attempt."""
    attempt = job.status["attempt"]
    begun = time.time()
    strike()

    def new_steps() -> list[Manifest]:
        """The last step of the attempt that was struck, and the first one after it."""
        before = [event for event in job.events("step") if event["attempt"] <= attempt]
        last = max(before, key=lambda event: event["step"])
        after = [event for event in job.events("step") if event["attempt"] > attempt and event["step"] > last["step"]]
        return [last, min(after, key=lambda event: event["step"])] if after else []

    last, first = job.wait_for(lambda: new_steps() or None, "a new step of another attempt", seconds)
    job.wait_until("the phases are known", lambda status: "firstStepSeconds" in _phases(status), timeout=seconds)
    return Outage(first["time"] - begun, first["time"] - last["time"], _phases(job.status))


def delete_pod(job: ClusterJob, replica: str) -> None:
    job.ground.kubectl("delete", "pod", f"{job.name}-{replica}", "--wait=false")


def lone_replica(job: ClusterJob) -> str:
    """The replica of the world whose node has no operator and no other replica of the world."""
    safe = operator_nodes(job.ground.cluster)
    names = job.members
    away = [name for name in names if job.pod(name)["spec"]["nodeName"] not in safe]
    assert len(away) == 1, f"not one of {names} is alone on a node without the operator: {away}\n{job.story()}"
    return away[0]


def replica_away(job: ClusterJob) -> str:
    """A replica of the world whose node has no operator. Others may be on that node."""
    safe = operator_nodes(job.ground.cluster)
    return next(name for name in job.members if job.pod(name)["spec"]["nodeName"] not in safe)


def operator_pods(cluster: Cluster) -> list[Manifest]:
    """The pods of the operator that run."""
    pods: list[Manifest] = cluster.get("pods", "--namespace", NAMESPACE, "--selector", "app.kubernetes.io/component=operator")["items"]
    return [pod for pod in pods if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]]


def operator_nodes(cluster: Cluster) -> set[str]:
    return {pod["spec"]["nodeName"] for pod in operator_pods(cluster)}


def kill_operator(muster: Installation) -> None:
    """SIGKILL, and a new pod at once: the kubelet would wait longer and longer before it restarts the same one."""
    pod = muster.operator_pod()["metadata"]["name"]
    muster.cluster.kill_container(NAMESPACE, pod, "operator")
    muster.cluster.kubectl("delete", "pod", "--namespace", NAMESPACE, pod, "--force", "--grace-period=0")


def wait_for_operator(muster: Installation) -> None:
    def runs() -> bool:
        try:
            pod = muster.operator_pod()
        except LookupError:
            return False
        return any(each["state"].get("running") for each in pod["status"].get("containerStatuses", ()))

    muster.cluster.wait_until("an operator runs", runs, timeout=180)


@contextmanager
def without_api_server(cluster: Cluster) -> Iterator[None]:
    """The API server is away. It answers again at the end."""
    control_plane = cluster.nodes()[0].name
    cluster.execute(control_plane, "mv", f"{MANIFESTS}/kube-apiserver.yaml", "/etc/kubernetes/")
    try:
        cluster.wait_until("the API server is away", lambda: not answers(cluster), timeout=180)
        yield
    finally:
        cluster.execute(control_plane, "mv", "/etc/kubernetes/kube-apiserver.yaml", f"{MANIFESTS}/")
        cluster.wait_until("the API server is back", lambda: answers(cluster), timeout=240)


def answers(cluster: Cluster) -> bool:
    """Whether the API server answers."""
    return cluster.try_kubectl("get", "--raw", "/readyz", "--request-timeout=3s")


def with_spare_beside_operator(job: ClusterJob, spare: str) -> None:
    """Moves a spare to the operator's node. Another node then has one worker and nothing else that the job needs."""
    cluster = job.ground.cluster
    nodes = operator_nodes(cluster)
    pod = job.pod(spare)
    if pod["spec"]["nodeName"] in nodes:
        return
    with cordoned(cluster, pod["spec"]["nodeName"]):
        job.ground.kubectl("delete", "pod", pod["metadata"]["name"])
        job.wait_until("the spare is ready again", lambda status: status.get("readySpares") == 1 and _runs_in(job, spare, nodes))


@contextmanager
def cordoned(cluster: Cluster, node: str) -> Iterator[None]:
    """No new pod goes to the node."""
    cluster.kubectl("cordon", node)
    try:
        yield
    finally:
        cluster.kubectl("uncordon", node)


@dataclass(frozen=True)
class NodeFault:
    """How a node is lost, and how it comes back."""

    lose: Callable[[Cluster, str], None]
    bring_back: Callable[[Cluster, str], None]


NODE_FAULTS = {
    "killed": NodeFault(Cluster.kill_node, Cluster.start_node),
    "frozen": NodeFault(Cluster.pause_node, Cluster.unpause_node),
    "cut-off": NodeFault(Cluster.disconnect_node, Cluster.reconnect_node),
}
"""The connections of a killed node are closed. The others stay open, as after a power cut."""


@contextmanager
def node_of(job: ClusterJob, replica: str, fault: NodeFault) -> Iterator[Callable[[], None]]:
    """The node of a replica is lost when what is given is called. It is back at the end."""
    cluster, node = job.ground.cluster, job.pod(replica)["spec"]["nodeName"]
    is_lost = False

    def lose() -> None:
        nonlocal is_lost
        is_lost = True
        fault.lose(cluster, node)

    try:
        yield lose
    finally:
        if is_lost:
            fault.bring_back(cluster, node)
            cluster.wait_until(f"{node} is ready", lambda: is_ready(cluster, node), timeout=240)


def is_ready(cluster: Cluster, node: str) -> bool:
    conditions = cluster.get("node", node)["status"]["conditions"]
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _runs_in(job: ClusterJob, replica: str, nodes: set[str]) -> bool:
    pods = [pod for pod in job.pods() if pod["metadata"]["name"] == f"{job.name}-{replica}"]
    return any(pod["spec"].get("nodeName") in nodes for pod in pods)


def _phases(status: Manifest) -> dict[str, float]:
    phases: dict[str, float] = status["attempts"][-1].get("phases", {})
    return phases
