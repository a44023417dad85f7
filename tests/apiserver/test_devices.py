"""Devices that fail, and devices from claims, with this test in the place of the kubelet and of the device taint controller."""

from __future__ import annotations

import pytest

from tests.support.api_server.api import ApiError, Object
from tests.support.api_server.jobs import Jobs, attempt_of, job
from tests.support.api_server.kubelet import Kubelet, Nodes
from tests.support.waiting import wait_until

WISHES = "preferredDuringSchedulingIgnoredDuringExecution"
AVOIDING = {"weight": 100, "preference": {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["node-1"]}]}}


pytestmark = pytest.mark.usefixtures("shared_operator")


@pytest.fixture
def running(jobs: Jobs, kubelet: Kubelet, nodes: Nodes) -> list[Object]:
    """The pods of a job of two workers with a GPU each, and a device from a claim, on node-0 and node-1."""
    nodes.runs = lambda pod: False
    claims = [{"name": "gpus", "resourceClaimTemplateName": "h100"}]
    worker = {"replicas": 2, "resources": {"limits": {"nvidia.com/gpu": 1}}, "resourceClaims": claims}
    jobs.submit(job("digits", roles={"worker": worker}))
    pods = jobs.pods_of("digits", 2, attempt=0)
    for number, pod in enumerate(pods):
        kubelet.bind(pod, f"node-{number}")
        kubelet.run(jobs.api.get(f"/api/v1/namespaces/{jobs.namespace}/pods/{pod['metadata']['name']}"))
    jobs.reaches("digits", "Running", attempt=0)
    return pods


def record_of_failure(jobs: Jobs) -> Object:
    """The record of attempt 0 once another attempt has followed it."""
    for pod in jobs.pods_of("digits", 2, attempt=1):
        assert pod["spec"]["affinity"]["nodeAffinity"][WISHES] == [AVOIDING], "the node is avoided after one failure"
    status = jobs.status("digits")
    [avoided] = status["avoidedNodes"]
    assert (avoided["name"], avoided["deaths"]) == ("node-1", 1)
    assert {name: status["restarts"].get(f"{name}Count", 0) for name in ("preemption", "infrastructure", "application")} == {
        "preemption": 0,
        "infrastructure": 1,
        "application": 0,
    }
    return dict(status["attempts"][0])


def serves_device_health(jobs: Jobs) -> bool:
    """Whether this API server keeps the health of devices in the status of a pod (Kubernetes 1.31, on by default from 1.36)."""
    pods = jobs.pods("digits")
    return any("allocatedResourcesStatus" in each for pod in pods for each in pod["status"].get("containerStatuses", ()))


def test_an_unhealthy_device_restarts_the_job_elsewhere_and_a_glitch_does_not(jobs: Jobs, kubelet: Kubelet, running: list[Object]) -> None:
    def unhealthy_since() -> list[Object]:
        return [member.get("unhealthySince") for member in jobs.status("digits")["world"]["members"]]

    kubelet.report_device(running[1], "Unhealthy")
    if not serves_device_health(jobs):
        pytest.skip("this API server drops allocatedResourcesStatus, the health of devices")
    wait_until(lambda: unhealthy_since()[1], "the status says since when the device is unhealthy")
    kubelet.report_device(running[1], "Healthy")
    wait_until(lambda: unhealthy_since() == [None, None], "the status says that the device is healthy again")
    assert jobs.status("digits")["attempt"] == 0

    kubelet.report_device(running[1], "Unhealthy")
    record = record_of_failure(jobs)
    assert (record["class"], record["reason"], record["replica"], record["node"]) == (
        "Infrastructure",
        "DeviceUnhealthy",
        "worker-1",
        "node-1",
    )
    assert "nvidia.com/gpu GPU-3" in record["message"]

    def events() -> list[Object]:
        return [each for each in jobs.events("digits") if each["reason"] == "DeviceUnhealthy"]

    [event] = wait_until(events, "an Event about the device")
    assert event["type"] == "Warning"
    assert "GPU-3" in event["message"]


def test_a_device_taint_is_an_infrastructure_failure_that_names_the_claim(
    jobs: Jobs, kubelet: Kubelet, nodes: Nodes, running: list[Object]
) -> None:
    nodes.grace = 3600.0  # this test removes the pods, once the operator has seen why they go
    has_claim = "resourceClaims" in running[1]["spec"]  # an API server without DRA drops them
    if has_claim:
        kubelet.set_status(running[1], {"resourceClaimStatuses": [{"name": "gpus", "resourceClaimName": "digits-worker-1-gpus-x"}]})
    kubelet.disrupt(running[1], "DeletionByDeviceTaintManager", "Device Taint manager: deleting due to NoExecute taint")
    wait_until(lambda: jobs.status("digits")["attempts"][0].get("reason"), "the attempt has ended")

    def has_followed() -> bool:
        for pod in jobs.pods("digits"):
            if "deletionTimestamp" in pod["metadata"]:
                kubelet.remove(pod)
        return any(attempt_of(pod) == 1 for pod in jobs.pods("digits"))

    wait_until(has_followed, "another attempt follows")
    record = record_of_failure(jobs)
    assert (record["class"], record["reason"], record["replica"]) == ("Infrastructure", "DeviceTainted", "worker-1")
    assert "NoExecute taint" in record["message"]
    assert ("digits-worker-1-gpus-x" in record["message"]) == has_claim


def test_a_role_gets_devices_from_claims(jobs: Jobs, nodes: Nodes) -> None:
    claims = [{"name": "gpus", "resourceClaimTemplateName": "h100"}, {"name": "shared", "resourceClaimName": "cache"}]
    nodes.runs = lambda pod: False
    jobs.submit(job("digits", roles={"worker": {"replicas": 2, "resourceClaims": claims}}))
    pods = jobs.pods_of("digits", 2, attempt=0)
    if not any("resourceClaims" in pod["spec"] for pod in pods):
        pytest.skip("this API server drops resourceClaims: its DynamicResourceAllocation is off")
    for pod in pods:
        assert pod["spec"]["resourceClaims"] == claims
        [container] = pod["spec"]["containers"]
        assert container["resources"]["claims"] == [{"name": "gpus"}, {"name": "shared"}]


@pytest.mark.parametrize(
    "claims",
    [
        [{"name": "gpus"}],
        [{"name": "gpus", "resourceClaimName": "a", "resourceClaimTemplateName": "b"}],
        [{"name": "My GPUs", "resourceClaimName": "a"}],
        [],
    ],
)
def test_claims_that_mean_nothing_are_refused(jobs: Jobs, claims: list[Object]) -> None:
    with pytest.raises(ApiError, match="resourceClaim") as refused:
        jobs.submit(job("digits", roles={"worker": {"replicas": 2, "resourceClaims": claims}}))
    assert refused.value.status == 422
