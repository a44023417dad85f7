"""A node announces that it goes, as clouds and autoscalers do, and is then killed. The test prints how long the job stands still."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from local_cluster import Cluster
from local_cluster.installation import Installation
from tests.cluster.faults import check_succeeded
from tests.support.cluster_jobs import ClusterJob, Ground, apart, of_matrix
from tests.support.outages import NODE_FAULTS, lone_replica, node_of, outage

RETIRE = "karpenter.sh/disrupted"
Uninterrupted = Callable[[str], ClusterJob]


@contextmanager
def announcing(cluster: Cluster, node: str) -> Iterator[None]:
    """Karpenter's taint is removed at the end."""
    try:
        yield
    finally:
        cluster.try_kubectl("taint", "node", node, f"{RETIRE}-")


@pytest.mark.timeout(900)
def test_a_job_without_spares_leaves_a_node_before_it_is_killed(ground: Ground, uninterrupted: Uninterrupted, muster: Installation) -> None:
    like, cluster = uninterrupted("DDP"), ground.cluster
    job = ground.apply(apart(of_matrix("DDP", delay=0.5)))
    job.wait_for_step(20)
    leaving = lone_replica(job)
    node = job.pod(leaving)["spec"]["nodeName"]
    with node_of(job, leaving, NODE_FAULTS["killed"]) as kill, announcing(cluster, node):
        print(f"node of {leaving} is tainted:", outage(job, lambda: cluster.kubectl("taint", "node", node, f"{RETIRE}=:NoSchedule")))
        assert leaving not in job.members, job.story()
        assert job.attempts[0]["reason"] == "Moved", job.attempts
        job.wait_until("the old pod is gone", lambda _: all(pod["spec"].get("nodeName") != node for pod in job.pods()))
        kill()
        check_succeeded(job, like, attempts=2)
        assert job.attempts[1]["stepsLost"] == 0, job.attempts
    muster.wait_until_ready()
