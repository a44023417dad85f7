"""A pod is deleted or fails during training. The job resumes from its newest commit, and its losses equal those of an undisturbed job."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.matrix import parametrised
from tests.cluster.faults import FAULTS, Moment, check_attempt, check_succeeded, delete
from tests.support.cluster_jobs import STEPS, ClusterJob, Ground, Manifest, apart, digits, of_matrix, trains, world_is_ready

LIMITED = {"worker": {"replicas": 2, "resources": {"limits": {"memory": "900Mi"}}}}
Uninterrupted = Callable[[str], ClusterJob]


@pytest.mark.timeout(900)
def test_a_job_outlives_one_fault_after_the_other(ground: Ground, uninterrupted: Uninterrupted) -> None:
    """The kernel's OOM killer, an eviction and a killed container: each counted in its own class.

    The OOM killer strikes first, because a command in a pod is slow on a busy machine, and the job must not end before.
    """
    like = uninterrupted("DDP")
    job = ground.apply(digits("digits", roles=LIMITED, delay=0.2))
    kinds = ("out-of-memory", "pod-evicted", "supervisor-killed")
    for attempt, (kind, step, replica) in enumerate(zip(kinds, (27, 87, 147), ("worker-1", "worker-1", "worker-0"), strict=True)):
        job.wait_for_step(step, attempt=attempt)
        FAULTS[kind].strike(job, replica)
    check_succeeded(job, like, attempts=4, preemption=1, infrastructure=1, application=1)
    for attempt, kind in enumerate(kinds):
        fault = FAULTS[kind]
        check_attempt(job, attempt, failure_class=fault.failure_class, reasons=fault.reasons, saves=fault.saves)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_a_parameter_server_job_replaces_what_was_lost_while_the_others_train_on(ground: Ground) -> None:
    roles: Manifest = {"chief": {}, "worker": {"replicas": 2}, "ps": {}, "evaluator": {}}
    job = ground.apply(digits("digits", "ParameterServer", roles=roles))
    job.wait_for_step(47)
    first = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in job.pods()}
    delete(job, "worker-1")
    job.wait_until("a worker of the second attempt", lambda status: world_is_ready(status, attempt=1))
    job.wait_for_step(max(event["step"] for event in job.events("step")) + 20)
    second = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in job.pods()}
    assert {name for name in first if first[name] != second[name]} == {"digits-worker-1"}
    assert {event["attempt"] for event in job.events("step")} == {0}
    delete(job, "ps-0")
    assert job.wait_for_end() == "Succeeded", job.story()
    status = job.status
    assert [(record["class"], record["replica"]) for record in status["attempts"][:2]] == [
        ("Preemption", "worker-1"),
        ("Preemption", "ps-0"),
    ]
    assert [record["stepsLost"] for record in status["attempts"][:2]] == [0, 0]
    assert status["restarts"]["total"] == 2
    assert status["progress"]["step"] == STEPS
    assert status["progress"]["metrics"]["accuracy"] > 0.9


@pytest.mark.timeout(900)
@pytest.mark.parametrize("strategy", ["DDP", pytest.param("FSDP", marks=pytest.mark.chaos)])
def test_an_elastic_job_goes_on_without_a_lost_worker_and_takes_in_its_successor(
    strategy: str, ground: Ground, uninterrupted: Uninterrupted
) -> None:
    like = uninterrupted(strategy)
    elastic = {"minReplicas": 1, "maxReplicas": 2, "shrinkAfterSeconds": 0, "growAfterSeconds": 3}
    job = ground.apply(apart(of_matrix(strategy, delay=0.25, elastic=elastic)))
    job.wait_for_step(47)
    FAULTS["supervisor-killed"].strike(job, "worker-0")
    assert job.wait_for_end() == "Succeeded", job.story()
    status = job.status
    # Its world of one worker may end right after its first step, too soon for anybody to see it.
    # A world of two that has waited for its lost worker ends as scaled too, and has no step.
    scaled = [record for record in status["attempts"] if record["reason"] == "Scaled"]
    assert any("lastStep" in record and record["lastStep"] > record["stepResumed"] for record in scaled), status["attempts"]
    assert trains(status, 2), status["world"]
    assert (status["restarts"]["total"], status["restarts"]["infrastructureCount"]) == (1, 1)
    failed = [(record["class"], record["replica"]) for record in status["attempts"] if "class" in record]
    assert failed == [("Infrastructure", "worker-0")]
    losses, whole = job.losses(), like.losses()
    assert sorted(losses) == list(range(1, STEPS + 1))
    assert max(abs(float.fromhex(loss) - float.fromhex(whole[step])) for step, loss in losses.items()) < 1e-6


@pytest.mark.timeout(900)
@parametrised("tests/cluster/test_pod_faults.py::test_a_job_goes_on_after")
def test_a_job_goes_on_after(fault: str, job: str, ground: Ground, uninterrupted: Uninterrupted) -> None:
    like, what = uninterrupted(job), FAULTS[fault]
    befallen = ground.apply(apart(of_matrix(job, **what.spec)))
    moment = Moment.of(f"{fault}/{job}", replicas=what.of(befallen.replicas))
    befallen.wait_for_step(moment.step)
    what.strike(befallen, moment.replica)
    check_succeeded(befallen, like, attempts=what.times + 1, **{what.failure_class.lower(): what.times})
    damaged = fault == "checkpoint-corrupted"
    if what.times:
        check_attempt(befallen, what.times - 1, failure_class=what.failure_class, reasons=what.reasons, saves=what.saves, damaged=damaged)
