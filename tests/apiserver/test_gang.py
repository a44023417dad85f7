"""Gang scheduling on a real API server: the PodGroup of a job, its members, and what a job says that waits.

No scheduler runs. The PodGroups are those of coscheduling and Volcano. tests/gang has those of Kubernetes, with its scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.api_server.api import ApiError, Object
from tests.support.api_server.cluster import ACCOUNT, RELEASE_NAMESPACE, Cluster
from tests.support.api_server.jobs import Jobs, condition, job
from tests.support.api_server.kubelet import Kubelet, now
from tests.support.api_server.operators import OperatorProcess, operating
from tests.support.waiting import wait_until

COSCHEDULING, VOLCANO = "scheduling.x-k8s.io", "scheduling.volcano.sh"
VERSIONS = {COSCHEDULING: "v1alpha1", VOLCANO: "v1beta1"}
FIELDS: dict[str, Object] = {
    COSCHEDULING: {"minMember": {"type": "integer"}, "scheduleTimeoutSeconds": {"type": "integer"}},
    VOLCANO: {"minMember": {"type": "integer"}, "queue": {"type": "string", "default": "default"}, "priorityClassName": {"type": "string"}},
}
"""From the public CRDs, as far as Muster uses them. Volcano's gives each PodGroup a queue."""


