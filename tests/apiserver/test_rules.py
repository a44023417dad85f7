"""What the API server answers by itself, by the rules of the definition. No operator runs here: statuses are written by hand."""

from __future__ import annotations

import pytest
from tests.apiserver.stage.api import ApiError, Object
from tests.apiserver.stage.jobs import Jobs, job

from muster.admission.validate import problems
from muster.api.job import TrainingJob

AT = "2026-11-21T12:00:00Z"
REFUSED: Object = {"type": "Valid", "status": "False", "reason": "Invalid", "message": "wrong", "lastTransitionTime": AT}
STARTED: Object = {"admittedTime": AT, "attempts": [{"attempt": 0, "startTime": AT}]}
CHANGES: dict[str, Object] = {
    "trainer": {"trainer": {"config": {"epochs": 3}, "image": "own:2"}},
    "batch": {"batch": {"globalSize": 64}},
    "communication": {"communication": "Gloo"},
    "checkpoint.storage": {"checkpoint": {"storage": {"uri": "s3://bucket"}}},
    "roles.worker.resources": {"roles": {"worker": {"resources": {"limits": {"cpu": "2"}}}}},
    "roles.worker.template": {"roles": {"worker": {"template": {"spec": {"volumes": []}}}}},
    "roles.worker.replicas": {"roles": {"worker": {"replicas": 3}}},
}


def having(jobs: Jobs, status: Object) -> None:
    made = jobs.submit(job("digits"))
    jobs.api.request("PUT", f"{jobs.path('digits')}/status", {**made, "status": status})


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
def test_a_job_of_which_nothing_runs_is_corrected_in_place(jobs: Jobs, status: Object) -> None:
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
def test_what_a_started_job_was_made_from_changes_only_with_a_suspension(jobs: Jobs, status: Object) -> None:
    having(jobs, status)
    for field, change in CHANGES.items():
        assert f"{field}: cannot be changed while the job runs: set suspend: true first" in refused(jobs, change)
    for change in CHANGES.values():
        jobs.patch("digits", {"spec": {**change, "suspend": True}})
        jobs.patch("digits", {"spec": {"suspend": False}})


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_of_a_job_that_has_ended_it_is_said_that_it_must_be_made_anew(jobs: Jobs, phase: str) -> None:
    having(jobs, {**STARTED, "phase": phase})
    for change in CHANGES.values():
        for spec in (change, {**change, "suspend": True}):
            said = refused(jobs, spec)
            assert "spec: cannot be changed, for the job has ended: delete it and apply it anew, or apply it under another name" in said
            assert "while the job runs" not in said
    jobs.patch("digits", {"spec": {"ttlSecondsAfterFinished": 60}})


ELASTIC = {"minReplicas": 1, "maxReplicas": 4}
SIZE = {"globalSize": 64}
WRONG: list[Object] = [
    {"elastic": ELASTIC},
    {"elastic": ELASTIC, "batch": {**SIZE, "learningRateScaling": "Linear"}},
    {"elastic": ELASTIC, "batch": SIZE, "trainer": {"command": ["x"], "supervisor": "Disabled"}},
    {"trainer": {"task": "digits", "image": ""}},
    {"trainer": {"task": "digits", "image": "own image"}},
    {"trainer": {"module": "../x"}},
    {"trainer": {"module": "my pkg"}},
]
RIGHT: list[Object] = [
    {"elastic": ELASTIC, "batch": SIZE},
    {"elastic": ELASTIC, "batch": SIZE, "trainer": {"script": "train.py"}},
    {"elastic": ELASTIC, "batch": SIZE, "trainer": {"module": "my_pkg.model", "image": "own.example.com:5000/ml/own:1"}},
    {"elastic": ELASTIC, "batch": SIZE, "trainer": {"command": ["x"], "image": "own:1"}},
]


@pytest.mark.parametrize("spec", WRONG, ids=str)
def test_what_validation_refuses_is_refused_at_once_in_the_same_words(jobs: Jobs, spec: Object) -> None:
    [problem] = problems(TrainingJob.model_validate(job("digits", **spec)))
    with pytest.raises(ApiError) as caught:
        jobs.submit(job("digits", **spec))
    field, words = problem.field.removeprefix("spec."), problem.message.split(", not ")[0]
    assert f"{field}: {words}" in str(caught.value)


@pytest.mark.parametrize("spec", RIGHT, ids=str)
def test_what_validation_accepts_is_accepted(jobs: Jobs, spec: Object) -> None:
    assert problems(TrainingJob.model_validate(job("digits", **spec))) == []
    jobs.submit(job("digits", **spec))
