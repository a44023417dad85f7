"""Jobs compete for the cluster. Its own scheduler decides, by their PodGroups and priorities."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import local_cluster
from tests.cluster.faults import check_attempt, check_succeeded
from tests.support.cluster_jobs import ClusterJob, Ground, Manifest, digits, of_matrix, world_is_ready

SHARE = 0.6
GROUP = "scheduling.k8s.io"
PRIORITIES = {"muster-test-low": 10, "muster-test-high": 1000}


@pytest.fixture
def workers(cluster: local_cluster.Cluster) -> Manifest:
    """The role of a job that needs 60 % of the cluster: on each node a worker with that share of the CPUs."""
    if not _serves_pod_groups(cluster):
        pytest.skip("this cluster has no gang scheduling")
    nodes = [node for node in cluster.get("nodes")["items"] if not node["spec"].get("taints")]
    share = int(SHARE * 1000 * min(_cpus(node["status"]["allocatable"]["cpu"]) for node in nodes))
    return {"replicas": len(nodes), "resources": {"requests": {"cpu": f"{share}m"}}}


@pytest.fixture
def priorities(cluster: local_cluster.Cluster) -> Iterator[None]:
    """Two PriorityClasses."""
    for name, value in PRIORITIES.items():
        cluster.kubectl("create", "priorityclass", name, f"--value={value}")
    yield
    cluster.kubectl("delete", "priorityclass", *PRIORITIES, "--ignore-not-found")


@pytest.mark.timeout(600)
def test_of_two_jobs_that_need_most_of_the_cluster_one_waits_until_the_other_has_ended(ground: Ground, workers: Manifest) -> None:
    trainer = {"task": "digits", "config": {"epochs": 4, "seed": 0, "stepDelaySeconds": 0.3}}  # half a minute, in which the second waits
    first = ground.apply(digits("first", roles={"worker": workers}, trainer=trainer))
    first.wait_until("its world has nodes", _is_placed)
    second = ground.apply(digits("second", roles={"worker": workers}, trainer=trainer))
    second.wait_until("it says what it waits for", _waits_for_nodes)
    status = second.status
    assert (status["phase"], status["gangScheduler"]) == ("Pending", GROUP)
    assert not [pod for pod in second.pods() if pod["spec"].get("nodeName")]
    assert first.wait_for_end() == "Succeeded", first.story()
    assert second.wait_for_end() == "Succeeded", second.story()
    assert second.status["restarts"]["total"] == first.status["restarts"]["total"] == 0


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_a_job_of_higher_priority_preempts_another_which_saves_and_resumes_bit_for_bit(
    ground: Ground, workers: Manifest, priorities: None, uninterrupted: Callable[[str], ClusterJob]
) -> None:
    if workers["replicas"] != 2:
        pytest.skip("the undisturbed job has two workers")
    like = uninterrupted("DDP")
    low, high = ({"priorityClassName": name} for name in PRIORITIES)
    preempted = ground.apply(of_matrix("DDP", roles={"worker": workers}, scheduling=low))
    preempted.wait_for_step(47)
    trainer = {"task": "digits", "config": {"epochs": 1, "seed": 0}}
    urgent = ground.apply(digits("urgent", roles={"worker": workers}, trainer=trainer, scheduling=high))
    urgent.wait_until("its world is ready", lambda status: world_is_ready(status, attempt=0))
    preempted.wait_until("it says what it waits for", _waits_for_nodes)
    assert urgent.wait_for_end() == "Succeeded", urgent.story()
    check_succeeded(preempted, like, attempts=2, preemption=1)
    check_attempt(preempted, 0, failure_class="Preemption", reasons=frozenset({"Disrupted", "Evicted", "Preempted"}), saves=True)


def _serves_pod_groups(cluster: local_cluster.Cluster) -> bool:
    try:
        cluster.kubectl("get", "--raw", f"/apis/{GROUP}/v1beta1/podgroups")
    except local_cluster.CommandFailedError:
        return False
    return True


def _cpus(quantity: str) -> float:
    return float(quantity.removesuffix("m")) / 1000 if quantity.endswith("m") else float(quantity)


def _gang(status: Manifest) -> Manifest:
    conditions: list[Manifest] = status.get("conditions", [])
    return next((each for each in conditions if each["type"] == "GangScheduled"), {})


def _is_placed(status: Manifest) -> bool:
    return bool(_gang(status).get("status") == "True")


def _waits_for_nodes(status: Manifest) -> bool:
    """The scheduler has said why it does not place the world."""
    gang = _gang(status)
    return gang.get("status") == "False" and gang["reason"] == "WaitingForGang" and "Unschedulable" in gang["message"]
