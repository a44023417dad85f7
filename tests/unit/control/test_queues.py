"""A job in a queue of Kueue, over passes of the reconciler: what it asks Kueue for, and what it tells it."""

from __future__ import annotations

import asyncio
from typing import Any

from muster.control.positions import Positions
from muster.control.queues import Kueue
from tests.unit.control.control_worlds import KEY, World

WORKLOAD = "Workload", "default", "digits"
RUNNING = {"startedAt": "2026-11-21T12:00:00Z"}


class Queued(World):
    """A world with Kueue in it, and one elastic job that waits for up to three workers."""

    def __init__(self, version: str = "v1beta2") -> None:
        self.woken: list[str] = []
        self.read: list[str] = []
        self.positions = Positions(self._pending, enqueue=self.woken.append)
        super().__init__(kueue=Kueue(enabled=True, version=version), positions=self.positions)
        self.submit(workers=3, scheduling={"queue": "team"}, elastic={"minReplicas": 1, "maxReplicas": 3}, batch={"globalSize": 64})
        self.reconcile()

    async def _pending(self, namespace: str, queue: str) -> list[dict[str, Any]]:
        self.read.append(queue)
        return [{"metadata": {"name": "digits"}, "positionInLocalQueue": 2, "positionInClusterQueue": 4}]

    def workload(self) -> dict[str, Any]:
        return self.cluster.objects[WORKLOAD]

    def admit(self, workers: int) -> None:
        conditions = [{"type": kind, "status": "True", "reason": kind} for kind in ("QuotaReserved", "Admitted")]
        assignment = {"name": "worker", "count": workers, "flavors": {}}
        status = {"conditions": conditions, "admission": {"podSetAssignments": [assignment]}}
        self.cluster.put({**self.workload(), "status": status})
        self.reconcile()

    def state(self, condition: str) -> str | None:
        return next((each["status"] for each in self.workload()["status"]["conditions"] if each["type"] == condition), None)


def test_a_job_waits_with_a_workload_that_always_has_a_priority() -> None:
    world = Queued()
    spec = world.workload()["spec"]
    assert (spec["queueName"], spec["priority"]) == ("team", 0)
    assert [(each["name"], each["count"], each["minCount"]) for each in spec["podSets"]] == [("worker", 3, 1)]
    assert world.cluster.of("Pod") == []


def test_all_requests_about_a_queue_use_the_version_of_kueue_that_is_served() -> None:
    for version in ("v1beta1", "v1beta2"):
        world = Queued(version)
        assert world.workload()["apiVersion"] == f"kueue.x-k8s.io/{version}"
        world.admit(3)
        assert len(world.cluster.of("Pod")) == 3


def test_the_position_of_a_waiting_job_is_in_its_status_until_it_is_admitted() -> None:
    world = Queued()
    assert world.status()["queue"]["summary"] == "team"
    asyncio.run(world.positions.look())
    assert world.woken == [KEY]
    world.reconcile()
    queue = world.status()["queue"]
    assert (queue["position"], queue["clusterQueuePosition"], queue["summary"]) == (3, 5, "3 in team")
    world.admit(3)
    assert "queue" not in world.status()
    world.read.clear()
    asyncio.run(world.positions.look())
    assert world.read == []


def test_the_job_starts_with_what_was_admitted_and_says_when_all_pods_run() -> None:
    world = Queued()
    world.admit(2)
    assert len(world.cluster.of("Pod")) == 2
    world.reconcile()
    assert world.state("PodsReady") is None
    for index in range(2):
        world.pod(index, running=RUNNING)
    world.reconcile()
    assert world.state("PodsReady") == "True"
    assert "reclaimablePods" not in world.workload()["status"]
    world.cluster.requests.clear()
    world.reconcile()
    assert ("status", "Workload") not in world.cluster.requests


def test_quota_is_given_back_once_the_pods_that_used_it_are_gone() -> None:
    world = Queued()
    world.admit(3)
    children = [world.pod(index, running=RUNNING) for index in range(3)]
    world.reconcile()
    [job] = world.cluster.of("TrainingJob")
    job["spec"]["roles"]["worker"]["replicas"] = 1
    job["metadata"]["generation"] += 1
    world.store.put_job(world.cluster.put(job))
    world.reconcile()
    assert "reclaimablePods" not in world.workload()["status"]
    for child in children:
        world.store.drop_child(KEY, child.view.uid)  # as the watch reports
    for _ in range(3):
        world.reconcile()
    assert world.workload()["status"]["reclaimablePods"] == [{"name": "worker", "count": 2}]
