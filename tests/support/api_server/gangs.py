"""Jobs that are placed as a whole or not at all, on nodes with room for one pod each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.api_server.api import ApiError, Object
from tests.support.api_server.cluster import Cluster
from tests.support.api_server.fake_nodes import add_node, remove_node
from tests.support.api_server.jobs import Jobs, condition, job
from tests.support.api_server.kubelet import Kubelet
from tests.support.waiting import wait_until

NODES = 5
CPUS = 2
ROOM = {"requests": {"cpu": str(CPUS)}}
NATIVE, COSCHEDULING = "scheduling.k8s.io/v1beta1", "scheduling.x-k8s.io/v1alpha1"
"""API versions of PodGroups."""


@contextmanager
def jobs_on_nodes(cluster: Cluster, namespace_prefix: str) -> Iterator[Jobs]:
    """Jobs in a namespace of their own, and NODES nodes."""
    namespace = cluster.namespace(namespace_prefix)
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


def waits(jobs: Jobs, name: str) -> Object:
    """The status once the scheduler has said why it does not place the job. No pod of the job has a node then."""

    def reason() -> bool:
        gang = condition(jobs.status(name), "GangScheduled")
        return gang.get("status") == "False" and "Unschedulable" in gang["message"]

    wait_until(reason, f"{name} says what it waits for")
    assert placed(jobs, name) == []
    return jobs.status(name)