def definition(group: str) -> Object:
    spec = {"type": "object", "properties": FIELDS[group]}
    schema = {"type": "object", "properties": {"spec": spec}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"podgroups.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "podgroups", "singular": "podgroup", "kind": "PodGroup", "listKind": "PodGroupList"},
            "versions": [{"name": VERSIONS[group], "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }


@contextmanager
def rights(cluster: Cluster) -> Iterator[None]:
    """The operator may use the PodGroups of both schedulers. The chart's default does not allow that."""
    rbac, name = "/apis/rbac.authorization.k8s.io/v1", "pod-groups-of-tests"
    rules = [{"apiGroups": [COSCHEDULING, VOLCANO], "resources": ["podgroups"], "verbs": ["get", "create", "update", "delete"]}]
    cluster.admin.create(f"{rbac}/clusterroles", {"metadata": {"name": name}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": RELEASE_NAMESPACE}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    cluster.admin.create(f"{rbac}/clusterrolebindings", {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]})
    try:
        yield
    finally:
        cluster.admin.delete(f"{rbac}/clusterrolebindings/{name}")
        cluster.admin.delete(f"{rbac}/clusterroles/{name}")


@contextmanager
def defined(cluster: Cluster, group: str) -> Iterator[None]:
    """The API server serves the PodGroups of this API group."""
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    cluster.admin.create(definitions, definition(group))
    try:
        wait_until(lambda: _serves(cluster, group), f"{group} is served")
        yield
    finally:
        cluster.admin.delete(f"{definitions}/podgroups.{group}")
        wait_until(lambda: not _serves(cluster, group), f"{group} is not served any more")


@pytest.fixture(scope="module")
def pod_groups(cluster: Cluster) -> Iterator[None]:
    with rights(cluster), defined(cluster, COSCHEDULING), defined(cluster, VOLCANO):
        yield


def _serves(cluster: Cluster, group: str) -> bool:
    try:
        cluster.admin.get(f"/apis/{group}/{VERSIONS[group]}/podgroups")
        return any(each["name"] == group for each in cluster.admin.get("/apis")["groups"])
    except ApiError:
        return False


@pytest.fixture(scope="module", params=[COSCHEDULING, VOLCANO])
def group(request: pytest.FixtureRequest, cluster: Cluster, pod_groups: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An operator that uses the PodGroup of this API group."""
    settings: dict[str, Any] = {"gangScheduling": {"apiGroups": [request.param]}}
    with operating(cluster, tmp_path_factory.mktemp("operator"), **settings):
        yield request.param


def queue(name: str, group: str) -> dict[str, str]:
    """The field `queue`, which only Volcano reads."""
    return {"queue": name} if group == VOLCANO else {}


def pod_group(jobs: Jobs, group: str, name: str = "digits") -> Object:
    return jobs.api.get(f"/apis/{group}/{VERSIONS[group]}/namespaces/{jobs.namespace}/podgroups/{name}")


def test_a_job_that_requires_a_gang_scheduler_waits_without_one(jobs: Jobs, cluster: Cluster, operator: OperatorProcess) -> None:
    jobs.submit(job("digits", scheduling={"gang": "Required"}))
    wait_until(lambda: condition(jobs.status("digits"), "Valid").get("reason") == "GangUnavailable", "the condition says why")
    status = jobs.status("digits")
    assert (status["phase"], condition(status, "Valid")["status"]) == ("Pending", "False")
    assert jobs.pods("digits") == []
    jobs.patch("digits", {"spec": {"scheduling": {"gang": "Auto"}}})
    wait_until(lambda: len(jobs.pods("digits")) == 2, "it starts without a gang")
    assert jobs.status("digits")["gangScheduler"] == ""
    assert not [
        each for each in cluster.requests() if "podgroups" in each["requestURI"] and "/apis/scheduling.k8s.io/" in each["requestURI"]
    ]


def test_a_job_that_requires_a_gang_starts_once_the_cluster_serves_pod_groups(jobs: Jobs, cluster: Cluster, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"gangScheduling": {"apiGroups": [VOLCANO]}, "resyncSeconds": 1}
    with rights(cluster), operating(cluster, tmp_path / "operator", **settings):
        jobs.submit(job("digits", scheduling={"gang": "Required"}))
        wait_until(lambda: condition(jobs.status("digits"), "Valid").get("reason") == "GangUnavailable", "the condition says why")
        assert jobs.pods("digits") == []
        with defined(cluster, VOLCANO):
            wait_until(lambda: len(jobs.pods("digits")) == 2, "both pods exist")
            assert pod_group(jobs, VOLCANO)["spec"]["minMember"] == 2
            status = jobs.status("digits")
            assert (status["gangScheduler"], condition(status, "Valid")["status"]) == (VOLCANO, "True")


def test_a_job_with_a_queue_waits_in_a_cluster_without_kueue(jobs: Jobs, operator: OperatorProcess) -> None:
    jobs.submit(job("digits", scheduling={"queue": "research"}))
    wait_until(lambda: condition(jobs.status("digits"), "Valid").get("reason") == "QueueUnavailable", "the condition says why")
    assert jobs.pods("digits") == []
    jobs.patch("digits", {"spec": {"scheduling": {"queue": None}}})
    wait_until(lambda: len(jobs.pods("digits")) == 2, "it starts without a queue")


def test_a_job_has_a_pod_group_and_shows_the_reason_why_its_gang_waits(group: str, jobs: Jobs, kubelet: Kubelet) -> None:
    submitted = jobs.submit(job("digits", workers=2, scheduling=queue("research", group)))
    wait_until(lambda: len(jobs.pods("digits")) == 2, "both pods exist")
    made = pod_group(jobs, group)
    assert made["spec"] == {"minMember": 2, **queue("research", group)}
    assert [owner["uid"] for owner in made["metadata"]["ownerReferences"]] == [submitted["metadata"]["uid"]]
    unscheduled = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes are available",
        "lastTransitionTime": now(),
    }
    for pod in jobs.pods("digits"):
        label = pod["metadata"]["labels"].get("scheduling.x-k8s.io/pod-group")
        annotation = pod["metadata"].get("annotations", {}).get("scheduling.k8s.io/group-name")
        assert (label, annotation) == (("digits", None) if group == COSCHEDULING else (None, "digits"))
        assert pod["spec"]["schedulerName"] == ("scheduler-plugins-scheduler" if group == COSCHEDULING else "volcano")
        kubelet.set_status(pod, {"conditions": [unscheduled]})
    expected = f"waiting for nodes for 2 pods at once (PodGroup digits of {group}): Unschedulable: 0/3 nodes are available"
    wait_until(lambda: jobs.status("digits").get("message") == expected, "the status says what the job waits for")
    status = jobs.status("digits")
    assert (status["phase"], status["gangScheduler"]) == ("Pending", group)
    assert (condition(status, "GangScheduled")["status"], condition(status, "GangScheduled")["reason"]) == ("False", "WaitingForGang")
    for pod in jobs.pods("digits"):
        kubelet.run(pod)
    assert condition(jobs.reaches("digits", "Running"), "GangScheduled")["status"] == "True"


def test_the_pod_group_follows_a_job_that_is_changed_while_it_is_suspended(group: str, jobs: Jobs) -> None:
    jobs.submit(job("digits", workers=2, scheduling=queue("research", group)))
    wait_until(lambda: len(jobs.pods("digits")) == 2, "both pods exist")
    jobs.patch("digits", {"spec": {"suspend": True}})
    jobs.reaches("digits", "Suspended")
    jobs.patch("digits", {"spec": {"suspend": False, "roles": {"worker": {"replicas": 3}}, "scheduling": queue("urgent", group)}})
    wait_until(lambda: len(jobs.pods("digits")) == 3, "three pods exist")
    assert pod_group(jobs, group)["spec"] == {"minMember": 3, **queue("urgent", group)}


def test_a_job_with_gang_never_gets_no_pod_group(group: str, jobs: Jobs) -> None:
    jobs.submit(job("digits", scheduling={"gang": "Never"}))
    wait_until(lambda: len(jobs.pods("digits")) == 2, "both pods exist")
    with pytest.raises(ApiError) as refusal:
        pod_group(jobs, group)
    assert refusal.value.status == 404
    assert {pod["spec"]["schedulerName"] for pod in jobs.pods("digits")} == {"default-scheduler"}


def test_a_foreign_pod_group_is_reported_and_not_changed(group: str, jobs: Jobs) -> None:
    folder = f"/apis/{group}/{VERSIONS[group]}/namespaces/{jobs.namespace}/podgroups"
    foreign = {"apiVersion": f"{group}/{VERSIONS[group]}", "kind": "PodGroup", "metadata": {"name": "digits"}, "spec": {"minMember": 7}}
    jobs.api.create(folder, foreign)
    jobs.submit(job("digits"))
    refused = "a PodGroup digits exists and does not belong to this job: remove it, or give the job another name"
    wait_until(lambda: refused in jobs.status("digits").get("message", ""), "the status names the PodGroup")
    assert pod_group(jobs, group)["spec"]["minMember"] == 7
    assert jobs.pods("digits") == []
    jobs.api.delete(f"{folder}/digits")
