"""What runs the jobs is itself struck: the operator, the API server, etcd. Training goes on meanwhile, and nothing is counted twice."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from local_cluster.installation import NAMESPACE, RELEASE, Installation
from tests.chaos.matrix import parametrised
from tests.cluster.faults import FAULTS, Moment, check_succeeded
from tests.support.api_server.commands import Muster
from tests.support.cluster_jobs import ClusterJob, Ground, digits, of_matrix
from tests.support.outages import answers, kill_operator, operator_pods, wait_for_operator, without_api_server
from tests.support.waiting import wait_until

KILLS = 8
Uninterrupted = Callable[[str], ClusterJob]


@pytest.mark.timeout(900)
@parametrised("tests/cluster/test_control_faults.py::test_an_operator_killed_while_a_job_recovers_counts_the_failure_once")
def test_an_operator_killed_while_a_job_recovers_counts_the_failure_once(
    fault: str, job: str, ground: Ground, muster: Installation, uninterrupted: Uninterrupted
) -> None:
    like = uninterrupted(job)
    recovering = ground.apply(of_matrix(job, delay=0.1))
    recovering.wait_for_step(47)
    FAULTS["pod-deleted"].strike(recovering, "worker-0")
    kill_operator(muster)
    check_succeeded(recovering, like, attempts=2, preemption=1)


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("round_", range(3))
def test_an_operator_killed_at_random_moments_loses_no_job_and_counts_nothing_twice(
    round_: int, seed: int, ground: Ground, muster: Installation, uninterrupted: Uninterrupted
) -> None:
    """Eight kills each: with three seeds and three rounds, seventy-two. Between them a container of the job is killed too."""
    like = uninterrupted("DDP")
    draw = random.Random(f"{round_}/{seed}")
    job = ground.apply(digits("digits", delay=0.3))
    for kill in range(KILLS):
        time.sleep(draw.uniform(0, 12))  # the moment is what the seed draws
        kill_operator(muster)
        wait_for_operator(muster)
        if kill == 2:
            job.wait_for_step(25)
            FAULTS["supervisor-killed"].strike(job, draw.choice(["worker-0", "worker-1"]))
    check_succeeded(job, like, attempts=2, infrastructure=1)


@pytest.mark.timeout(600)
@parametrised("tests/cluster/test_control_faults.py::test_a_job_trains_on_while_the_api_server_is_down")
def test_a_job_trains_on_while_the_api_server_is_down(
    fault: str, job: str, seed: int, ground: Ground, uninterrupted: Uninterrupted
) -> None:
    """Down for 30 s, in which a container of the job is killed too in every second run: the restart waits, and is counted once."""
    like = uninterrupted(job)
    training = ground.apply(of_matrix(job, delay=0.3))
    moment = Moment.of(seed, last=100, replicas=training.replicas)
    training.wait_for_step(moment.step)
    pod = training.pod(moment.replica)
    with without_api_server(ground.cluster):
        if seed % 2:
            task = pod["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
            node = pod["spec"]["nodeName"]
            ground.cluster.execute(node, "ctr", "--namespace", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", task)
        time.sleep(30)  # is the fault
    if seed % 2:
        check_succeeded(training, like, attempts=2, infrastructure=1)
    else:
        check_succeeded(training, like, attempts=1)


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_a_job_trains_on_while_etcd_restarts(seed: int, ground: Ground, uninterrupted: Uninterrupted) -> None:
    like = uninterrupted("DDP")
    job = ground.apply(digits("digits", delay=0.3))
    job.wait_for_step(Moment.of(seed, last=100).step)
    cluster = ground.cluster
    [etcd] = cluster.get("pods", "--namespace", "kube-system", "--selector", "component=etcd")["items"]
    cluster.kill_container("kube-system", etcd["metadata"]["name"], "etcd")
    cluster.wait_until("the API server answers", lambda: answers(cluster), timeout=180)
    check_succeeded(job, like, attempts=1)


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_a_job_that_lost_a_pod_without_an_operator_is_said_to_be_neglected(
    ground: Ground, muster: Installation, uninterrupted: Uninterrupted
) -> None:
    like = uninterrupted("DDP")
    command = Muster(ground.cluster.kubeconfig, ground.namespace)
    job = ground.apply(digits("digits", delay=0.4))
    job.wait_for_step(27)
    with without_operator(muster):
        ground.kubectl("delete", "pod", "digits-worker-1", "--force", "--grace-period=0")
        sentence = "digits: no operator has updated this job for "
        wait_until(lambda: sentence in command("get").stderr, "get says that no operator updates the job", 120, pause=2)
        [cause, *_] = json.loads(command("explain", "digits", "--output", "json").stdout)["causes"]
        assert cause["id"] == "OperatorDown", cause
        assert "although worker-1 is gone" in cause["sentence"]
    assert command("get").stderr == ""
    check_succeeded(job, like, attempts=2, preemption=1)


@contextmanager
def without_operator(muster: Installation) -> Iterator[None]:
    """No operator runs. It is back at the end."""
    deployment = (f"deployment/{RELEASE}", "--namespace", NAMESPACE)
    muster.cluster.kubectl("scale", *deployment, "--replicas=0")
    muster.cluster.wait_until("no operator runs", lambda: not operator_pods(muster.cluster), timeout=120)
    try:
        yield
    finally:
        muster.cluster.kubectl("scale", *deployment, "--replicas=1")
        muster.wait_until_ready()
