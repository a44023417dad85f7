"""The limit of jobs of a namespace that run at once, and the order of those that wait."""

from __future__ import annotations

from muster.admission.job_policy import JobPolicy
from tests.unit.control.control_worlds import World


class OneAtOnce(World):
    """Jobs of two namespaces, and a reconciler that lets one job of each run."""

    def __init__(self) -> None:
        self.enqueued: list[str] = []
        super().__init__(job_policy=JobPolicy(max_jobs_per_namespace=1), enqueue=self.enqueued.append)

    def is_valid(self, name: str, namespace: str = "default") -> str:
        """Runs one pass and returns the status of condition Valid."""
        self.reconcile(f"{namespace}/{name}")
        conditions = (self.store.job(f"{namespace}/{name}") or {}).get("status", {}).get("conditions", [])
        return next((str(each["status"]) for each in conditions if each["type"] == "Valid"), "")

    def pods(self, name: str) -> int:
        return sum(pod["metadata"]["labels"]["muster.dev/job-name"] == name for pod in self.cluster.of("Pod"))

    def remove(self, name: str) -> None:
        job = self.store.job(f"default/{name}")
        assert job
        self.store.drop_job(job)


def test_a_job_beyond_the_limit_starts_when_another_ends() -> None:
    world = OneAtOnce()
    world.submit(name="first")
    world.submit(name="second")
    assert (world.is_valid("first"), world.is_valid("second")) == ("True", "False")
    assert (world.pods("first"), world.pods("second")) == (2, 0)
    world.remove("first")
    world.is_valid("first")
    assert world.enqueued == ["default/second"]
    assert world.is_valid("second") == "True"
    assert world.pods("second") == 2


def test_other_namespaces_have_a_limit_of_their_own() -> None:
    world = OneAtOnce()
    world.submit(name="first")
    world.submit(name="second", namespace="other")
    assert (world.is_valid("first"), world.is_valid("second", "other")) == ("True", "True")


def test_jobs_that_have_started_keep_their_places_after_a_restart() -> None:
    world = OneAtOnce()
    world.submit(name="first")
    world.is_valid("first")
    world.submit(name="second")
    world.restart()
    assert (world.is_valid("second"), world.is_valid("first")) == ("False", "True")


def test_the_next_job_starts_if_a_waiting_job_is_deleted() -> None:
    world = OneAtOnce()
    for name in ("first", "second", "third"):
        world.submit(name=name)
        world.is_valid(name)
    world.remove("first")
    world.is_valid("first")
    world.remove("second")
    world.is_valid("second")
    assert world.enqueued[-1] == "default/third"
    assert world.is_valid("third") == "True"


def test_an_invalid_job_takes_no_place() -> None:
    world = OneAtOnce()
    world.submit(name="first", batch={"globalSize": 1})  # two workers cannot share one sample
    world.submit(name="second")
    assert (world.is_valid("first"), world.is_valid("second")) == ("False", "True")
