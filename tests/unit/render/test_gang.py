"""The PodGroup of each scheduler, and its members. Written by hand from the schedulers' public API types."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.api.job import TrainingJob
from muster.api.spec import GangMode
from muster.render.addresses import ClusterAddresses
from muster.render.defaults import JobDefaults
from muster.render.gang import SCHEDULERS, chosen, pod_group, priority_class_of, with_count
from muster.render.manifests import render_replica
from muster.render.template_hash import is_outdated
from tests.support.golden_jobs import IMAGES, UID, job_of

NATIVE, COSCHEDULING, VOLCANO = "scheduling.k8s.io", "scheduling.x-k8s.io", "scheduling.volcano.sh"


def in_gang(group: str | None, **spec: Any) -> TrainingJob:
    """A job that uses the gang scheduler with this API group."""
    job = job_of({"strategy": "DDP", "trainer": {"task": "digits"}, "roles": {"worker": {"replicas": 3}}, **spec})
    return job.with_status(replace(job.status, gang_scheduler=group))


def pod(job: TrainingJob, role: str = "worker", **options: Any) -> dict[str, Any]:
    addresses = ClusterAddresses(job.metadata.name, job.metadata.namespace)
    return render_replica(job, role, index=0, attempt=0, addresses=addresses, images=IMAGES, **options)


@pytest.mark.parametrize(
    ("group", "spec", "version", "expected"),
    [
        (NATIVE, {}, "v1beta1", {"schedulingPolicy": {"gang": {"minCount": 3}}, "disruptionMode": {"all": {}}}),
        (
            NATIVE,
            {"elastic": {"minReplicas": 2, "maxReplicas": 3}, "scheduling": {"priorityClassName": "high", "queue": "research"}},
            "v1beta1",
            {"schedulingPolicy": {"gang": {"minCount": 3}}, "disruptionMode": {"single": {}}, "priorityClassName": "high"},
        ),
        (COSCHEDULING, {"scheduling": {"priorityClassName": "high"}}, "v1alpha1", {"minMember": 3}),
        (VOLCANO, {}, "v1beta1", {"minMember": 3}),
        (
            VOLCANO,
            {"scheduling": {"priorityClassName": "high", "queue": "research"}},
            "v1beta1",
            {"minMember": 3, "priorityClassName": "high", "queue": "research"},
        ),
    ],
)
def test_each_scheduler_gets_its_own_kind_of_pod_group(group: str, spec: dict[str, Any], version: str, expected: dict[str, Any]) -> None:
    job = in_gang(group, **spec)
    manifest = pod_group(job, SCHEDULERS[group], count=3, priority_class=priority_class_of(job, ()))
    assert (manifest["apiVersion"], manifest["kind"], manifest["spec"]) == (f"{group}/{version}", "PodGroup", expected)
    assert manifest["metadata"]["name"] == "job"
    [owner] = manifest["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("TrainingJob", UID, True)
    assert manifest["metadata"]["labels"]["muster.dev/job-name"] == "job"


def test_a_new_count_does_not_change_other_fields_of_the_pod_group() -> None:
    group = {"metadata": {"resourceVersion": "7"}, "spec": {"priority": 5, "schedulingPolicy": {"gang": {"minCount": 3}}}}
    updated = with_count(group, SCHEDULERS[NATIVE], 2)
    assert updated == {"metadata": {"resourceVersion": "7"}, "spec": {"priority": 5, "schedulingPolicy": {"gang": {"minCount": 2}}}}
    assert with_count(updated, SCHEDULERS[NATIVE], 2) == updated


@pytest.mark.parametrize(
    ("group", "label", "annotation", "field", "scheduler"),
    [
        (NATIVE, None, None, {"podGroupName": "job"}, None),
        (COSCHEDULING, "job", None, None, "scheduler-plugins-scheduler"),
        (VOLCANO, None, "job", None, "volcano"),
        ("", None, None, None, None),
        (None, None, None, None, None),
        ("scheduling.example.com", None, None, None, None),
    ],
)
def test_a_pod_names_its_pod_group_as_its_scheduler_expects(
    group: str | None, label: str | None, annotation: str | None, field: dict[str, str] | None, scheduler: str | None
) -> None:
    manifest = pod(in_gang(group))
    assert manifest["metadata"]["labels"].get("scheduling.x-k8s.io/pod-group") == label
    assert (manifest["metadata"].get("annotations") or {}).get("scheduling.k8s.io/group-name") == annotation
    assert manifest["spec"].get("schedulingGroup") == field
    assert manifest["spec"].get("schedulerName") == scheduler


def test_the_scheduler_name_of_a_template_is_not_changed() -> None:
    roles = {"worker": {"replicas": 2, "template": {"spec": {"schedulerName": "mine"}}}}
    assert pod(in_gang(COSCHEDULING, roles=roles))["spec"]["schedulerName"] == "mine"


@pytest.mark.parametrize(
    ("scheduling", "default", "template", "expected"),
    [
        ({"priorityClassName": "high"}, "low", "low", "high"),
        ({}, "low", "high", "high"),
        ({}, "low", None, "low"),
        ({}, None, None, ""),
    ],
)
def test_a_pod_group_and_its_pods_have_one_priority_class(
    scheduling: dict[str, str], default: str | None, template: str | None, expected: str
) -> None:
    def naming(name: str | None) -> dict[str, Any]:
        return {"spec": {"priorityClassName": name}} if name else {}

    roles = {"chief": {"template": naming(template)}, "worker": {"replicas": 2, "template": naming("other")}}
    job = in_gang(NATIVE, strategy="ParameterServer", roles={**roles, "ps": {"replicas": 1}}, scheduling=scheduling)
    defaults = (JobDefaults(template=naming(default)),)
    assert priority_class_of(job, defaults) == expected
    for role in (*roles, "ps"):
        assert pod(job, role, defaults=defaults)["spec"].get("priorityClassName", "") == expected
        assert pod(job, role, defaults=defaults, priority_class="earlier")["spec"]["priorityClassName"] == "earlier"
    worker = pod(job.with_status(replace(job.status, gang_scheduler=COSCHEDULING)), defaults=defaults)
    assert worker["spec"]["priorityClassName"] == "other"


def test_a_pod_group_is_outdated_if_more_than_its_count_differs() -> None:
    def group(count: int = 3, **spec: Any) -> dict[str, Any]:
        job = in_gang(NATIVE, **spec)
        return pod_group(job, SCHEDULERS[NATIVE], count=count, priority_class=priority_class_of(job, ()))

    existing = group()
    existing["spec"]["priority"] = 0  # by admission
    assert not is_outdated(existing, group(count=2))
    assert is_outdated(existing, group(scheduling={"priorityClassName": "high"}))
    assert is_outdated(existing, group(elastic={"minReplicas": 2, "maxReplicas": 3}))
    assert is_outdated({"metadata": {}}, group())


def test_an_object_of_an_older_release_has_its_template_hash_in_the_older_label() -> None:
    wanted = {"metadata": {"labels": {"muster.dev/template-hash": "1a2b"}}}
    assert not is_outdated({"metadata": {"labels": {"muster.dev/form": "1a2b"}}}, wanted)
    assert is_outdated({"metadata": {"labels": {"muster.dev/form": "other"}}}, wanted)


def test_an_evaluator_is_not_a_member_of_the_gang() -> None:
    roles = {"worker": {"replicas": 2}, "evaluator": {"replicas": 1}}
    job = in_gang(NATIVE, strategy="MultiWorkerMirrored", roles=roles)
    assert "schedulingGroup" in pod(job)["spec"]
    assert "schedulingGroup" not in pod(job, "evaluator")["spec"]


@pytest.mark.parametrize(
    ("mode", "served", "expected"),
    [
        (GangMode.AUTO, (), None),
        (GangMode.REQUIRED, (), None),
        (GangMode.NEVER, (NATIVE,), None),
        (GangMode.AUTO, (VOLCANO, NATIVE), VOLCANO),
        (GangMode.REQUIRED, (NATIVE,), NATIVE),
    ],
)
def test_a_job_uses_the_first_available_gang_scheduler_unless_it_is_off(
    mode: GangMode, served: tuple[str, ...], expected: str | None
) -> None:
    scheduler = chosen(mode, served)
    assert (scheduler.group if scheduler else None) == expected
