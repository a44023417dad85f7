"""Replicas for which an eviction waits (KEP-4563): the world saves and ends, and the pod goes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from muster.api.status import FailureClass, Reason
from muster.control import replies
from muster.lifecycle.actions import CreateReplica, DeleteReplica
from muster.lifecycle.observed import EvictionView, ReplicaView
from muster.render.addresses import addresses_of
from tests.unit.lifecycle.lifecycle_cases import Story, at, created, deleted, job, replica, report, running_story, words

REQUESTED = EvictionView(at(100), "drain.example.com/nodes")


def alive(label: str, *, attempt: int = 0, made_in: int = 0, eviction: EvictionView | None = None, **fields: Any) -> ReplicaView:
    """A worker with a supervisor in `attempt`, in a pod of the attempt `made_in`."""
    newest = report(label, attempt=attempt, in_place=True, **fields)
    return replica(label, attempt=made_in, uid=f"{label}/{made_in}", report=newest, eviction=eviction)


def test_the_world_saves_the_evicted_pod_goes_and_the_others_stay() -> None:
    story = running_story(2, checkpoint={"gracePeriodSeconds": 40})
    decision = story.see(alive("worker-0", step=40), alive("worker-1", eviction=REQUESTED), seconds=101)
    record = story.status.attempts[0]
    assert (record.failure_class, record.reason, record.replica) == (FailureClass.PREEMPTION, Reason.EVICTION_REQUESTED, "worker-1")
    assert record.message == "the eviction of digits-worker-1 is requested by drain.example.com/nodes"
    assert story.status.attempt == 1
    [deletion] = [action for action in decision.actions if isinstance(action, DeleteReplica)]
    assert (deletion.uid, deletion.grace_seconds) == ("worker-1/0", None), "it has the whole grace period of its pod"
    reply = replies.reply_to(story.job, "worker-0/0", report("worker-0"), addresses_of(story.job, 1))
    assert (reply.attempt, reply.grace_seconds) == (1, 40), "the other rank stops at the same step, with time for a save"


def test_the_budgets_of_failures_are_untouched_and_the_cause_stays() -> None:
    story = running_story(2)
    story.see(alive("worker-0", step=40), alive("worker-1", eviction=REQUESTED), seconds=101)
    saved = replica("worker-1", phase="Failed", uid="worker-1/0", exit_code=21, last_words=words(21), finished=at(110), deleting=at(101))
    story.see(alive("worker-0", attempt=1, waiting=True), replace(saved, eviction=REQUESTED), seconds=111)
    decision = story.see(alive("worker-0", attempt=1, waiting=True), seconds=112)
    assert created(decision) == ["worker-1/1"]
    restarts = story.status.restarts
    assert (restarts.preemption_count, restarts.infrastructure_count, restarts.application_count) == (1, 0, 0)
    assert story.status.attempts[0].reason is Reason.EVICTION_REQUESTED


def test_a_restart_that_has_begun_goes_on_after_a_cancellation() -> None:
    story = running_story(2)
    story.see(alive("worker-0", step=40), alive("worker-1", eviction=REQUESTED), seconds=101)
    leaving = replace(alive("worker-1"), deleting=at(101), due=at(160))
    decision = story.see(alive("worker-0", attempt=1, waiting=True), leaving, seconds=102)
    assert (story.status.attempt, decision.actions) == (1, ())
    assert story.status.attempts[0].reason is Reason.EVICTION_REQUESTED
    assert created(story.see(alive("worker-0", attempt=1, waiting=True), seconds=110)) == ["worker-1/1"]


def test_a_second_pod_is_evicted_while_the_next_world_starts() -> None:
    story = running_story(2)
    story.see(alive("worker-0", step=40), alive("worker-1", eviction=REQUESTED), seconds=101)
    leaving = replace(alive("worker-1", eviction=REQUESTED), deleting=at(101), due=at(160))
    decision = story.see(alive("worker-0", step=40, eviction=REQUESTED), leaving, seconds=102)
    assert deleted(decision) == ["worker-0/0"]
    assert story.status.attempt == 1, "the same attempt waits for both"
    decision = story.see(seconds=110)
    assert created(decision) == ["worker-0/1", "worker-1/1"]


def test_a_ready_spare_takes_the_place_of_an_evicted_worker() -> None:
    story = Story(job(workers=2, recovery={"spares": 1}))
    story.see(seconds=0)
    story.see(alive("worker-0", step=40), alive("worker-1"), seconds=10)
    spare = replace(alive("worker-2", waiting=True), standby=True)
    story.see(alive("worker-0", step=41), alive("worker-1", eviction=REQUESTED), spare, seconds=101)
    assert story.status.world
    assert [member.label for member in story.status.world.members] == ["worker-0", "worker-2"]


def test_an_evicted_spare_is_replaced_and_the_world_trains_on() -> None:
    story = Story(job(workers=1, recovery={"spares": 1}))
    story.see(seconds=0)
    story.see(alive("worker-0", step=40), seconds=10)
    spare = replace(alive("worker-1", waiting=True), standby=True)
    decision = story.see(alive("worker-0", step=41), replace(spare, eviction=REQUESTED), seconds=101)
    assert (story.status.attempt, deleted(decision)) == (0, ["worker-1/0"])
    decision = story.see(alive("worker-0", step=41), seconds=110)
    assert [(action.index, action.standby) for action in decision.actions if isinstance(action, CreateReplica)] == [(1, True)]


def test_an_evicted_evaluator_is_replaced_and_the_world_trains_on() -> None:
    story = Story(job(strategy="MultiWorkerMirrored", roles={"worker": {"replicas": 1}, "evaluator": {"replicas": 1}}))
    story.see(seconds=0)
    views = [replica("worker-0"), replica("evaluator-0")]
    story.see(*views, seconds=10)
    decision = story.see(views[0], replace(views[1], eviction=REQUESTED), seconds=101)
    assert (story.status.attempt, deleted(decision)) == (0, ["evaluator-0/0"])
