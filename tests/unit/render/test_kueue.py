"""The Workload of a job in a queue of Kueue, and what Kueue's answer means."""

from __future__ import annotations

from typing import Any

import pytest

from muster.control.queues import Kueue, view_of
from muster.render.kueue import flavors_of, placed, placement_of, released, with_priority, workload
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
    spec = with_priority(workload(job, IMAGES, ()), 7)["spec"]
    assert [(each["name"], each["count"]) for each in spec["podSets"]] == [("worker", 3), ("evaluator", 1)]
    pod = spec["podSets"][0]["template"]["spec"]
    assert (pod["nodeSelector"], pod["containers"][0]["resources"]["requests"]["cpu"]) == ({"pool": "a"}, "2")
    assert "volumes" not in pod
    assert (spec["queueName"], spec["priorityClassName"], spec["priority"]) == ("team", "high", 7)


def test_an_elastic_job_asks_for_its_largest_world() -> None:
    elastic = {"minReplicas": 1, "maxReplicas": 4}
    job = job_of(ddp(roles={"worker": {"replicas": 2}}, elastic=elastic, batch={"globalSize": 12}, scheduling={"queue": "team"}))
    assert [each["count"] for each in workload(job, IMAGES, ())["spec"]["podSets"]] == [4]


@pytest.mark.parametrize(
    ("existing", "admitted", "words"),
    [
        (None, False, "does not exist"),
        ({"metadata": {}}, False, "has not looked"),
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
    ("reason", "requeued"), [("Preempted", "True"), ("PodsReadyTimeout", "False"), ("LocalQueueStopped", "False"), ("Deactivated", None)]
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


@pytest.mark.parametrize(
    ("kueue", "groups", "gang", "refused"),
    [
        (Kueue(enabled=True, served=True), (), "Auto", False),
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
