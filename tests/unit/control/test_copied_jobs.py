"""Jobs that MultiKueue copies to another cluster: what the manager asks of Kueue, and what the cluster does with the copy."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from muster.api.times import format_time
from muster.control.queues import Kueue
from muster.lifecycle.policy import Policy
from tests.unit.control.control_worlds import KEY, NOW, World, job_object
from tests.unit.control.test_queues import WORKLOAD

TIME = format_time(NOW)
ATTEMPT = {"attempt": 0, "startTime": TIME}
WAITS = {"phase": "Pending", "attempts": [{**ATTEMPT, "endTime": TIME}], "attempt": 0}
RUNS = {"phase": "Running", "attempts": [ATTEMPT], "attempt": 0, "world": {"attempt": 0, "size": 2, "createdTime": TIME, "readyTime": TIME}}


class Copying(World):
    """A world with Kueue in it, in which no job runs by itself."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(kueue=Kueue(enabled=True, version="v1beta2"), **settings)

    def submit_to(self, manager: str | None, status: dict[str, Any] | None = None, **metadata: Any) -> None:
        job = job_object(scheduling={"queue": "team"}, checkpoint={"gracePeriodSeconds": 5}, **({"managedBy": manager} if manager else {}))
        job["metadata"] |= metadata
        self.store.put_job(self.cluster.put({**job, "status": status or {}}))
        self.reconcile()

    def change(self, *, status: dict[str, Any] | None = None, **spec: Any) -> None:
        [job] = self.cluster.of("TrainingJob")
        job["metadata"]["generation"] += 1 if spec else 0
        changed = {**job, "spec": {**job["spec"], **spec}, "status": job.get("status") if status is None else status}
        self.store.put_job(self.cluster.put(changed))

    @property
    def workload(self) -> dict[str, Any] | None:
        return self.cluster.objects.get(WORKLOAD)

    def answer(self, *true: str, since: timedelta = timedelta()) -> float | None:
        assert self.workload
        conditions = [{"type": each, "status": "True", "reason": each, "lastTransitionTime": format_time(NOW - since)} for each in true]
        self.cluster.put({**self.workload, "status": {"conditions": conditions, "admission": {"podSetAssignments": []}}})
        return self.reconcile()


class Manager(Copying):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.submit_to("kueue.x-k8s.io/multikueue")


def test_the_manager_makes_the_workload_and_leaves_pods_and_status_to_the_copy() -> None:
    world = Manager()
    assert world.workload
    assert world.workload["metadata"]["ownerReferences"][0]["kind"] == "TrainingJob"
    world.answer("QuotaReserved", "Admitted")
    world.change(status=RUNS)
    world.reconcile()
    assert world.cluster.of("Pod") == []
    assert world.status() == RUNS
    assert world.workload["status"]["conditions"][-1]["type"] == "PodsReady"


def test_only_the_installation_that_manages_jobs_by_default_makes_the_workload() -> None:
    assert Manager(policy=Policy(controller="muster.dev/second")).workload is None


def test_an_evicted_job_gets_another_workload_once_its_copy_has_ended() -> None:
    world = Manager()
    world.change(status=RUNS)
    assert world.answer("QuotaReserved", "Admitted", "Evicted") == 5 + 15 + 15
    assert world.workload
    world.answer("QuotaReserved", "Admitted", "Evicted", since=timedelta(seconds=35))
    assert world.workload is None
    world.reconcile()
    assert world.workload
    assert "status" not in world.workload
    assert [each["template"]["metadata"] for each in world.workload["spec"]["podSets"]] == [{"annotations": {"muster.dev/created": TIME}}]
    world.change(status=WAITS)
    world.answer("QuotaReserved", "Admitted", "Evicted")
    assert world.workload is None


def test_the_manager_deletes_the_workload_of_a_job_that_is_suspended_or_has_ended() -> None:
    world = Manager()
    world.change(suspend=True)
    world.reconcile()
    assert world.workload is None
    world.change(suspend=False)
    world.reconcile()
    world.change(status={"phase": "Succeeded"})
    world.answer("QuotaReserved", "Admitted")
    assert world.workload, "Kueue has not seen the end yet"
    world.answer("QuotaReserved", "Admitted", "Finished")
    assert world.workload is None
    world.reconcile()
    assert world.workload is None


@pytest.fixture
def made() -> dict[str, Any]:
    """The Workload that a manager makes, as MultiKueue creates it in another cluster."""
    world = Manager()
    assert world.workload
    kept = {name: value for name, value in world.workload["metadata"].items() if name in ("name", "namespace", "labels")}
    return {**world.workload, "metadata": kept}


def copy_of(made: dict[str, Any]) -> Copying:
    world = Copying()
    world.cluster.put(made)
    world.submit_to(None, labels={"kueue.x-k8s.io/prebuilt-workload-name": "digits"})
    return world


def test_a_copy_takes_over_its_workload_runs_and_says_when_it_has_ended(made: dict[str, Any]) -> None:
    world = copy_of(made)
    [job] = world.cluster.of("TrainingJob")
    assert world.workload["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    world.answer("QuotaReserved", "Admitted")
    assert len(world.cluster.of("Pod")) == 2
    for index in range(2):
        world.pod(index, terminated={"exitCode": 0, "finishedAt": format_time(NOW)})
    for _ in range(3):
        world.reconcile()
    assert world.status()["phase"] == "Succeeded"
    ended = world.workload["status"]["conditions"][-1]
    assert (ended["type"], ended["status"], ended["reason"]) == ("Finished", "True", "Succeeded")
    world.cluster.requests.clear()
    world.reconcile(KEY)
    assert ("status", "Workload") not in world.cluster.requests


def test_an_evicted_copy_keeps_its_quota_until_its_manager_knows(made: dict[str, Any]) -> None:
    world = copy_of(made)
    world.answer("QuotaReserved", "Evicted")
    assert world.reconcile() == 15
    assert world.workload
    assert "admission" in world.workload["status"]
    world.answer("QuotaReserved", "Evicted", since=timedelta(seconds=15))
    assert "admission" not in world.workload["status"]


def test_a_copy_whose_workload_is_for_other_pods_waits_and_says_so(made: dict[str, Any]) -> None:
    made["metadata"]["labels"]["muster.dev/template-hash"] = "other"
    world = copy_of(made)
    world.answer("QuotaReserved", "Admitted")
    assert "ownerReferences" not in world.workload["metadata"]
    assert world.cluster.of("Pod") == []
    assert "give Muster the same values in both clusters" in world.status()["message"]


def test_a_copy_makes_no_workload_of_its_own() -> None:
    world = Copying()
    world.submit_to(None, labels={"kueue.x-k8s.io/prebuilt-workload-name": "digits"})
    assert world.workload is None
    assert "its Workload does not exist" in world.status()["message"]
