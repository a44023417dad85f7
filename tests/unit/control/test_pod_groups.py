"""The PodGroup of a job, over passes of the reconciler: its count follows the world."""

from __future__ import annotations

from typing import Any

import pytest

from muster.control.gangs import Gangs
from muster.kubernetes.errors import RefusedError
from tests.unit.control.control_worlds import World

GROUP = "PodGroup", "default", "digits"
RUNNING = {"running": {"startedAt": "2026-11-21T12:00:00Z"}}
SUCCEEDED = {"terminated": {"exitCode": 0, "finishedAt": "2026-11-21T12:00:01Z"}}
ELASTIC: dict[str, Any] = {"elastic": {"minReplicas": 3, "maxReplicas": 4}, "batch": {"globalSize": 64}}


def gang_world(**changes: Any) -> World:
    """A job with four workers, whose pods exist."""
    world = World(gangs=Gangs(("scheduling.k8s.io",)))
    world.submit(workers=4, **changes)
    world.reconcile()
    assert len(world.cluster.of("Pod")) == 4
    return world


def count(world: World) -> int:
    return int(world.cluster.objects[GROUP]["spec"]["schedulingPolicy"]["gang"]["minCount"])


def change(world: World, **elastic: int) -> None:
    """Changes the limits of an elastic job."""
    [job] = world.cluster.of("TrainingJob")
    job["spec"]["elastic"] |= elastic
    job["metadata"]["generation"] += 1
    world.store.put_job(world.cluster.put(job))


@pytest.mark.parametrize(("changes", "before"), [({}, 4), (ELASTIC, 3)])
def test_replicas_that_have_succeeded_leave_the_count_though_no_pod_is_created(changes: dict[str, Any], before: int) -> None:
    world = gang_world(**changes)
    assert count(world) == before
    for index in range(3):
        world.pod(index, **RUNNING)
    world.reconcile()
    for index in range(2):
        world.pod(index, **SUCCEEDED)
    world.cluster.requests.clear()
    world.reconcile()
    assert count(world) == 2
    assert ("create", "Pod") not in world.cluster.requests


def test_the_count_follows_the_limits_of_an_elastic_job() -> None:
    world = gang_world(**ELASTIC)
    for smallest in (2, 4):
        change(world, minReplicas=smallest)
        world.reconcile()
        assert count(world) == smallest


def test_a_pass_reads_the_pod_group_only_after_a_change_and_once_after_a_restart() -> None:
    world = gang_world(**ELASTIC)
    world.pod(0, **RUNNING)
    world.cluster.requests.clear()
    world.reconcile()
    assert not [request for request in world.cluster.requests if request[1] == "PodGroup"]
    world.restart()
    for _ in range(2):
        world.reconcile()
    assert [request for request in world.cluster.requests if request[1] == "PodGroup"] == [("get", "PodGroup")]


def test_a_deleted_or_foreign_pod_group_is_left_alone() -> None:
    world = gang_world(**ELASTIC)
    group = world.cluster.objects.pop(GROUP)
    change(world, minReplicas=2)
    world.reconcile()
    assert GROUP not in world.cluster.objects
    world.cluster.put({**group, "metadata": {**group["metadata"], "ownerReferences": []}})
    change(world, minReplicas=1)
    world.reconcile()
    assert count(world) == 3


def test_a_count_that_cannot_be_updated_now_is_updated_by_a_later_pass() -> None:
    world = gang_world(**ELASTIC)
    change(world, minReplicas=2)

    def refuse(verb: str, kind: str) -> None:
        if (verb, kind) == ("update", "PodGroup"):
            raise RefusedError("a policy refuses it")

    world.cluster.before = refuse
    with pytest.raises(RefusedError):
        world.reconcile()
    assert count(world) == 3
    world.cluster.before = lambda verb, kind: None
    world.reconcile()
    assert count(world) == 2
