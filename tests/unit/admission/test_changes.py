"""The fields of a job that may change at any time, and the ones that may change only while it is suspended."""

import pytest

from muster.admission.changes import changes
from muster.api.job import TrainingJob


def job(**spec: object) -> TrainingJob:
    base = {"strategy": "DDP", "trainer": {"task": "digits"}, "roles": {"worker": {"replicas": 2}}}
    return TrainingJob.model_validate({"metadata": {"name": "digits"}, "spec": {**base, **spec}})


def messages(old: TrainingJob, new: TrainingJob) -> list[str]:
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
    (worker(resourceClaims=[{"name": "gpus", "resourceClaimName": "a"}]), f"spec.roles.worker.resourceClaims: {RUNNING}"),
    (worker(replicas=3), f"spec.roles.worker.replicas: {RUNNING}, or write elastic"),
    (
        {"roles": {"worker": {"replicas": 2}, "evaluator": {}}},
        f"spec.roles: {RUNNING}",
    ),
]


@pytest.mark.parametrize(("spec", "message"), WHILE_SUSPENDED)
def test_fields_that_pods_depend_on_change_only_while_the_job_is_suspended(spec, message):
    assert messages(job(), job(**spec)) == [message]
    assert messages(job(suspend=True), job(suspend=True, **spec)) == []
    assert messages(job(suspend=True), job(**spec)) == [], "queueing systems lay node selectors in with the update that ends a suspension"
    assert messages(job(), job(suspend=True, **spec)) == []


@pytest.mark.parametrize("spec", [{"strategy": "FSDP"}, {"managedBy": "kueue.x-k8s.io/multikueue"}])
def test_the_strategy_and_the_manager_of_a_job_never_change(spec):
    (field,) = spec
    before = {"strategy": "DDP", "managedBy": "muster.dev/operator"}[field]
    expected = [f"spec.{field}: cannot be changed from {before}: delete the job and apply it again"]
    assert messages(job(), job(**spec)) == expected
    assert messages(job(suspend=True), job(suspend=True, **spec)) == expected


def test_an_elastic_job_may_change_its_number_of_workers():
    assert messages(job(**ELASTIC), job(**ELASTIC, **worker(replicas=4))) == []


@pytest.mark.parametrize(
    "spec", [{"suspend": True}, {"checkpoint": {"keep": 5, "everySteps": 7}}, {"recovery": {"application": {"limit": 9}}}, ELASTIC, {}]
)
def test_budgets_limits_and_suspension_may_change_at_any_time(spec):
    assert messages(job(), job(**spec)) == []


def test_an_explicit_single_worker_is_no_change_from_the_default():
    assert messages(job(roles={}), job(roles={"worker": {"replicas": 1}})) == []
