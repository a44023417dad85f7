"""The device-hours and the cost of jobs on a real API server, beside a count of this test's own."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.api_server.api import ApiError, Object
from tests.support.api_server.cluster import Cluster
from tests.support.api_server.jobs import Jobs, condition, job
from tests.support.api_server.kubelet import Kubelet
from tests.support.api_server.operators import operating
from tests.support.waiting import wait_until

NODES = "/api/v1/nodes"
GPUS = {"worker": {"replicas": 2, "resources": {"limits": {"nvidia.com/gpu": 4}}}}
PROGRAM = {"script": "train.py", "code": {"configMap": {"name": "code"}}}


@pytest.fixture
def node(cluster: Cluster) -> Iterator[str]:
    """A spot node without a kubelet."""
    name = f"spot-{secrets.token_hex(3)}"
    labels = {"karpenter.sh/capacity-type": "spot"}
    cluster.admin.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
    yield name
    cluster.admin.delete(f"{NODES}/{name}")


def started(jobs: Jobs, kubelet: Kubelet, node: str, name: str, **spec: Any) -> list[Object]:
    jobs.submit(job(name, trainer=PROGRAM, roles=GPUS, **spec))
    pods = jobs.pods_of(name, 2)
    for pod in pods:
        kubelet.bind(pod, node)
        kubelet.run({**pod, "spec": {**pod["spec"], "nodeName": node}})
    jobs.reaches(name, "Running")
    return jobs.pods_of(name, 2)


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def placed(pod: Object) -> float:
    """When the pod got its node, as its own status shows."""
    conditions = pod["status"].get("conditions") or ()
    times = [each["lastTransitionTime"] for each in conditions if each["type"] == "PodScheduled" and each["status"] == "True"]
    return seconds(times[0] if times else pod["metadata"]["creationTimestamp"])


def ended(pod: Object) -> float:
    """When its container ended, as its own status shows."""
    [state] = [each["state"] for each in pod["status"]["containerStatuses"] if each["name"] == "trainer"]
    return seconds(state["terminated"]["finishedAt"])


def test_the_count_is_that_of_the_pods_also_if_they_end_while_no_operator_runs(
    jobs: Jobs, kubelet: Kubelet, cluster: Cluster, node: str, tmp_path: Path
) -> None:
    with operating(cluster, tmp_path / "first"):
        pods = started(jobs, kubelet, node, "digits")
    with operating(cluster, tmp_path / "second") as second:
        second.ready()
    for pod in pods:
        kubelet.end(pod, 0)
    pods = jobs.pods("digits")
    with operating(cluster, tmp_path / "third"):
        jobs.reaches("digits", "Succeeded")  # perhaps before the operator knows the classes of the nodes, and then it counts later
        wait_until(lambda: not any(each["open"] for each in jobs.status("digits")["usage"]["devices"]), "the account is closed")
        usage = jobs.status("digits")["usage"]
    used = sum(4 * (ended(pod) - placed(pod)) for pod in pods)
    assert usage["deviceSeconds"] == pytest.approx(used, abs=8), "the time of a binding has whole seconds, and there are eight devices"
    assert usage["uncertainSeconds"] == 0
    [spot] = usage["devices"]
    assert (spot["capacityClass"], spot["device"], spot["open"], spot["ended"]) == ("spot", "nvidia.com/gpu", 0, 8)
    assert seconds(usage["countedUntil"]) >= max(map(ended, pods))


def test_a_limit_of_device_hours_ends_a_job_and_the_count_is_close_to_it(
    jobs: Jobs, kubelet: Kubelet, cluster: Cluster, node: str, tmp_path: Path
) -> None:
    with operating(cluster, tmp_path / "operator"):
        pods = started(jobs, kubelet, node, "digits", usageLimits={"deviceHours": 0.02})  # nine seconds of eight GPUs
        status = jobs.reaches("digits", "Failed")
    assert condition(status, "Failed")["reason"] == "DeviceHoursLimitReached"
    usage = status["usage"]
    used = sum(4 * (seconds(usage["countedUntil"]) - placed(pod)) for pod in pods)
    assert usage["deviceSeconds"] == pytest.approx(used, abs=8)
    assert usage["deviceSeconds"] == pytest.approx(72, abs=16)
    assert [(each["capacityClass"], each["device"]) for each in usage["devices"]] == [("spot", "nvidia.com/gpu")]


def test_a_limit_of_cost_needs_prices(jobs: Jobs, cluster: Cluster, tmp_path: Path) -> None:
    with operating(cluster, tmp_path / "operator"):
        jobs.submit(job("digits", usageLimits={"cost": 10}))
        status = wait_until(lambda: jobs.status("digits") if jobs.status("digits").get("conditions") else None, "the job was looked at")
    valid = condition(status, "Valid")
    assert valid["status"] == "False"
    assert "spec.usageLimits.cost: cannot be kept" in valid["message"]


WRONG: list[Any] = [
    {"deviceHours": "ten"},
    {"deviceHours": 0},
    {"cost": 0},
    {"deviceHours": -1},
    {"cost": 0.0005},
    {"cost": -1},
    {"action": "Suspend"},
    {"action": "Stop", "cost": 1},
]


@pytest.mark.parametrize("limits", WRONG)
def test_the_api_server_refuses_limits_that_are_none(jobs: Jobs, limits: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="usageLimits"):
        jobs.submit(job("digits", usageLimits=limits))
