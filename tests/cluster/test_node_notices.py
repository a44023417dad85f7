"""A node announces that it goes, as clouds and autoscalers do, and is then killed. The tests print how long the job stands still."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from local_cluster.installation import Installation
from tests.cluster.faults import check_succeeded
from tests.cluster.test_own_loop import own_loop
from tests.support.clouds import AKS, AUTOSCALER, AWS, GKE, KARPENTER, Cloud, announcing
from tests.support.cluster_jobs import ClusterJob, Ground, apart, of_matrix
from tests.support.outages import NODE_FAULTS, lone_replica, node_of, outage, replica_away, with_spare_beside_operator

Uninterrupted = Callable[[str], ClusterJob]
MOST_WAITED = 45.0
"""Seconds. The sequences of clouds that give more are cut here, because a job has moved long before."""


@contextmanager
def left_and_killed(job: ClusterJob, cloud: Cloud, *, what: str) -> Iterator[None]:
    """The job has left the node of a replica, which is killed then, and is away in the block."""
    cluster = job.ground.cluster
    job.wait_for_step(20)
    leaving = lone_replica(job)
    node = job.pod(leaving)["spec"]["nodeName"]
    with node_of(job, leaving, NODE_FAULTS["killed"]) as kill, announcing(cloud, cluster, node):
        print(f"node of {leaving} is tainted, {what}:", outage(job, lambda: cloud.announce(cluster, node)))
        assert leaving not in job.members, job.story()
        job.wait_until("the old pod is gone", lambda _: all(pod["spec"].get("nodeName") != node for pod in job.pods()))
        kill()
        yield


@pytest.mark.timeout(900)
@pytest.mark.parametrize("spares", [0, pytest.param(1, marks=pytest.mark.chaos)])
def test_a_job_leaves_a_node_before_it_is_killed(spares: int, ground: Ground, uninterrupted: Uninterrupted, muster: Installation) -> None:
    like = uninterrupted("DDP")
    job = ground.apply(apart(of_matrix("DDP", delay=0.5, recovery={"spares": spares})))
    if spares:
        job.wait_until("the spare is ready", lambda status: status.get("readySpares") == 1)
        with_spare_beside_operator(job, "worker-2")
    with left_and_killed(job, KARPENTER, what=f"{spares} spares"):
        assert job.attempts[0]["reason"] == "Moved", job.attempts
        check_succeeded(job, like, attempts=2)
        assert job.attempts[1]["stepsLost"] == 0, job.attempts
    muster.wait_until_ready()


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_an_own_loop_leaves_a_node_before_it_is_killed(ground: Ground, muster: Installation) -> None:
    job = own_loop(ground, pause=0.5)
    with left_and_killed(job, GKE, what="an own loop"):
        assert job.wait_for_end() == "Succeeded", job.story()
    assert [each.get("reason") for each in job.attempts[:-1]] == ["Moved"], job.attempts
    assert (job.attempts[1]["stepsLost"], job.status["restarts"]["total"]) == (0, 0), job.attempts
    muster.wait_until_ready()


@pytest.mark.chaos
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("name", "cloud"),
    [("DDP", GKE), ("FSDP", AWS), ("MultiWorkerMirrored", AKS), ("JAX", KARPENTER), ("ParameterServer", AUTOSCALER), ("Pipeline", GKE)],
    ids=["DDP-GKE", "FSDP-AWS", "MultiWorkerMirrored-AKS", "JAX-Karpenter", "ParameterServer-autoscaler", "Pipeline-GKE"],
)
def test_no_step_is_lost_when_a_cloud_takes_a_node(
    name: str, cloud: Cloud, ground: Ground, uninterrupted: Uninterrupted, muster: Installation
) -> None:
    """Whether the job can move or not, the losses are those of an undisturbed job, and no budget is charged for a move or for a drain
    that was announced."""
    like, cluster = uninterrupted(name), ground.cluster
    job = ground.apply(apart(of_matrix(name, delay=0.3)))
    job.wait_for_step(20)
    leaving = replica_away(job)
    node = job.pod(leaving)["spec"]["nodeName"]
    with node_of(job, leaving, NODE_FAULTS["killed"]) as kill, announcing(cloud, cluster, node):
        begun = time.monotonic()
        cloud.announce(cluster, node)
        if cloud.drains:
            cluster.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=60s", timeout=90)
        time.sleep(max(0.0, min(cloud.seconds, MOST_WAITED) - (time.monotonic() - begun)))
        kill()
        check_succeeded(job, like)
        lost = [each.get("stepsLost") for each in job.attempts[1:]]
        print(f"{name}: {[each.get('reason') for each in job.attempts]}, steps lost {lost}, goodput {job.status.get('goodput')}")
        assert not any(lost), job.attempts
        first = job.attempts[0]
        is_free = first["reason"] == "Moved" or (first.get("class") == "Preemption" and first.get("announcedNodes") == 1)
        assert is_free or not cloud.drains, job.story()
        assert not is_free or job.status["restarts"]["total"] == len(job.attempts) - 2, job.story()
    muster.wait_until_ready()
