"""A spare takes the place of a worker whose pod is deleted or whose node is killed. The tests print how long the job stands still."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from local_cluster.installation import Installation
from tests.cluster.faults import check_attempt, check_succeeded, delete, kill_all
from tests.support.cluster_jobs import CLAIM, STEPS, ClusterJob, Ground, apart, of_matrix
from tests.support.outages import NODE_FAULTS, lone_replica, node_of, outage, with_spare_beside_operator
from tests.support.waiting import wait_until

SPARE = "worker-2"
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
