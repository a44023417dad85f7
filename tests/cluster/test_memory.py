"""Pods of jobs that keep snapshots in memory are killed. Training goes on from the memory of the other pods, with storage and without it,
and its losses equal those of an undisturbed job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.chaos.matrix import parametrised
from tests.cluster.faults import Moment, kill_all, kill_container
from tests.support.cluster_jobs import CLAIM, EVENTS, EVERY, ClusterJob, Ground, Manifest, apart, of_matrix

MEMORY: Manifest = {"everySteps": 1, "copies": 1, "sizeMib": 64}
STORAGE: Manifest = {"persistentVolumeClaim": {"claimName": CLAIM}}
Uninterrupted = Callable[[str], ClusterJob]


@dataclass(frozen=True)
class Fault:
    """What is done, where the next attempt may resume from, and the notices that the job must give."""

    strike: Callable[[ClusterJob, str], None]
    sources: frozenset[str]
    storage: Manifest | None = field(default_factory=lambda: STORAGE)
    notices: frozenset[str] = frozenset()


MEMORIES = frozenset({"Memory", "Survivors"})
"""Snapshots, or the processes of DDP that survive."""
FAULTS = {
    "copy-lost": Fault(kill_container, MEMORIES),
    "copies-lost": Fault(lambda job, _: kill_all(job), frozenset({"Storage"}), notices=frozenset({"SnapshotIncomplete"})),
    "storage-away": Fault(kill_container, MEMORIES, storage=None),
}


def keeping(name: str, storage: Manifest | None) -> Manifest:
    """A job of the matrix that keeps snapshots in memory. Its events are on the claim in any case."""
    checkpoint: Manifest = {"memory": MEMORY, "gracePeriodSeconds": 10}
    manifest = apart(of_matrix(name, checkpoint=checkpoint | ({"everySteps": EVERY, "storage": storage} if storage else {})))
    if storage is None:
        for role in manifest["spec"]["roles"].values():
            pod = role["template"]["spec"]
            pod["volumes"] = [{"name": "events", "persistentVolumeClaim": {"claimName": CLAIM}}]
            pod["containers"] = [{"name": "trainer", "volumeMounts": [EVENTS | {"name": "events"}]}]
    return manifest


@pytest.mark.timeout(900)
@parametrised("tests/cluster/test_memory.py::test_a_job_goes_on_after")
def test_a_job_goes_on_after(fault: str, job: str, ground: Ground, uninterrupted: Uninterrupted) -> None:
    like, what = uninterrupted(job), FAULTS[fault]
    befallen = ground.apply(keeping(job, what.storage))
    replicas = befallen.replicas[-1:] if job == "ParameterServer" else befallen.replicas  # its chief alone has snapshots
    moment = Moment.of(f"{fault}/{job}", replicas=replicas)
    print(f"seed {fault}/{job}: {moment}")
    befallen.wait_for_step(moment.step)
    what.strike(befallen, moment.replica)
    befallen.check_succeeded(like.losses())
    _, *following = befallen.attempts
    # an attempt that meets the last of several kills ends before it resumes
    resumed = next(record for record in following if "resumedFrom" in record)
    sources = what.sources if job == "DDP" else what.sources - {"Survivors"}
    assert resumed["resumedFrom"] in sources, befallen.attempts
    if what.sources == MEMORIES:
        assert [record["stepsLost"] for record in following] == [0], befallen.attempts
        assert resumed["stepResumed"] >= moment.step
    else:
        assert following[-1]["stepResumed"] % EVERY == 0, befallen.attempts
    assert what.notices <= {event["reason"] for event in befallen.events("notice")}, befallen.story()
