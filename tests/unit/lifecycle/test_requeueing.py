"""Gangs that have only a part of their nodes: when they give these back, and what they keep."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.api.status import Reason
from muster.lifecycle.observed import ReplicaView
from muster.lifecycle.policy import DEFAULT_POLICY
from tests.unit.lifecycle.lifecycle_cases import Story, at, created, deleted, job, replica, report

SECONDS, REUSED_SECONDS = DEFAULT_POLICY.split_seconds, DEFAULT_POLICY.split_reused_seconds
ELASTIC = {"elastic": {"minReplicas": 2, "maxReplicas": 3, "shrinkAfterSeconds": 3600}, "batch": {"globalSize": 64}}


def story_of(*, scheduler: str = "scheduling.k8s.io", workers: int = 3, **spec: Any) -> Story:
    """A job whose pods are to be placed together."""
    story = Story(job(workers=workers, **spec))
    story.see(seconds=0)
    story.job = story.job.with_status(replace(story.status, gang_scheduler=scheduler))
    return story


def placed(index: int, *, seconds: float = 10, attempt: int = 0, **changes: Any) -> ReplicaView:
    """A pod that has had a node since then. It does not run yet."""
    changes = {"phase": "Pending", "node": f"node-{index}", "placed": at(seconds), "created": at(1), **changes}
    return replica(f"worker-{index}", attempt=attempt, **changes)


def waiting(index: int, *, seconds: float = 1, attempt: int = 0, **changes: Any) -> ReplicaView:
    """A pod for which the scheduler finds no node."""
    changes = {"reason": "Unschedulable", "message": "0/3 nodes are available", "unschedulable": True, **changes}
    return replica(f"worker-{index}", attempt=attempt, phase="Pending", created=at(seconds), **changes)


HALF = (placed(0), placed(1), waiting(2))


def requeued(story: Story) -> bool:
    return any(record.reason is Reason.GANG_REQUEUED for record in story.status.attempts)


def test_a_gang_with_a_part_of_its_nodes_gives_them_back_and_starts_as_a_whole() -> None:
    story = story_of()
    assert story.see(*HALF, seconds=11).wake == at(10 + SECONDS)
    decision = story.see(*HALF, seconds=10 + SECONDS)
    [ended, following] = story.status.attempts
    assert (ended.reason, ended.failure_class, following.attempt) == (Reason.GANG_REQUEUED, None, 1)
    assert (
        ended.message == "worker-2 got no node, so the 2 other pods are deleted to free their nodes: Unschedulable: 0/3 nodes are available"
    )
    assert (deleted(decision), created(decision)) == (["worker-0/0", "worker-1/0", "worker-2/0"], [])
    assert (story.status.restarts.total, story.status.next_attempt_time) == (0, None)
    assert created(story.see(seconds=20)) == ["worker-0/1", "worker-1/1", "worker-2/1"]


def test_times_of_pods_in_whole_seconds_make_none_look_kept() -> None:
    story = Story(job(workers=3))
    story.see(seconds=0.9)
    story.job = story.job.with_status(replace(story.status, gang_scheduler="scheduling.k8s.io"))
    half = [replace(view, created=at(0), placed=at(0) if view.node else None) for view in HALF]
    assert story.see(*half, seconds=1).wake == at(0.9 + SECONDS)


@pytest.mark.parametrize(
    ("spec", "views"),
    [
        ({"scheduler": ""}, HALF),
        ({}, (waiting(0), waiting(1), waiting(2))),
        ({}, (placed(0), placed(1), placed(2))),
        ({}, (placed(0), placed(1), waiting(2, unschedulable=False))),
        (ELASTIC, HALF),
    ],
    ids=["no gang", "none has a node", "all have nodes", "is being bound", "the smallest world has nodes"],
)
def test_a_world_that_is_no_split_gang_waits(spec: dict[str, Any], views: tuple[ReplicaView, ...]) -> None:
    story = story_of(**spec)
    story.see(*views, seconds=11)
    story.see(*views, seconds=1000)
    assert (story.status.attempt, requeued(story)) == (0, False)


def test_an_elastic_gang_requeues_if_its_smallest_world_has_too_few_nodes() -> None:
    story = story_of(**ELASTIC)
    story.see(placed(0), waiting(1), waiting(2), seconds=10 + SECONDS)
    assert (story.status.attempt, requeued(story)) == (1, True)
    assert story.status.attempts[0].message.startswith("worker-1, worker-2 got no node, so the other pod is deleted to free its node: ")


def test_the_time_begins_again_with_each_pod_that_gets_a_node() -> None:
    story = story_of()
    assert story.see(placed(0), placed(1, seconds=14), waiting(2), seconds=15).wake == at(14 + SECONDS)
    assert story.status.attempt == 0


def test_a_world_that_has_started_is_left_alone() -> None:
    story = story_of()
    whole = [placed(index, phase="Running") for index in range(3)]
    story.see(*whole, seconds=12)
    lost = replace(whole[2], phase=waiting(2).phase, node="", unschedulable=True)
    story.see(*whole[:2], lost, seconds=100)
    assert not requeued(story)


@pytest.mark.parametrize("how", ["suspend", "delete"])
def test_the_user_and_a_lost_pod_come_first(how: str) -> None:
    story = story_of()
    story.see(*HALF, seconds=11)
    if how == "suspend":
        story.edit(suspend=True)
    story.see(*(HALF if how == "suspend" else HALF[1:]), seconds=10 + SECONDS)
    assert story.status.attempts[0].reason is (Reason.SUSPENDED if how == "suspend" else Reason.REPLICA_LOST)


def test_only_a_live_look_makes_a_gang_give_its_nodes_back() -> None:
    story = story_of()
    assert [str(type(each).__name__) for each in story.see(*HALF, seconds=20, live=False).actions] == ["LookLive"]
    assert story.status.attempt == 0


def kept(index: int, attempt: int) -> ReplicaView:
    """A pod of attempt 0 that has acknowledged this attempt."""
    newest = report(f"worker-{index}", attempt=attempt, in_place=True, waiting=True)
    return placed(index, uid=f"worker-{index}/0", phase="Running", report=newest, reported=at(100))


def recovering_story() -> Story:
    """worker-2 is lost, and the pod that replaces it finds no node. The others are kept since second 100."""
    story = story_of()
    whole = [replace(kept(index, 0), report=report(f"worker-{index}", in_place=True)) for index in range(3)]
    story.see(*whole, seconds=12)
    story.see(*whole[:2], seconds=100)
    assert [member.uid for member in story.status.world.members] == ["worker-0/0", "worker-1/0", ""]
    story.see(kept(0, 1), kept(1, 1), seconds=100)
    return story


def test_pods_kept_for_a_lost_one_hold_their_nodes_longer_and_are_then_not_kept() -> None:
    story = recovering_story()
    half = (kept(0, 1), kept(1, 1), waiting(2, seconds=101, attempt=1))
    assert story.see(*half, seconds=110).wake == at(101 + REUSED_SECONDS)
    decision = story.see(*half, seconds=101 + REUSED_SECONDS)
    assert [record.reason for record in story.status.attempts] == [Reason.REPLICA_LOST, Reason.GANG_REQUEUED, None]
    assert {member.uid for member in story.status.world.members} == {""}
    assert set(deleted(decision)) == {"worker-0/0", "worker-1/0", "worker-2/1"}
    assert story.status.restarts.total == 1


def test_parameter_servers_that_run_on_keep_their_nodes() -> None:
    story = story_of(strategy="ParameterServer", roles={"worker": {"replicas": 2}, "ps": {"replicas": 1}, "chief": {"replicas": 1}})
    labels = ["chief-0", "ps-0", "worker-0", "worker-1"]
    whole = [replica(each, node="node-0", placed=at(5), report=report(each, in_place=True), reported=at(99)) for each in labels]
    story.see(*whole, seconds=12)
    story.see(*whole[:3], seconds=100)
    assert story.status.world.member_of["ps-0/0"].incarnation == 0
    half = [*whole[:3], waiting(1, seconds=101, attempt=1)]
    for seconds in (101, 102, 200, 400):
        story.see(*half, seconds=seconds)
    assert not requeued(story)


def test_each_further_time_takes_twice_as_long_until_the_startup_deadline() -> None:
    """Else a job whose scheduler places pods one by one would never start, and never end."""
    story, now, waited = story_of(startupDeadlineSeconds=100), 0.0, []
    while not story.status.phase.final and len(waited) < 20:
        attempt = story.status.attempt
        story.see(seconds=now)
        half = (
            placed(0, attempt=attempt, seconds=now, created=at(now)),
            placed(1, attempt=attempt, seconds=now, created=at(now)),
            waiting(2, attempt=attempt, seconds=now),
        )
        begun = now
        wake = story.see(*half, seconds=now).wake
        assert wake
        now = (wake - at(0)).total_seconds()
        story.see(*half, seconds=now)
        waited.append(now - begun)
    assert waited == [5, 10, 20, 40, 80, 100]
    assert story.condition("Failed") == ("True", "StartupDeadlineExceeded")
