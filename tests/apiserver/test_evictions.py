"""Evictions that wait for a save (KEP-4563), with this test in the place of the kubelet and of the evictionrequest-controller."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.api_server.api import Object
from tests.support.api_server.cluster import Cluster, running
from tests.support.api_server.evictions import RESPONDER, Evictions
from tests.support.api_server.jobs import Jobs, attempt_of, job
from tests.support.api_server.kubelet import Kubelet, Nodes
from tests.support.api_server.operators import OperatorProcess, operating
from tests.support.waiting import wait_until

ALONE = {"scheduling": {"gang": "Never"}}
SAVED = json.dumps({"code": 21, "message": "stopped on request after a save", "step": 40})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An API server that serves Evictions, and the PodGroups of Kubernetes."""
    with running(
        tmp_path_factory.mktemp("apiserver"),
        arguments=["--runtime-config=lifecycle.k8s.io/v1alpha1=true,scheduling.k8s.io/v1beta1=true"],
        feature_gates=["EvictionRequestAPI", "GenericWorkload"],
    ) as cluster:
        yield cluster


@pytest.fixture
def evictions(cluster: Cluster, namespace: str) -> Evictions:
    return Evictions(cluster.admin, namespace)


def started(jobs: Jobs, name: str, *, attempt: int = 0) -> list[Object]:
    """The pods of a job of two workers that runs."""
    jobs.reaches(name, "Running", attempt=attempt)
    return sorted((pod for pod in jobs.pods(name) if attempt_of(pod) == attempt), key=lambda pod: str(pod["metadata"]["name"]))


def writes_of_evictions(cluster: Cluster) -> list[int]:
    """The answers to what the operators have written so far, without conflicts, after which they read again."""
    writes = [each for each in cluster.requests() if "/evictions/" in each["requestURI"] and each["verb"] != "get"]
    return [each["responseStatus"]["code"] for each in writes if each["responseStatus"]["code"] != 409]


def test_all_ranks_save_before_the_eviction_goes_on(
    jobs: Jobs, kubelet: Kubelet, nodes: Nodes, evictions: Evictions, cluster: Cluster, operator: OperatorProcess
) -> None:
    nodes.grace = 3600.0  # this test ends the pods
    jobs.submit(job("digits", **ALONE))
    pods = started(jobs, "digits")
    assert [pod["spec"]["evictionResponders"] for pod in pods] == [[{"name": RESPONDER, "priority": 10000}]] * 2
    evictions.start(pods[1])

    def leaving() -> list[Object] | None:
        pods = [pod for pod in jobs.pods("digits") if "deletionTimestamp" in pod["metadata"]]
        return pods if len(pods) == 2 else None

    saving = wait_until(leaving, "both ranks save and stop")
    for pod in saving:
        assert pod["metadata"]["deletionGracePeriodSeconds"] == pod["spec"]["terminationGracePeriodSeconds"] > 15
    answer = evictions.responder(pods[1])
    assert answer["heartbeatTime"] >= answer["startTime"]
    assert "TrainingJob digits" in answer["message"]
    assert "completionTime" not in answer

    for pod in saving:
        kubelet.end(pod, 21, message=SAVED)
        kubelet.remove(pod)
    wait_until(lambda: "completionTime" in evictions.responder(pods[1]), "the eviction goes on")
    evictions.conclude(pods[1])
    started(jobs, "digits", attempt=1)
    status = jobs.status("digits")
    record = status["attempts"][0]
    assert (record["class"], record["reason"], record["replica"]) == ("Preemption", "EvictionRequested", "worker-1")
    assert "drain.example.com/nodes" in record["message"]
    counts = {name: status["restarts"].get(f"{name}Count", 0) for name in ("preemption", "infrastructure", "application")}
    assert counts == {"preemption": 1, "infrastructure": 0, "application": 0}
    assert set(writes_of_evictions(cluster)) == {200}


def test_a_new_leader_answers_what_is_active_and_ignores_what_was_canceled(
    jobs: Jobs, nodes: Nodes, evictions: Evictions, cluster: Cluster, tmp_path: Path
) -> None:
    names = ("canceled", "other-uid", "evicted")
    with operating(cluster, tmp_path / "first"):
        for name in names:
            jobs.submit(job(name, **ALONE))
        pods = {name: started(jobs, name)[0] for name in names}
    evictions.start(pods["canceled"])
    evictions.cancel(pods["canceled"])
    evictions.start(pods["other-uid"], uid="11111111-2222-3333-4444-555555555555")
    evictions.start(pods["evicted"])
    with operating(cluster, tmp_path / "second"):
        started(jobs, "evicted", attempt=1)
        for name in ("evicted", "other-uid"):
            wait_until(lambda name=name: "completionTime" in evictions.responder(pods[name]), f"the eviction of {name} goes on")
        assert [jobs.status(name)["attempt"] for name in names] == [0, 0, 1]
        assert "heartbeatTime" not in evictions.responder(pods["canceled"])
    assert set(writes_of_evictions(cluster)) == {200}


def test_a_job_that_has_ended_lets_the_eviction_go_on(
    jobs: Jobs, kubelet: Kubelet, nodes: Nodes, evictions: Evictions, operator: OperatorProcess
) -> None:
    jobs.submit(job("digits", cleanPodPolicy="None", **ALONE))
    pods = started(jobs, "digits")
    for pod in pods:
        kubelet.end(pod, 0)
    jobs.reaches("digits", "Succeeded")
    evictions.start(pods[0])
    wait_until(lambda: "completionTime" in evictions.responder(pods[0]), "the eviction goes on")


def test_pods_of_a_pod_group_name_no_responder(jobs: Jobs, nodes: Nodes, operator: OperatorProcess) -> None:
    jobs.submit(job("digits"))
    for pod in started(jobs, "digits"):
        assert "schedulingGroup" in pod["spec"]
        assert "evictionResponders" not in pod["spec"]


def test_an_installation_can_leave_evictions_alone(jobs: Jobs, nodes: Nodes, cluster: Cluster, tmp_path: Path) -> None:
    began = datetime.now(UTC)
    with operating(cluster, tmp_path, evictionRequests={"enabled": False}):
        jobs.submit(job("digits", **ALONE))
        for pod in started(jobs, "digits"):
            assert "evictionResponders" not in pod["spec"]
    about = [each for each in cluster.requests() if "lifecycle.k8s.io" in each["requestURI"]]
    # by the time of the request: a watch of a stopped operator is recorded when it ends, which may be later
    assert [each for each in about if datetime.fromisoformat(each["requestReceivedTimestamp"]) >= began] == []
