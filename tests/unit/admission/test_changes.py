"""What may change in a job that exists, and what only while it is suspended."""

import pytest

from muster.admission.changes import changes
from muster.api.job import TrainingJob


def job(**spec: object) -> TrainingJob:
    base = {"strategy": "DDP", "trainer": {"task": "digits"}, "roles": {"worker": {"replicas": 2}}}
    return TrainingJob.model_validate({"metadata": {"name": "digits"}, "spec": {**base, **spec}})


def said(old: TrainingJob, new: TrainingJob) -> list[str]:
    return [str(problem) for problem in changes(old, new)]


RUNNING = "cannot be changed while the job runs: set suspend: true first, or in the same change"
ELASTIC = {"elastic": {"minReplicas": 1, "maxReplicas": 4}}


def worker(**fields: object) -> dict:
    return {"roles": {"worker": {"replicas": 2, **fields}}}


WHILE_SUSPENDED = [
    ({"trainer": {"task": "digits", "config": {"epochs": 3}}}, f"spec.trainer: {RUNNING}"),
    ({"batch": {"globalSize": 64}}, f"spec.batch: {RUNNING}"),
    ({"options": {"loop": "Fit"}}, f"spec.options: {RUNNING}"),
    ({"communication": "Gloo"}, f"spec.communication: {RUNNING}"),
    ({"checkpoint": {"storage": {"uri": "s3://a"}}}, f"spec.checkpoint.storage: {RUNNING}"),
    ({"checkpoint": {"name": "other"}}, f"spec.checkpoint.name: {RUNNING}"),
    (worker(template={"spec": {"nodeSelector": {"a": "b"}}}), f"spec.roles.worker.template: {RUNNING}"),
    (worker(resources={"limits": {"cpu": 1}}), f"spec.roles.worker.resources: {RUNNING}"),
    (worker(processesPerReplica=2), f"spec.roles.worker.processesPerReplica: {RUNNING}"),
    (worker(replicas=3), f"spec.roles.worker.replicas: {RUNNING}, or write elastic"),
    (
        {"roles": {"worker": {"replicas": 2}, "evaluator": {}}},
        f"spec.roles: {RUNNING}",
    ),
]


@pytest.mark.parametrize(("spec", "message"), WHILE_SUSPENDED)
def test_what_runs_was_made_from_is_fixed_until_the_job_is_suspended(spec, message):
    assert said(job(), job(**spec)) == [message]
    assert said(job(suspend=True), job(suspend=True, **spec)) == []
    assert said(job(suspend=True), job(**spec)) == [], "queueing systems lay node selectors in with the update that ends a suspension"
    assert said(job(), job(suspend=True, **spec)) == []


@pytest.mark.parametrize("spec", [{"strategy": "FSDP"}, {"managedBy": "kueue.x-k8s.io/multikueue"}])
def test_what_a_job_is_and_whose_never_changes(spec):
    (field,) = spec
    was = {"strategy": "DDP", "managedBy": "muster.dev/operator"}[field]
    expected = [f"spec.{field}: cannot be changed from {was}: delete the job and apply it again"]
    assert said(job(), job(**spec)) == expected
    assert said(job(suspend=True), job(suspend=True, **spec)) == expected


def test_an_elastic_job_may_change_its_number_of_workers():
    assert said(job(**ELASTIC), job(**ELASTIC, **worker(replicas=4))) == []


@pytest.mark.parametrize(
    "spec", [{"suspend": True}, {"checkpoint": {"keep": 5, "everySteps": 7}}, {"recovery": {"application": {"limit": 9}}}, ELASTIC, {}]
)
def test_budgets_limits_and_suspension_may_change_at_any_time(spec):
    assert said(job(), job(**spec)) == []


def test_one_worker_written_out_is_the_one_worker_of_the_default():
    assert said(job(roles={}), job(roles={"worker": {"replicas": 1}})) == []
