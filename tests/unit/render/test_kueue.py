"""The Workload of a job in a queue of Kueue, and what Kueue's answer means."""

from __future__ import annotations

from typing import Any

import pytest

from muster.control.queues import Kueue, view_of
from muster.render.kueue import (
    admitted_count,
    flavors_of,
    placed,
    placement_of,
    released,
    with_given_back,
    with_pods_ready,
    with_priority,
    workload,
)
from muster.render.kueue_versions import priority_class_name
from tests.support.golden_jobs import IMAGES, job_of


def ddp(**spec: Any) -> dict[str, Any]:
    return {"strategy": "DDP", "trainer": {"task": "digits"}, **spec}


def answered(*conditions: tuple[str, str, str], **status: Any) -> dict[str, Any]:
    """A Workload with these conditions: type, status and reason."""
    every = [{"type": kind, "status": value, "reason": reason, "message": reason.lower()} for kind, value, reason in conditions]
    return {"metadata": {"generation": 1}, "status": {"conditions": every, **status}}


def test_a_workload_has_a_pod_set_for_each_role_with_what_its_pods_need() -> None:
    worker = {"replicas": 3, "resources": {"requests": {"cpu": "2"}}, "template": {"spec": {"nodeSelector": {"pool": "a"}}}}
    job = job_of(
        {
            **ddp(),
            "strategy": "MultiWorkerMirrored",
            "roles": {"worker": worker, "evaluator": {"replicas": 1}},
            "scheduling": {"queue": "team", "priorityClassName": "high"},
        }
    )
    spec = with_priority(workload(job, IMAGES, (), "v1beta2"), 7)["spec"]
    assert [(each["name"], each["count"]) for each in spec["podSets"]] == [("worker", 3), ("evaluator", 1)]
    pod = spec["podSets"][0]["template"]["spec"]
    assert (pod["nodeSelector"], pod["containers"][0]["resources"]["requests"]["cpu"]) == ({"pool": "a"}, "2")
    assert "volumes" not in pod
    assert (spec["queueName"], priority_class_name(spec), spec["priority"]) == ("team", "high", 7)


def test_a_version_of_kueues_api_has_the_fields_that_it_reads_and_the_same_digest() -> None:
    job = job_of(ddp(scheduling={"queue": "team", "priorityClassName": "high"}))
    newer, older = (workload(job, IMAGES, (), version) for version in ("v1beta2", "v1beta1"))
    assert (newer["apiVersion"], older["apiVersion"]) == ("kueue.x-k8s.io/v1beta2", "kueue.x-k8s.io/v1beta1")
    reference = {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "high"}
    assert newer["spec"] == {"queueName": "team", "podSets": older["spec"]["podSets"], "priorityClassRef": reference}
    names = {"priorityClassName": "high", "priorityClassSource": "scheduling.k8s.io/priorityclass"}
    assert older["spec"] == {"queueName": "team", "podSets": older["spec"]["podSets"], **names}
    assert priority_class_name(newer["spec"]) == priority_class_name(older["spec"]) == "high"
    assert newer["metadata"] == older["metadata"], "a job keeps its place in its queue when the version changes"


def test_a_workload_asks_for_the_devices_and_the_resources_of_the_whole_pod() -> None:
    claim = {"name": "gpu", "resourceClaimTemplateName": "h100"}
    limits = {"limits": {"nvidia.com/gpu": 8}}
    job = job_of(
        ddp(
            roles={"worker": {"replicas": 1, "resourceClaims": [claim], "template": {"spec": {"resources": limits}}}},
            scheduling={"queue": "team"},
        )
    )
    pod = workload(job, IMAGES, (), "v1beta2")["spec"]["podSets"][0]["template"]["spec"]
    assert (pod["resourceClaims"], pod["resources"]) == ([claim], limits)
    assert pod["containers"][0]["resources"]["claims"] == [{"name": "gpu"}]


@pytest.mark.parametrize(("least", "counts"), [(1, (3, 1)), (3, (3, None))])
def test_an_elastic_job_may_be_admitted_with_its_smallest_world(least: int, counts: tuple[int, int | None]) -> None:
    elastic = {"minReplicas": least, "maxReplicas": 4}
    job = job_of(ddp(roles={"worker": {"replicas": 3}}, elastic=elastic, batch={"globalSize": 12}, scheduling={"queue": "team"}))
    [pod_set] = workload(job, IMAGES, (), "v1beta2")["spec"]["podSets"]
    assert (pod_set["count"], pod_set.get("minCount")) == counts


