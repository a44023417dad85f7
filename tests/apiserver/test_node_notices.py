"""Nodes of a real API server that announce that they go."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.support.api_server.api import Object
from tests.support.api_server.cluster import Cluster
from tests.support.api_server.jobs import Jobs, condition, job
from tests.support.api_server.kubelet import Kubelet
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("shared_operator")
NODES = "/api/v1/nodes"
RETIRE = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}
IMPENDING = {"key": "cloud.google.com/impending-node-termination", "effect": "NoSchedule"}
RULES, WISHES = "requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution"


@pytest.fixture
def node(cluster: Cluster) -> Iterator[str]:
    """A node without a kubelet."""
    name = f"spot-{secrets.token_hex(3)}"
    cluster.admin.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    yield name
    cluster.admin.delete(f"{NODES}/{name}")


def taint(cluster: Cluster, node: str, *taints: Object) -> None:
    cluster.admin.patch(f"{NODES}/{node}", {"spec": {"taints": list(taints)}})


def running_on(node: str, jobs: Jobs, kubelet: Kubelet, **spec: object) -> None:
    """A job of two workers, the second of which runs on this node. Its program reports no steps, so that it may move at any time."""
    jobs.submit(job("digits", trainer={"script": "train.py", "code": {"configMap": {"name": "code"}}}, **spec))
    first, second = jobs.pods_of("digits", 2)
    kubelet.run(first)
    kubelet.bind(second, node)
    kubelet.run({**second, "spec": {**second["spec"], "nodeName": node}})
    jobs.reaches("digits", "Running")


def excluded(pod: Object) -> list[str]:
    """The nodes to which this pod may not go."""
    terms = pod["spec"]["affinity"]["nodeAffinity"][RULES]["nodeSelectorTerms"]
    return [name for term in terms for field in term["matchFields"] for name in field["values"]]


def is_apart_from(pod: Object, other: Object, node: str) -> bool:
    """Whether this pod may not go to the node of the other, and is not bound to its name, which Karpenter would not accept."""
    affinity, labels = pod["spec"]["affinity"], other["metadata"]["labels"]
    [rule], [wish] = affinity["podAntiAffinity"][RULES], affinity["nodeAffinity"][WISHES]
    fields = wish["preference"]["matchFields"]
    wanted = rule["labelSelector"]["matchLabels"]
    same = {f"muster.dev/{name}" for name in ("job-uid", "role", "index", "attempt")} == set(wanted) and wanted.items() <= labels.items()
    return same and RULES not in affinity["nodeAffinity"] and [each["values"] for each in fields] == [[node]]


@pytest.mark.parametrize("retire", [RETIRE, IMPENDING])
def test_a_taint_brings_a_replacement_that_avoids_the_node_and_goes_with_the_taint(
    retire: Object, jobs: Jobs, kubelet: Kubelet, cluster: Cluster, node: str
) -> None:
    running_on(node, jobs, kubelet)
    taint(cluster, node, retire)
    _, leaves, replacement = jobs.pods_of("digits", 3)
    assert is_apart_from(replacement, leaves, node) if retire is RETIRE else excluded(replacement) == [node]
    status = jobs.status("digits")
    [notice] = status["nodeNotices"]
    assert (notice["node"], notice["signal"], notice["meaning"]) == (node, f"taint {retire['key']}", "Goes")
    assert condition(status, "NodesStay")["reason"] == "NodeGoes"
    assert f"Node {node} of worker-1 goes" in status["message"]
    taint(cluster, node)
    wait_until(lambda: condition(jobs.status("digits"), "NodesStay")["status"] == "True", "the notice is withdrawn")
    wait_until(lambda: len(jobs.pods("digits")) == 2, "the replacement is deleted")
    assert jobs.status("digits")["attempt"] == 0


def test_a_cordon_is_in_the_status_and_brings_no_replacement(jobs: Jobs, kubelet: Kubelet, cluster: Cluster, node: str) -> None:
    running_on(node, jobs, kubelet)
    cluster.admin.patch(f"{NODES}/{node}", {"spec": {"unschedulable": True}})
    wait_until(lambda: jobs.status("digits").get("nodeNotices"), "the cordon is in the status")
    assert condition(jobs.status("digits"), "NodesStay")["reason"] == "NodeTakesNoPods"
    assert len(jobs.pods("digits")) == 2


def test_a_job_that_ignores_notices_does_nothing(jobs: Jobs, kubelet: Kubelet, cluster: Cluster, node: str) -> None:
    running_on(node, jobs, kubelet, recovery={"nodeNotices": "Ignore"})
    taint(cluster, node, RETIRE)
    jobs.submit(job("other", workers=1))  # once this one has its pod, the operator has seen the taint for longer than it needs
    jobs.pods_of("other", 1)
    assert not jobs.status("digits").get("nodeNotices")
    assert len(jobs.pods("digits")) == 2
