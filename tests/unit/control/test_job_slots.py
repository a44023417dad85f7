"""The limit of jobs of a namespace that run at once, and the order of those that wait."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

from muster.admission.job_policy import JobPolicy
from muster.channel.reports import Reports
from muster.control.dependencies import Dependencies
from muster.control.reconciler import Reconciler
from muster.control.store import Store
from muster.render.images import Images
from tests.unit.control.control_worlds import MemoryCluster, job_object

IMAGES = Images({"PyTorch": "torch", "TensorFlow": "tensorflow"}, supervisor="operator")
NOW = datetime(2026, 11, 21, 12, 0, 1, tzinfo=UTC)


class World:
    """Jobs of two namespaces, and a reconciler that lets one job of each run."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster()
        self.store = Store(time.monotonic)
        self.enqueued: list[str] = []
        self.restart()

    def restart(self) -> None:
        policy = JobPolicy(max_jobs_per_namespace=1)
        around = Dependencies(
            self.cluster, self.store, Reports(), images=IMAGES, now=lambda: NOW, job_policy=policy, enqueue=self.enqueued.append
        )
        self.reconciler = Reconciler(around)

    def submit(self, name: str, namespace: str = "default", **spec: Any) -> None:
        job = job_object(name, **spec)
        job["metadata"]["namespace"] = namespace
        self.store.put_job(self.cluster.put(job))

    def reconcile(self, name: str, namespace: str = "default") -> str:
        """Runs one pass and returns the status of condition Valid."""
        asyncio.run(self.reconciler.reconcile(f"{namespace}/{name}"))
        job = self.store.job(f"{namespace}/{name}")
        conditions = (job or {}).get("status", {}).get("conditions", [])
        return next((str(each["status"]) for each in conditions if each["type"] == "Valid"), "")

    def pods(self, name: str) -> int:
        return sum(pod["metadata"]["labels"]["muster.dev/job-name"] == name for pod in self.cluster.of("Pod"))

    def remove(self, name: str) -> None:
        job = self.store.job(f"default/{name}")
        assert job
        self.store.drop_job(job)


def test_a_job_beyond_the_limit_starts_when_another_ends() -> None:
    world = World()
    world.submit("first")
    world.submit("second")
    assert (world.reconcile("first"), world.reconcile("second")) == ("True", "False")
    assert (world.pods("first"), world.pods("second")) == (2, 0)
    world.remove("first")
    world.reconcile("first")
    assert world.enqueued == ["default/second"]
    assert world.reconcile("second") == "True"
    assert world.pods("second") == 2


def test_other_namespaces_have_a_limit_of_their_own() -> None:
    world = World()
    world.submit("first")
    world.submit("second", "other")
    assert (world.reconcile("first"), world.reconcile("second", "other")) == ("True", "True")


def test_jobs_that_have_started_keep_their_places_after_a_restart() -> None:
    world = World()
    world.submit("first")
    world.reconcile("first")
    world.submit("second")
    world.restart()
    assert (world.reconcile("second"), world.reconcile("first")) == ("False", "True")


def test_the_next_job_starts_if_a_waiting_job_is_deleted() -> None:
    world = World()
    for name in ("first", "second", "third"):
        world.submit(name)
        world.reconcile(name)
    world.remove("first")
    world.reconcile("first")
    world.remove("second")
    world.reconcile("second")
    assert world.enqueued[-1] == "default/third"
    assert world.reconcile("third") == "True"


def test_an_invalid_job_takes_no_place() -> None:
    world = World()
    world.submit("first", batch={"globalSize": 1})  # two workers cannot share one sample
    world.submit("second")
    assert (world.reconcile("first"), world.reconcile("second")) == ("False", "True")