def elastic_workload(given: int | None, *, reclaimable: int = 0) -> dict[str, Any]:
    """A Workload of 4 workers that is admitted with `given` of them."""
    assignment = {"name": "worker", **({"count": given} if given else {})}
    status = {"admission": {"podSetAssignments": [assignment]}, "reclaimablePods": [{"name": "worker", "count": reclaimable}]}
    return {"spec": {"podSets": [{"name": "worker", "count": 4}]}, "status": status}


@pytest.mark.parametrize(("given", "reclaimable", "count"), [(4, 0, 4), (None, 0, 4), (3, 0, 3), (3, 1, 3), (3, 2, 2), (4, 3, 1)], ids=str)
def test_the_quota_of_a_pod_set_is_what_was_given_less_what_was_given_back(given: int | None, reclaimable: int, count: int) -> None:
    existing = elastic_workload(given, reclaimable=reclaimable)
    assert admitted_count(existing, "worker") == count
    assert admitted_count(existing, "other") is None
    for needed in range(1, 6):
        after = with_given_back(existing, "worker", needed)
        assert admitted_count(after, "worker") == min(count, needed)
        assert (after == existing) is (needed >= count)


def test_a_workload_that_is_not_admitted_gives_nothing_back() -> None:
    existing = {"spec": {"podSets": [{"name": "worker", "count": 4}]}, "status": {"conditions": []}}
    assert admitted_count(existing, "worker") is None
    assert with_given_back(existing, "worker", 1) == existing


def test_a_workload_says_whether_all_pods_run_and_not_after_it_was_evicted() -> None:
    now = "2026-01-01T00:00:00Z"
    existing = answered(("QuotaReserved", "True", "R"), ("Admitted", "True", "A"))
    assert with_pods_ready(existing, False, now) == existing
    ready = with_pods_ready(existing, True, now)
    assert states(ready)["PodsReady"] == "True"
    assert with_pods_ready(ready, True, now) == ready
    assert states(with_pods_ready(ready, False, now))["PodsReady"] == "False"
    assert states(released(ready, now))["PodsReady"] == "False"
    assert "PodsReady" not in states(released(existing, now))


def test_the_time_limit_of_a_recovery_begins_with_the_recovery() -> None:
    now, waiting = "2026-01-01T00:00:00Z", answered(("Admitted", "True", "A"), ("PodsReady", "False", "WaitForStart"))
    reasons = []
    for is_ready in (True, False, True, False):
        waiting = with_pods_ready(waiting, is_ready, now)
        reasons += [each["reason"] for each in waiting["status"]["conditions"] if each["type"] == "PodsReady"]
    assert reasons == ["Started", "WaitForRecovery", "Recovered", "WaitForRecovery"]
    [ended] = [each for each in released(waiting, now)["status"]["conditions"] if each["type"] == "PodsReady"]
    assert ended["reason"] == "WaitForStart"


def states(existing: dict[str, Any]) -> dict[str, str]:
    return {each["type"]: each["status"] for each in existing["status"]["conditions"]}


@pytest.mark.parametrize(
    ("existing", "admitted", "words"),
    [
        (None, False, "does not exist"),
        ({"metadata": {}}, False, "has not processed"),
        (answered(("QuotaReserved", "False", "Pending")), False, "Pending"),
        (answered(("QuotaReserved", "True", "Reserved")), False, "Reserved"),
        (answered(("QuotaReserved", "True", "Reserved"), ("Admitted", "True", "Admitted")), True, ""),
        (answered(("QuotaReserved", "True", "R"), ("Admitted", "True", "A"), ("Evicted", "True", "Preempted")), False, "Preempted"),
    ],
)
def test_a_job_may_run_while_its_workload_is_admitted_and_not_evicted(existing: Any, admitted: bool, words: str) -> None:
    view = view_of(existing, "team")
    assert view.admitted is admitted
    assert words in view.message


@pytest.mark.parametrize(
    ("reason", "requeued"),
    [
        ("Preempted", "True"),
        ("NodeFailures", "True"),
        ("PodsReadyTimeout", "False"),
        ("AdmissionCheck", "False"),
        ("LocalQueueStopped", "False"),
        ("Deactivated", None),
        ("DeactivatedDueToRequeuingLimitExceeded", None),
    ],
)
def test_an_evicted_workload_gives_its_quota_back_and_is_queued_if_that_is_allowed(reason: str, requeued: str | None) -> None:
    existing = answered(
        ("QuotaReserved", "True", "R"), ("Admitted", "True", "A"), ("Evicted", "True", reason), admission={"clusterQueue": "q"}
    )
    status = released(existing, "2026-01-01T00:00:00Z")["status"]
    assert "admission" not in status
    states = {each["type"]: each["status"] for each in status["conditions"]}
    assert (states["QuotaReserved"], states["Admitted"], states["Evicted"], states.get("Requeued")) == ("False", "False", "True", requeued)


