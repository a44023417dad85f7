"""A spare takes the place of a worker whose pod is deleted or whose node is killed. The tests print how long the job stands still."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from local_cluster.installation import Installation
from tests.cluster.faults import check_attempt, check_succeeded, delete, kill_all
from tests.support.cluster_jobs import CLAIM, STEPS, ClusterJob, Ground, Manifest, apart, of_matrix
from tests.support.outages import NODE_FAULTS, cordoned, lone_replica, node_of, operator_nodes, outage, with_spare_beside_operator
from tests.support.waiting import wait_until

SPARE = "worker-2"
NODE_MONITOR_SECONDS = 40
"""Kubernetes notices a lost node after 40 to 60 s."""
COPIED = "in its memory (parts: 1)"
Uninterrupted = Callable[[str], ClusterJob]


def with_spare(ground: Ground, *, delay: float) -> ClusterJob:
    """DDP on two workers and one spare, which is ready. `delay` is such that the job still trains when it is struck on a busy machine."""
    job = ground.apply(apart(of_matrix("DDP", delay=delay, recovery={"spares": 1})))
    job.wait_until("the spare is ready", lambda status: status.get("readySpares") == 1)
    return job


def check_members(job: ClusterJob, lost: str) -> None:
    """The spare has the rank of the lost worker."""
    members = [f"{member['role']}-{member['index']}" for member in job.status["world"]["members"]]
    assert members == [SPARE if replica == lost else replica for replica in job.replicas], job.story()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("lost", ["worker-0", pytest.param("worker-1", marks=pytest.mark.chaos)])
def test_a_spare_takes_the_place_of_a_deleted_pod(lost: str, ground: Ground, uninterrupted: Uninterrupted) -> None:
    like = uninterrupted("DDP")
    job = with_spare(ground, delay=0.2)
    job.wait_for_step(30)
    print(f"pod of {lost} deleted:", outage(job, lambda: delete(job, lost)))
    check_members(job, lost)
    check_succeeded(job, like, attempts=2, preemption=1)
    check_attempt(job, 0, failure_class="Preemption", reasons=frozenset({"PodDeleted", "Preempted"}), saves=True)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["killed", pytest.param("frozen", marks=pytest.mark.chaos)])
def test_a_spare_takes_the_place_of_a_worker_whose_node_is(
    kind: str, ground: Ground, uninterrupted: Uninterrupted, muster: Installation
) -> None:
    like = uninterrupted("DDP")
    job = with_spare(ground, delay=0.3)  # the spare may have to move first
    with_spare_beside_operator(job, SPARE)
    job.wait_for_step(30)
    lost = lone_replica(job)
    with node_of(job, lost, NODE_FAULTS[kind]) as lose:
        print(f"node of {lost} {kind}:", outage(job, lose))
        check_members(job, lost)
        check_succeeded(job, like, attempts=2, infrastructure=1)
    check_attempt(job, 0, failure_class="Infrastructure", reasons=frozenset({"NodeLost", "PeerLost"}))
    assert job.attempts[1]["stepsLost"] == 0, "the worker that is left has saved the last step"
    muster.wait_until_ready()


@pytest.mark.timeout(900)
def test_a_job_continues_from_the_copy_in_its_spare_when_all_workers_are_killed(ground: Ground, uninterrupted: Uninterrupted) -> None:
    """There is no commit, and with DDP no worker has a copy of another's snapshot. So the state is only in the spare."""
    like = uninterrupted("DDP")
    storage = {"persistentVolumeClaim": {"claimName": CLAIM}}
    checkpoint = {"everySteps": 100 * STEPS, "memory": {"everySteps": 2, "sizeMib": 64}, "storage": storage, "gracePeriodSeconds": 10}
    job = ground.apply(apart(of_matrix("DDP", delay=0.3, checkpoint=checkpoint, recovery={"spares": 1})))
    job.wait_until("the spare is ready", lambda status: status.get("readySpares") == 1)
    spare = ("logs", f"{job.name}-{SPARE}", "--container", "trainer")
    wait_until(lambda: COPIED in ground.kubectl(*spare), "the spare has copied a snapshot")
    kill_all(job)
    job.check_succeeded(like.losses())
    record = next(record for record in job.attempts[1:] if "resumedFrom" in record)
    assert record["resumedFrom"] == "Memory", job.attempts
    assert record["stepResumed"] > 0, job.attempts


def wait_until_spread(job: ClusterJob, reason: str) -> None:
    """Waits until the condition SpreadOverNodes has this reason."""

    def has_reason(status: Manifest) -> bool:
        return any((each["type"], each["reason"]) == ("SpreadOverNodes", reason) for each in status.get("conditions", ()))

    job.wait_until(f"SpreadOverNodes has the reason {reason}", has_reason, timeout=180)


def is_on(job: ClusterJob, replica: str, node: str) -> bool:
    """Whether the replica has a pod on this node."""
    pods = [pod for pod in job.pods() if pod["metadata"]["name"] == f"{job.name}-{replica}"]
    return any(pod["spec"].get("nodeName") == node for pod in pods)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_a_promotion_spreads_a_world_that_is_on_one_node(ground: Ground, uninterrupted: Uninterrupted) -> None:
    """Of two spares, the one on the other node is taken, although its index is higher."""
    like = uninterrupted("DDP")
    cluster = ground.cluster
    here, there = sorted(cluster.workers())
    with cordoned(cluster, there):
        job = ground.apply(of_matrix("DDP", delay=0.4, recovery={"spares": 2}))
        job.wait_until("the spares are ready", lambda status: status.get("readySpares") == 2)
        wait_until_spread(job, "WorldOnOneNode")
    with cordoned(cluster, here):
        delete(job, "worker-3")
        job.wait_until("a spare elsewhere", lambda status: status.get("readySpares") == 2 and is_on(job, "worker-3", there))
        delete(job, "worker-1")
        wait_until_spread(job, "ManyNodes")
        assert job.members == ["worker-0", "worker-3"], job.story()
    check_succeeded(job, like, attempts=2, preemption=1)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_a_spare_elsewhere_proves_the_loss_of_a_node_with_the_whole_world(
    ground: Ground, uninterrupted: Uninterrupted, muster: Installation
) -> None:
    like = uninterrupted("DDP")
    [safe] = operator_nodes(ground.cluster)
    with cordoned(ground.cluster, safe):
        job = ground.apply(of_matrix("DDP", delay=0.4, recovery={"spares": 1}))
        job.wait_until("the spare is ready", lambda status: status.get("readySpares") == 1)
    with_spare_beside_operator(job, SPARE)
    job.wait_for_step(45)
    with node_of(job, "worker-0", NODE_FAULTS["killed"]) as lose:
        still = outage(job, lose)
        print("node of the whole world killed:", still)
        assert still.phases["detectSeconds"] < NODE_MONITOR_SECONDS, job.story()
        check_succeeded(job, like, attempts=2, infrastructure=1)
    assert "while a spare on another node reports" in job.attempts[0]["message"]
    muster.wait_until_ready()
