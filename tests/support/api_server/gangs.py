"""Jobs that are placed as a whole or not at all, on nodes with room for one pod each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.api_server.api import ApiError, Object
from tests.support.api_server.cluster import Cluster
from tests.support.api_server.fake_nodes import add_node, remove_node
from tests.support.api_server.jobs import Jobs, condition, job
from tests.support.api_server.kubelet import Kubelet
from tests.support.api_server.operators import OperatorProcess
from tests.support.waiting import wait_until

NODES = 5
CPUS = 2
ROOM = {"requests": {"cpu": str(CPUS)}}
NATIVE, COSCHEDULING = "scheduling.k8s.io/v1beta1", "scheduling.x-k8s.io/v1alpha1"
"""API versions of PodGroups."""


@pytest.fixture
def jobs(cluster: Cluster, operator: OperatorProcess) -> Iterator[Jobs]:
    """Jobs in a namespace of their own, and NODES nodes."""
    namespace = cluster.namespace("gang")
    for number in range(NODES):
        add_node(cluster.admin, f"node-{number}", cpu=CPUS)
    yield Jobs(cluster.admin, namespace)
    cluster.empty(namespace)
    for node in cluster.admin.items("/api/v1/nodes"):
        remove_node(cluster.admin, node["metadata"]["name"])


def gang_job(name: str, workers: int, *, template: Object | None = None, **spec: Any) -> Object:
    worker = {"replicas": workers, "resources": ROOM, **({"template": {"spec": template}} if template else {})}
    return job(name, roles={"worker": worker}, **spec)


def placed(jobs: Jobs, name: str) -> list[Object]:
    """Its pods that have a node."""
    return [pod for pod in jobs.pods(name) if pod["spec"].get("nodeName")]


def running(jobs: Jobs, name: str) -> list[Object]:
    return [pod for pod in jobs.pods(name) if pod["status"].get("phase") == "Running"]


def pod_group_path(jobs: Jobs, name: str, api: str = NATIVE) -> str:
    return f"/apis/{api}/namespaces/{jobs.namespace}/podgroups/{name}"


def pod_group(jobs: Jobs, name: str, api: str = NATIVE) -> Object:
    return jobs.api.get(pod_group_path(jobs, name, api))


def has_no_pod_group(jobs: Jobs, name: str, api: str = NATIVE) -> bool:
    try:
        pod_group(jobs, name, api)
    except ApiError as error:
        return error.status == 404
    return False


def end(jobs: Jobs, name: str) -> None:
    """All its pods end well."""
    for pod in jobs.pods(name):
        Kubelet(jobs.api).end(pod, 0)
    jobs.reaches(name, "Succeeded")


def late_pod_follows_when_others_succeed(jobs: Jobs) -> None:
    """Two pods of the job `elastic` succeed, and the one that had no room gets a node."""
    jobs.submit(gang_job("other", 2))
    jobs.reaches("other", "Running")
    elastic = {"minReplicas": 3, "maxReplicas": 4, "shrinkAfterSeconds": 3600}
    jobs.submit(gang_job("elastic", 4, elastic=elastic, batch={"globalSize": 12}))
    wait_until(lambda: len(running(jobs, "elastic")) == 3 and len(jobs.pods("elastic")) == 4, "its fewest replicas run, and one waits")
    [late] = [pod["metadata"]["name"] for pod in jobs.pods("elastic") if not pod["spec"].get("nodeName")]
    for pod in running(jobs, "elastic")[:2]:
        Kubelet(jobs.api).end(pod, 0)
    wait_until(lambda: late in {pod["metadata"]["name"] for pod in placed(jobs, "elastic")}, "the fourth has a node")


def large_job_waits_for_nodes(jobs: Jobs, **spec: Any) -> None:
    """A job that needs one node more than there are waits, and runs when the node is added."""
    jobs.submit(gang_job("large", NODES + 1, **spec))
    waits(jobs, "large")
    add_node(jobs.api, f"node-{NODES}", cpu=CPUS)
    jobs.reaches("large", "Running")
    assert len(placed(jobs, "large")) == NODES + 1


def evaluator_without_a_node(jobs: Jobs) -> dict[str, Object]:
    """The world of the job `digits` gets all nodes, and its evaluator waits. Returns a pod of each role."""
    roles = {"worker": {"replicas": NODES, "resources": ROOM}, "evaluator": {"replicas": 1, "resources": ROOM}}
    jobs.submit(job("digits", roles=roles, strategy="MultiWorkerMirrored"))
    wait_until(lambda: len(placed(jobs, "digits")) == NODES, "the world has nodes")
    wait_until(lambda: len(jobs.pods("digits")) == NODES + 1, "the evaluator follows")
    return {pod["metadata"]["labels"]["muster.dev/role"]: pod for pod in jobs.pods("digits")}


def pod_groups_are_deleted(jobs: Jobs, api: str = NATIVE) -> None:
    """The PodGroup of a deleted job is deleted with it. A job goes on without its PodGroup."""
    jobs.submit(gang_job("first", 3))
    jobs.reaches("first", "Running")
    jobs.submit(gang_job("second", NODES + 1))
    waits(jobs, "second")
    jobs.delete("second")
    wait_until(lambda: not jobs.pods("second"), "its pods are gone")
    wait_until(lambda: has_no_pod_group(jobs, "second", api), "its PodGroup is gone")
    jobs.api.delete(pod_group_path(jobs, "first", api))
    jobs.api.delete(f"/api/v1/namespaces/{jobs.namespace}/pods/first-worker-1")
    jobs.reaches("first", "Running", attempt=1)
    end(jobs, "first")


def waits(jobs: Jobs, name: str) -> Object:
    """The status once the scheduler has said why it does not place the job. No pod of the job has a node then."""

    def reason() -> bool:
        gang = condition(jobs.status(name), "GangScheduled")
        return gang.get("status") == "False" and "Unschedulable" in gang["message"]

    wait_until(reason, f"{name} says what it waits for")
    assert placed(jobs, name) == []
    return jobs.status(name)
