"""Elastic jobs: when a world shrinks after a lost worker, and when it grows again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from muster.api.status import Member, Reason, World
from muster.channel import replies
from muster.lifecycle.facts.acknowledging import grace_seconds
from muster.lifecycle.facts.membership import NO_ATTEMPT, assigned
from muster.lifecycle.observed import Observed, ReplicaPhase, ReplicaView
from muster.lifecycle.transition.fence import member_to_start
from muster.render.addresses import addresses_of
from tests.unit.lifecycle.lifecycle_cases import Story, at, created, deleted, job, members, replica, report, stand_bys

BATCH = {"globalSize": 64}


def alive(label: str, *, attempt: int = 0, made_in: int | None = None, **fields: Any) -> ReplicaView:
    """A worker with a supervisor in `attempt`, in a pod of the attempt `made_in`."""
    newest = report(label, attempt=attempt, in_place=True, **fields)
    return replica(label, attempt=attempt if made_in is None else made_in, uid=f"{label}/{made_in or 0}", report=newest)


def ready(label: str, *, attempt: int, made_in: int = 0) -> ReplicaView:
    return alive(label, attempt=attempt, made_in=made_in, waiting=True)


def standby(label: str, *, made_in: int, reported: bool = True, **changes: Any) -> ReplicaView:
    view = ready(label, attempt=made_in, made_in=made_in) if reported else replica(label, attempt=made_in, uid=f"{label}/{made_in}")
    return replace(view, standby=True, **changes)


def training(count: int = 3, *, shrink: int = 30, **spec: Any) -> Story:
    """An elastic job of at least two workers that trains at step 40."""
    elastic = {"minReplicas": 2, "maxReplicas": 8, "shrinkAfterSeconds": shrink, "growAfterSeconds": 60}
    story = Story(job(workers=count, elastic=elastic, batch=BATCH, **spec))
    story.see(seconds=0)
    story.see(*(alive(f"worker-{index}", step=40 if index == 0 else None) for index in range(count)), seconds=10)
    return story


def shrunk() -> Story:
    """Three workers, of which worker-0 was lost at second 20 and could not be replaced."""
    story = training()
    story.see(alive("worker-1"), alive("worker-2"), seconds=20)
    story.see(ready("worker-1", attempt=1), ready("worker-2", attempt=1), replica("worker-0", attempt=1, phase="Pending"), seconds=50)
    assert story.status.attempt == 2
    return story


def test_the_others_continue_without_a_lost_worker_after_the_shrink_delay() -> None:
    story = training()
    left = [alive("worker-1"), alive("worker-2")]
    story.see(*left, seconds=20)
    assert created(story.see(*left, seconds=20)) == []
    pending = replica("worker-0", attempt=1, phase="Pending")
    acknowledged = [ready("worker-1", attempt=1), ready("worker-2", attempt=1)]
    decision = story.see(*acknowledged, pending, seconds=49)
    assert (story.status.attempt, decision.wake) == (1, at(50))
    decision = story.see(*acknowledged, pending, seconds=50)
    assert (story.status.attempt, members(story), deleted(decision)) == (2, ["worker-1", "worker-2"], ["worker-0/1"])
    assert story.status.attempts[1].reason is Reason.SCALED
    assert "2 of 3" in story.status.attempts[1].message
    assert story.status.restarts.total == 1
    story.see(ready("worker-1", attempt=2), ready("worker-2", attempt=2), seconds=51)
    assert story.status.world is not None
    assert (story.status.world.size, story.status.phase) == (2, "Running")


def test_the_first_remaining_worker_is_rank_0() -> None:
    story = shrunk()
    story.see(ready("worker-1", attempt=2), ready("worker-2", attempt=2), seconds=51)
    answers = [
        replies.reply_to(story.job, f"{label}/0", report(label, attempt=2, waiting=True), addresses_of(story.job, 2))
        for label in members(story)
    ]
    worlds = [reply.world or {} for reply in answers]
    assert [(world["RANK"], world["WORLD_SIZE"], world["PET_NODE_RANK"]) for world in worlds] == [("0", "2", "0"), ("1", "2", "1")]
    assert {world["MASTER_ADDR"] for world in worlds} == {"worker-1.digits.default.svc"}


def test_a_world_below_the_minimum_waits() -> None:
    story = training(2)
    story.see(alive("worker-1"), seconds=20)
    story.see(ready("worker-1", attempt=1), replica("worker-0", attempt=1, phase="Pending"), seconds=500)
    assert (story.status.attempt, members(story)) == (1, ["worker-0", "worker-1"])


def test_the_world_does_not_shrink_before_all_other_members_have_reported() -> None:
    story = training()
    story.see(alive("worker-1"), alive("worker-2"), seconds=20)
    unreported = replace(ready("worker-2", attempt=1), report=None)
    story.see(ready("worker-1", attempt=1), unreported, replica("worker-0", attempt=1, phase="Pending"), seconds=60)
    assert story.status.attempt == 1


def test_the_world_shrinks_at_once_without_a_shrink_delay() -> None:
    story = training(shrink=0)
    story.see(alive("worker-1"), alive("worker-2"), seconds=20)
    assert (story.status.attempt, members(story)) == (1, ["worker-1", "worker-2"])


def test_a_worker_that_starts_is_not_lost_without_a_shrink_delay() -> None:
    elastic = {"minReplicas": 1, "maxReplicas": 2, "shrinkAfterSeconds": 0, "growAfterSeconds": 60}
    story = Story(job(workers=2, elastic=elastic, batch=BATCH))
    story.see(seconds=0)
    starts = replica("worker-0", phase="Pending", node="node-a", created=at(12))
    assert story.see(alive("worker-1"), starts, seconds=13).wake == at(42)
    assert (story.status.attempt, members(story)) == (0, ["worker-0", "worker-1"])
    story.see(alive("worker-1"), replace(starts, node=""), seconds=14)
    assert (story.status.attempt, members(story)) == (1, ["worker-1"])


def test_a_stand_by_joins_after_the_world_has_trained_for_the_grow_delay() -> None:
    story = shrunk()
    two = [ready("worker-1", attempt=2), ready("worker-2", attempt=2)]
    story.see(*two, seconds=51)
    assert stand_bys(story.see(*two, seconds=51)) == ["worker-0"]
    train = [alive("worker-1", attempt=2, made_in=0, step=60), alive("worker-2", attempt=2, made_in=0)]
    story.see(*train, standby("worker-0", made_in=2, reported=False), seconds=55)
    assert (story.status.attempt, story.status.workers) == (2, "2/3")
    assert "2 of 3" in story.status.message
    waiting = standby("worker-0", made_in=2)
    assert story.see(*train, waiting, seconds=100).wake == at(111)
    story.see(*train, waiting, seconds=111)
    assert (story.status.attempt, members(story)) == (3, ["worker-0", "worker-1", "worker-2"])
    assert story.status.attempts[-2].reason is Reason.SCALED
    assert grace_seconds(story.job.spec, story.status) > 0
    acknowledged = [ready("worker-1", attempt=3), ready("worker-2", attempt=3)]
    story.see(*acknowledged, replace(ready("worker-0", attempt=3, made_in=2), standby=True), seconds=113)
    assert story.status.phase == "Running"
    assert member_to_start(story.status, "worker-0/2") is not None


def test_a_leaving_former_stand_by_blocks_the_creation_of_the_next_world() -> None:
    """The members of a new world have no uid yet."""
    joined = replace(alive("worker-1", attempt=1), standby=True, deleting=at(30), due=at(150))
    members = tuple(Member(role="worker", index=index) for index in range(3))
    status = replace(training().status, attempt=2, world=World(attempt=2, size=3, members=members, created_time=at(31)))
    replicas, idle = assigned(Observed((joined,), live=True, service=True), status)
    assert (idle, [view.attempt for view in replicas]) == ((), [NO_ATTEMPT])


def test_a_broken_stand_by_is_replaced_and_does_not_fail_the_attempt() -> None:
    story = shrunk()
    train = [alive("worker-1", attempt=2, made_in=0, step=60), alive("worker-2", attempt=2, made_in=0)]
    story.see(*train, seconds=51)
    broken = standby("worker-0", made_in=2, phase=ReplicaPhase.FAILED, finished=at(60), exit_code=22)
    assert deleted(story.see(*train, broken, seconds=61)) == []
    assert deleted(story.see(*train, broken, seconds=90)) == ["worker-0/2"]
    assert story.status.attempt == 2


def test_a_stand_by_that_is_not_needed_is_removed() -> None:
    story = training(2)
    story.edit(roles={"worker": {"replicas": 3}})
    train = [alive("worker-0", step=41), alive("worker-1")]
    story.see(*train, seconds=20)
    story.edit(roles={"worker": {"replicas": 2}})
    assert deleted(story.see(*train, replace(standby("worker-2", made_in=0), uid="spare"), seconds=21)) == ["spare"]


def test_a_job_that_is_scaled_up_trains_until_the_new_workers_are_ready() -> None:
    story = training(2)
    story.edit(roles={"worker": {"replicas": 3}})
    train = [alive("worker-0", step=41), alive("worker-1")]
    assert stand_bys(story.see(*train, seconds=20)) == ["worker-2"]
    assert story.status.attempt == 0
    story.see(*train, standby("worker-2", made_in=0), seconds=80)
    assert (story.status.attempt, members(story)) == (1, ["worker-0", "worker-1", "worker-2"])


def test_a_job_that_is_scaled_down_shrinks_at_once() -> None:
    story = training(3)
    story.edit(roles={"worker": {"replicas": 2}})
    decision = story.see(alive("worker-0", step=41), alive("worker-1"), alive("worker-2"), seconds=20)
    assert (story.status.attempt, members(story), deleted(decision)) == (1, ["worker-0", "worker-1"], ["worker-2/0"])
