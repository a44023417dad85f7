"""What befalls a job in the tests, and what must have become of it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.cluster.training import EVERY, STEPS, Job

REPLICAS = ("worker-0", "worker-1")


@dataclass(frozen=True)
class Moment:
    """When and whom it hits, drawn from a seed: never right at a commit, so that something is at stake."""

    step: int
    replica: str

    @classmethod
    def of(cls, seed: int, *, first: int = 30, last: int = 180) -> Moment:
        """A step of (first, last) that is 5 to 15 beyond a commit, and a worker."""
        draw = random.Random(seed)
        commit = draw.randrange(first, last) // EVERY * EVERY
        return cls(commit + draw.randrange(5, 16), draw.choice(REPLICAS))


def evict(job: Job, replica: str) -> None:
    """Through the eviction API, as a drain does."""
    ground = job.ground
    name = f"{job.name}-{replica}"
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": ground.namespace}}
    path = f"/api/v1/namespaces/{ground.namespace}/pods/{name}/eviction"
    ground.cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))


def delete(job: Job, replica: str) -> None:
    job.ground.kubectl("delete", "pod", f"{job.name}-{replica}", "--wait=false")


def kill_container(job: Job, replica: str) -> None:
    job.ground.cluster.kill_container(job.ground.namespace, f"{job.name}-{replica}", "trainer")


FILL = """
import os

def words(process):
    try:
        return open(f"/proc/{process}/cmdline").read()
    except OSError:
        return ""

forked = [int(name) for name in os.listdir("/proc") if name.isdigit() and words(name).split("\\0")[1:3] == ["-m", "muster_trainer.warm"]]
trainer = max(forked)  # the other is what it was forked from
with open("/dev/shm/filling", "wb", buffering=0) as file:
    while os.path.exists(f"/proc/{trainer}/fd"):
        file.write(bytes(1 << 20))
"""


def run_out_of_memory(job: Job, replica: str) -> None:
    """Fills the container's memory with a file that no process owns, so that the kernel ends the largest one: the training.

    The command that fills it ends with the container, and fails with it.
    """
    where = ("--namespace", job.ground.namespace, f"{job.name}-{replica}", "--container", "trainer")
    job.ground.cluster.try_kubectl("exec", *where, "--", "python", "-c", FILL)


@dataclass(frozen=True)
class Fault:
    """What is done to a replica, the class that must be counted, and the reasons that tell it truly."""

    strike: Callable[[Job, str], None]
    failure_class: str
    reasons: frozenset[str]
    saves: bool = False
    """Whether it leaves the replicas time to save, so that no step is lost."""


TAKEN_AWAY = frozenset({"Disrupted", "Evicted", "PodDeleted", "Preempted", "PreemptedNotSaved", "ReplicaLost", "NodeLost"})
FAULTS = {
    "evicted": Fault(evict, "Preemption", frozenset({"Disrupted", "Evicted", "Preempted"}), saves=True),
    "deleted": Fault(delete, "Preemption", frozenset({"PodDeleted", "Preempted"}), saves=True),
    # The other worker misses its peer before the kubelet says what became of the container; by then Muster may have asked both to go.
    "container-killed": Fault(kill_container, "Infrastructure", frozenset({"ProcessKilled", "PeerLost"})),
    "out-of-memory": Fault(run_out_of_memory, "Application", frozenset({"OutOfMemory"})),
}


def check_attempt(job: Job, attempt: int, *, failure_class: str, reasons: frozenset[str], saves: bool = False) -> None:
    """An attempt ended for that reason, and the next one went on from its newest commit, as the status says."""
    records = {record["attempt"]: record for record in job.attempts}
    ended, following = records[attempt], records[attempt + 1]
    assert ended["class"] == failure_class, ended
    assert ended["reason"] in reasons, ended
    commit = job.committed(attempt)
    resumed = job.resumed(attempt + 1)
    assert resumed in (commit, commit + EVERY)  # who commits may lose its peers before it can say so
    assert following["stepResumed"] == resumed, following
    assert following["stepFound"] == resumed, following
    if saves:
        assert following["stepsLost"] == 0, following
        assert commit >= ended["lastStep"], ended  # they train on until all have agreed to stop


def check_succeeded(job: Job, like: Job, *, attempts: int | None = None, **counts: int) -> None:
    """It succeeded, with the losses of the job that nothing befell, and its restarts are counted by class."""
    assert job.wait_for_end() == "Succeeded", job.story()
    curve = job.curve()
    assert sorted(curve) == list(range(1, STEPS + 1))
    assert curve == like.curve()
    status = job.status
    if attempts is not None:
        assert status["attempt"] == attempts - 1, status["attempts"]
        counted = {name: status["restarts"][f"{name}Count"] for name in ("preemption", "infrastructure", "application")}
        assert counted == {"preemption": 0, "infrastructure": 0, "application": 0} | counts, status["attempts"]
        assert status["restarts"]["total"] == attempts - 1
    assert status["progress"]["step"] == STEPS
    assert {each["type"]: each["status"] for each in status["conditions"]}["Complete"] == "True"
