"""Capacity classes on a real API server, with nodes that have labels and no kubelet."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.support.api_server.api import Object
from tests.support.api_server.cluster import Cluster
from tests.support.api_server.jobs import Jobs, condition, job
from tests.support.api_server.kubelet import Kubelet, now
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("shared_operator")
NODES = "/api/v1/nodes"
LABEL = "karpenter.sh/capacity-type"
SCRIPT = {"script": "train.py", "code": {"configMap": {"name": "code"}}}
"""A program that reports no steps, so that it may move at any time."""


@pytest.fixture
def on_demand(cluster: Cluster) -> Iterator[str]:
    """A node of the class on-demand."""
    name = f"on-demand-{secrets.token_hex(3)}"
    metadata = {"name": name, "labels": {LABEL: "on-demand"}}
    cluster.admin.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    yield name
    cluster.admin.delete(f"{NODES}/{name}")


def mixed(**capacity: object) -> Object:
    return job("digits", trainer=SCRIPT, scheduling={"capacity": {"roles": {"worker": ["spot", "on-demand"]}, **capacity}})


def classes_of(pod: Object) -> str:
    return str(pod["metadata"]["annotations"]["muster.dev/capacity-classes"])


def values(pod: Object) -> list[str]:
    """The values of Karpenter's label that its required terms have."""
    terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return [value for term in terms for each in term["matchExpressions"] if each["key"] == LABEL for value in each.get("values", ())]


def test_a_pod_without_a_spot_node_is_created_again_for_on_demand_nodes_too(jobs: Jobs, kubelet: Kubelet) -> None:
    jobs.submit(mixed(fallbackAfterSeconds=2))
    first, second = jobs.pods_of("digits", 2)
    assert (classes_of(first), values(first)) == ("spot", ["spot"])
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available"}
    for pod in (first, second):
        kubelet.set_status(pod, {"conditions": [{**unschedulable, "lastTransitionTime": now()}]})
    wait_until(lambda: condition(jobs.status("digits"), "CapacityPreferred").get("reason") == "FellBack", "the workers fall back")
    pods = wait_until(lambda: [pod for pod in jobs.pods("digits") if classes_of(pod) == "spot,on-demand"], "pods for both classes")
    assert set(values(pods[0])) >= {"spot", "on-demand"}
    status = jobs.status("digits")
    assert (status["restarts"]["total"], status["capacity"][0]["classes"]) == (0, ["spot", "on-demand"])


def test_a_worker_on_another_class_gets_a_replacement_of_the_preferred_one(
    jobs: Jobs, kubelet: Kubelet, cluster: Cluster, on_demand: str
) -> None:
    jobs.submit(mixed(returnAfterSeconds=1))
    first, second = jobs.pods_of("digits", 2)
    kubelet.run(first)
    kubelet.bind(second, on_demand)
    kubelet.run({**second, "spec": {**second["spec"], "nodeName": on_demand}})
    jobs.reaches("digits", "Running")
    replacement = jobs.pods_of("digits", 3)[-1]
    assert classes_of(replacement) == "spot"
    status = jobs.status("digits")
    assert condition(status, "CapacityPreferred")["reason"] == "Returning"
    assert "1 worker goes back to class spot once it has nodes" in status["message"]
    cluster.admin.patch(f"{NODES}/{on_demand}", {"metadata": {"labels": {LABEL: "spot"}}})
    wait_until(lambda: condition(jobs.status("digits"), "CapacityPreferred")["status"] == "True", "its node is of the class now")
    wait_until(lambda: len(jobs.pods("digits")) == 2, "the replacement is deleted")
    assert jobs.status("digits")["attempt"] == 0


def test_a_class_that_the_installation_lacks_is_refused_with_those_that_it_has(jobs: Jobs) -> None:
    jobs.submit(job("digits", scheduling={"capacity": {"classes": ["spot", "lease"]}}))
    valid = wait_until(lambda: condition(jobs.status("digits"), "Valid"), "the condition is set")
    assert valid["status"] == "False"
    assert 'spec.scheduling.capacity.classes[1]: must be one of on-demand, reserved, spot, not "lease"' in valid["message"]