def test_pods_go_where_their_quota_is() -> None:
    assignment = {"name": "worker", "flavors": {"cpu": "spot", "memory": "spot"}}
    updates = [{"name": "worker", "nodeSelector": {"rack": "7"}}, {"name": "evaluator", "nodeSelector": {"rack": "8"}}]
    existing = answered(admission={"podSetAssignments": [assignment]}, admissionChecks=[{"podSetUpdates": updates}])
    assert flavors_of(existing) == {"worker": ("spot",)}
    toleration = {"key": "spot", "operator": "Exists"}
    flavor = {"spec": {"nodeLabels": {"pool": "spot"}, "tolerations": [toleration]}}
    pod = placed({"spec": {"nodeSelector": {"own": "1"}}}, placement_of(existing, "worker", [flavor]))
    assert pod["spec"] == {"nodeSelector": {"own": "1", "pool": "spot", "rack": "7"}, "tolerations": [toleration]}


TOPOLOGY = {
    "podset-required-topology": ("required", "example.com/rack", "example.com/rack"),
    "podset-preferred-topology": ("preferred", "example.com/rack", "example.com/rack"),
    "podset-unconstrained-topology": ("unconstrained", "true", True),
    "podset-slice-required-topology": ("podSetSliceRequiredTopology", "example.com/rack", "example.com/rack"),
    "podset-slice-size": ("podSetSliceSize", "2", 2),
    "podset-group-name": ("podSetGroupName", "all", "all"),
}


def test_annotations_of_a_roles_pods_become_the_topology_request_of_its_pod_set() -> None:
    annotations = {f"kueue.x-k8s.io/{name}": value for name, (_, value, _) in TOPOLOGY.items()}
    roles = {"worker": {"replicas": 2, "template": {"metadata": {"annotations": annotations}}}, "evaluator": {"replicas": 1}}
    job = job_of({**ddp(), "strategy": "MultiWorkerMirrored", "roles": roles, "scheduling": {"queue": "team"}})
    worker, evaluator = workload(job, IMAGES, (), "v1beta2")["spec"]["podSets"]
    assert worker["topologyRequest"] == {**{name: value for name, _, value in TOPOLOGY.values()}, "podIndexLabel": "muster.dev/index"}
    assert "topologyRequest" not in evaluator


@pytest.mark.parametrize(("asked", "implied"), [({"required": "rack"}, False), ({}, True)])
def test_pods_that_kueue_places_are_marked_and_held_back_until_it_does(asked: dict[str, Any], implied: bool) -> None:
    assignment = {"name": "worker", "flavors": {"cpu": "racks"}, "topologyAssignment": {"levels": ["rack"]}}
    existing = answered(admission={"podSetAssignments": [assignment]})
    existing["metadata"]["name"], existing["spec"] = "digits", {"podSets": [{"name": "worker", "topologyRequest": asked}]}
    pod = placed({"metadata": {"labels": {"own": "1"}}, "spec": {}}, placement_of(existing, "worker", []))
    assert pod["spec"] == {"schedulingGates": [{"name": "kueue.x-k8s.io/topology"}]}
    assert pod["metadata"]["labels"] == {"own": "1", "kueue.x-k8s.io/podset": "worker"}
    expected = {"kueue.x-k8s.io/workload": "digits"} | ({"kueue.x-k8s.io/podset-unconstrained-topology": "true"} if implied else {})
    assert pod["metadata"]["annotations"] == expected


@pytest.mark.parametrize(
    ("kueue", "groups", "gang", "refused"),
    [
        (Kueue(enabled=True, version="v1beta2"), (), "Auto", False),
        (Kueue(enabled=True), (), "Auto", True),
        (Kueue(), ("scheduling.k8s.io",), "Auto", True),
        (Kueue(), ("scheduling.volcano.sh",), "Auto", False),
        (Kueue(), ("scheduling.volcano.sh",), "Never", True),
    ],
)
def test_a_job_with_a_queue_is_invalid_if_no_component_holds_its_pods(
    kueue: Kueue, groups: tuple[str, ...], gang: str, refused: bool
) -> None:
    job = job_of(ddp(scheduling={"queue": "team", "gang": gang}))
    assert [each.reason for each in kueue.problems(job, groups)] == (["QueueUnavailable"] if refused else [])
    assert kueue.problems(job_of(ddp()), groups) == []
