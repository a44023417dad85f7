"""The API server applies the rules of the CRD, and they agree with Muster's own checks. No operator runs: the tests write statuses."""

from __future__ import annotations

import pytest

from muster.admission.validate import problems
from muster.api.job import TrainingJob
from tests.support.api_server.api import ApiError, Object
from tests.support.api_server.jobs import Jobs, job
from tests.support.rule_examples import RIGHT, WRONG
from tests.support.texts import absent

AT = "2026-11-21T12:00:00Z"
REFUSED: Object = {"type": "Valid", "status": "False", "reason": "Invalid", "message": "wrong", "lastTransitionTime": AT}
STARTED: Object = {"admittedTime": AT, "attempts": [{"attempt": 0, "startTime": AT}]}
CHANGES: dict[str, Object] = {
    "trainer": {"trainer": {"config": {"epochs": 3}, "image": "own:2"}},
    "batch": {"batch": {"globalSize": 64}},
    "communication": {"communication": "Gloo"},
    "checkpoint.storage": {"checkpoint": {"storage": {"uri": "s3://bucket"}}},
    "roles.*.resources": {"roles": {"worker": {"resources": {"limits": {"cpu": "2"}}}}},
    "roles.*.template": {"roles": {"worker": {"template": {"spec": {"volumes": []}}}}},
    "roles.*.replicas": {"roles": {"worker": {"replicas": 3}}},
}


def having(jobs: Jobs, status: Object) -> None:
    jobs.submit(job("digits"))
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


@pytest.mark.parametrize("spec", RIGHT, ids=str)
def test_the_api_server_accepts_the_jobs_that_muster_accepts(jobs: Jobs, spec: Object) -> None:
    assert problems(TrainingJob.model_validate(job("digits", **spec))) == []
    jobs.submit(job("digits", **spec))
