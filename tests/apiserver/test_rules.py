"""The API server applies the rules of the CRD and the policy for changes, and they agree with Muster's own checks. No operator runs: the
tests write statuses."""

from __future__ import annotations

from typing import Any

import pytest

from muster.admission.changes import FIXED_WHILE_RUNNING
from muster.admission.validate import problems
from muster.api.job import TrainingJob
from tests.support.api_server.api import JOBS, ApiError, Object
from tests.support.api_server.cluster import Cluster
from tests.support.api_server.jobs import Jobs, job
from tests.support.rule_examples import RIGHT, WRONG
from tests.support.texts import absent
from tests.support.waiting import wait_until

AT = "2026-11-21T12:00:00Z"
REFUSED: Object = {"type": "Valid", "status": "False", "reason": "Invalid", "message": "wrong", "lastTransitionTime": AT}
STARTED: Object = {"admittedTime": AT, "attempts": [{"attempt": 0, "startTime": AT}]}
CHANGES: dict[str, Object] = {
    "preset": {"preset": "gpus"},
    "trainer": {"trainer": {"config": {"epochs": 3}, "image": "own:2"}},
    "options": {"options": {"gradientCompression": "FP16"}},
    "batch": {"batch": {"globalSize": 64}},
    "inputs": {"inputs": [{"name": "base", "source": "hf://org/tiny"}]},
    "communication": {"communication": "Gloo"},
    "checkpoint.storage": {"checkpoint": {"storage": {"uri": "s3://bucket"}}},
    "checkpoint.name": {"checkpoint": {"name": "other"}},
    "roles.*.resources": {"roles": {"worker": {"resources": {"limits": {"cpu": "2"}}}}},
    "roles.*.processesPerReplica": {"roles": {"worker": {"processesPerReplica": 2}}},
    "roles.*.resourceClaims": {"roles": {"worker": {"resourceClaims": [{"name": "gpus", "resourceClaimName": "a"}]}}},
    "roles.*.template": {"roles": {"worker": {"template": {"spec": {"volumes": []}}}}},
    "roles.*.replicas": {"roles": {"worker": {"replicas": 3}}},
}


@pytest.fixture(scope="module", autouse=True)
def _policy(cluster: Cluster) -> None:
    """The API server applies a new policy only after a moment."""
    jobs = Jobs(cluster.admin, cluster.namespace("policy"))
    having(jobs, STARTED)

    def refuses() -> bool:
        try:
            jobs.api.patch(f"{JOBS.format(jobs.namespace)}/digits?dryRun=All", {"spec": CHANGES["trainer"]})
        except ApiError:
            return True
        return False

    wait_until(refuses, "the policy for changes is in force")


def having(jobs: Jobs, status: Object, **spec: Any) -> None:
    jobs.submit(job("digits", **spec))
    jobs.replace_status("digits", status)


def refused(jobs: Jobs, spec: Object) -> str:
    with pytest.raises(ApiError) as caught:
        jobs.patch("digits", {"spec": spec})
    assert caught.value.status == 422
    return str(caught.value)


@pytest.mark.parametrize(
    "status",
    [{}, {"phase": "Pending", "conditions": [REFUSED]}, {**STARTED, "phase": "Suspended", "conditions": [REFUSED]}],
    ids=["nobody has looked at yet", "was refused", "was refused after a suspension"],
)
def test_a_job_without_running_pods_may_be_corrected(jobs: Jobs, status: Object) -> None:
    having(jobs, status)
    for change in CHANGES.values():
        jobs.patch("digits", {"spec": change})


@pytest.mark.parametrize(
    "status",
    [
        STARTED,
        {**STARTED, "phase": "Pending"},
        {**STARTED, "phase": "Running"},
        {**STARTED, "phase": "Running", "conditions": [REFUSED]},
        {**STARTED, "phase": "Recovering"},
    ],
    ids=["without a phase", "that waits for its pods", "that runs", "that runs and was edited badly", "that recovers"],
)
def test_fields_of_a_started_job_change_only_while_it_is_suspended(jobs: Jobs, status: Object) -> None:
    having(jobs, status)
    for field, change in CHANGES.items():
        assert absent(refused(jobs, change), f"{field}: ", "suspend: true") == []
    for change in CHANGES.values():
        jobs.patch("digits", {"spec": {**change, "suspend": True}})
        jobs.patch("digits", {"spec": {"suspend": False}})


def test_the_roles_of_a_started_job_change_only_while_it_is_suspended(jobs: Jobs) -> None:
    assert set(FIXED_WHILE_RUNNING) - set(CHANGES) == {"roles.*"}
    having(jobs, {**STARTED, "phase": "Running"}, strategy="ParameterServer", roles={"worker": {}, "ps": {}})
    change: Object = {"roles": {"evaluator": {}}}
    assert absent(refused(jobs, change), "spec.roles: ", "suspend: true") == []
    jobs.patch("digits", {"spec": {**change, "suspend": True}})


@pytest.mark.parametrize("phase", [None, "Running", "Succeeded"])
def test_kubectl_scale_changes_the_replicas_only_of_a_job_without_running_pods(jobs: Jobs, phase: str | None) -> None:
    having(jobs, {**STARTED, "phase": phase} if phase else {})
    if phase is None:
        jobs.scale("digits", 3)
        return
    with pytest.raises(ApiError) as caught:
        jobs.scale("digits", 3)
    remedy = "suspend: true" if phase == "Running" else "has ended"
    assert (caught.value.status, absent(str(caught.value), remedy)) == (422, [])


def test_kubectl_scale_changes_the_replicas_of_an_elastic_job(jobs: Jobs) -> None:
    elastic = {"elastic": {"minReplicas": 1, "maxReplicas": 4}, "batch": {"globalSize": 64}}
    having(jobs, {**STARTED, "phase": "Running"}, **elastic)
    jobs.scale("digits", 3)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_change_of_an_ended_job_is_refused_with_a_remedy(jobs: Jobs, phase: str) -> None:
    having(jobs, {**STARTED, "phase": phase})
    for change in CHANGES.values():
        for spec in (change, {**change, "suspend": True}):
            message = refused(jobs, spec)
            assert absent(message, "spec: ", "has ended") == []
            assert "suspend: true" not in message
    jobs.patch("digits", {"spec": {"ttlSecondsAfterFinished": 60}})


@pytest.mark.parametrize("spec", WRONG, ids=str)
def test_the_api_server_refuses_the_jobs_that_muster_refuses_with_equal_messages(jobs: Jobs, spec: Object) -> None:
    [problem] = problems(TrainingJob.model_validate(job("digits", **spec)))
    with pytest.raises(ApiError) as caught:
        jobs.submit(job("digits", **spec))
    field = problem.field.rpartition(".")[2]
    message = problem.message.split(", not ")[0]
    assert f"{field}: {message}" in str(caught.value)


def test_a_name_that_is_too_long_is_refused_at_its_field_with_the_limit(jobs: Jobs) -> None:
    with pytest.raises(ApiError) as caught:
        jobs.submit(job("d" * 45))
    assert absent(str(caught.value), "metadata.name: must be at most 44", "-evaluator-4095") == []
    assert "<nil>" not in str(caught.value)


@pytest.mark.parametrize("spec", RIGHT, ids=str)
def test_the_api_server_accepts_the_jobs_that_muster_accepts(jobs: Jobs, spec: Object) -> None:
    assert problems(TrainingJob.model_validate(job("digits", **spec))) == []
    jobs.submit(job("digits", **spec))
